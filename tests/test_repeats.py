"""What `make test` leaves out repeats something that it does not leave out."""

from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from inspect import getmembers, isclass
from pathlib import Path

import pytest

from tests.repeats import ALWAYS, IN_CI, OVER_DOCUMENTS, combined

pytest_plugins = ["pytester"]
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


def test_each_value_of_each_parameter_stays(pytester: pytest.Pytester) -> None:
    """Its combinations with the others are left out; a function with one parameter keeps all of them."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(params=["x", "y"])
        def place(request): ...

        @pytest.mark.parametrize("first", [1, 2, 3])
        @pytest.mark.parametrize("second", ["a", "b"])
        def test_all(first, second, place): ...

        @pytest.mark.parametrize("only", range(4))
        def test_only(only): ...

        def test_plain(): ...
        """
    )
    items, _ = pytester.inline_genitems()
    left_out = [item.name for name in ("test_all", "test_only", "test_plain") for item in combined(named(items, name))]
    kept = [item.callspec.params for item in named(items, "test_all") if item.name not in left_out]
    assert len(kept) == 3
    assert {each for params in kept for each in params.items()} == {
        *(("first", each) for each in (1, 2, 3)),
        *(("second", each) for each in "ab"),
        *(("place", each) for each in "xy"),
    }
    assert len(left_out) == 3 * 2 * 2 - 3


def named(items: Sequence[pytest.Item], name: str) -> list[pytest.Function]:
    """Return the tests of a function."""
    return [item for item in items if isinstance(item, pytest.Function) and item.originalname == name]
