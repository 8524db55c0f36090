"""What `make test` leaves out repeats something that it does not leave out."""

from collections import defaultdict
from importlib import import_module
from inspect import getmembers, isclass
from pathlib import Path

from tests.repeats import ALWAYS, IN_CI, OVER_DOCUMENTS

CONFORMANCE = Path(__file__).parent / "conformance"


def test_each_suite_over_documents_runs_on_the_services_of_every_run() -> None:
    """On those of CI as well, and on others."""
    services = defaultdict(set)
    for path in CONFORMANCE.glob("test_*.py"):
        module = import_module(f"tests.conformance.{path.stem}")
        for name, bound in getmembers(module, isclass):
            for suite in OVER_DOCUMENTS:
                if name.startswith("Test") and issubclass(bound, suite):
                    services[suite].add(bound.service)
    assert set(services) == set(OVER_DOCUMENTS)
    assert all(named >= ALWAYS | IN_CI for named in services.values())
    assert len(ALWAYS) == 2
