"""Databases on real servers, made once for a test session, and the last lines: measurements, and servers that are missing.

Where pytest-xdist runs several sessions side by side each has databases and emulators of its own, so that none sees what
another one leaves; and one process prints the last lines for all of them.
"""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

HELPERS = [f"tests.{package.parent.name}" for package in Path(__file__).parent.glob("*/__init__.py")]
SUITES = [
    f"onceonly_conformance.{module.stem}"
    for module in Path(__file__).parent.parent.glob("packages/onceonly-conformance/src/onceonly_conformance/*.py")
    if module.stem != "__init__"
]
pytest.register_assert_rewrite(*HELPERS, *SUITES)  # before they are imported: a failed assertion shows what it compared

from tests.cli.written_modules import forget_modules
from tests.repeats import mark_repeats, quick
from tests.servers.available import (
    HANGING,
    MEASURED,
    MISSING,
    SERVERS,
    Server,
    is_ci,
    is_quick,
    look_for_hanging,
    mariadb_database,
    missing_lines,
    note_hanging,
    postgresql_database,
    redis_place,
    want,
)
from tests.servers.azurite import Azurite, azurite
from tests.servers.cosmos import cosmos
from tests.servers.cosmosdb.harness import CosmosStandIn, run_standin
from tests.servers.emulators import ministack
from tests.servers.kafka import kafka
from tests.servers.mongodb import ReplicaSet, mongodb, mongodb_replica_set
from tests.servers.probes import is_silent
from tests.servers.ravendb import ravendb
from tests.time_limit import REASON, is_over, left_out

M_MMAP_THRESHOLD = -3
"""The number of glibc's setting for the size from which memory is given back to the system when it is freed."""
LARGE_BLOCK = 128 * 1024


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """Make a database on the PostgreSQL server; gives `postgresql://...`."""
    with postgresql_database() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """Make a database on the MariaDB server; gives `mysql://...`."""
    with mariadb_database() as url:
        yield url


@pytest.fixture(scope="session")
def ministack_endpoint() -> Iterator[str]:
    """Run AWS's services on this machine; gives the endpoint they share, `http://127.0.0.1:...`."""
    with ministack() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite_storage() -> Iterator[Azurite]:
    """Run Azure's storage services on this machine; gives their addresses."""
    with azurite() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def cosmos_account() -> Iterator[str]:
    """Run an account of Cosmos DB on this machine; gives its URL, without a database."""
    with cosmos() as url:
        yield url


@pytest.fixture(scope="session")
def cosmos_standin() -> Iterator[CosmosStandIn]:
    """Run a stand-in for Cosmos DB whose batches are atomic, with an account at strong consistency."""
    with run_standin() as server:
        yield server


@pytest.fixture(scope="session")
def mongodb_server() -> Iterator[str]:
    """Run a server that speaks MongoDB's protocol on this machine; gives its URL."""
    with mongodb() as url:
        yield url


@pytest.fixture(scope="session")
def ravendb_server() -> Iterator[str]:
    """Run a RavenDB server on this machine; gives its URL, without a database."""
    with ravendb() as url:
        yield url


@pytest.fixture(scope="session")
def mongodb_transactions() -> Iterator[ReplicaSet]:
    """Run a look-alike of MongoDB that has transactions on this machine."""
    with mongodb_replica_set() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_url() -> Iterator[str]:
    """Run a broker that speaks Kafka's protocol on this machine; gives its URL."""
    with kafka() as url:
        yield url


@pytest.fixture
def redis_url() -> Iterator[str]:
    """Return a place in Redis, and remove it at the end."""
    with redis_place() as url:
        yield url


@pytest.fixture(autouse=True)
def _forgotten_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget what a test imported from a temporary directory."""
    known = {*sys.modules, *sys.path}
    yield
    if not known.issuperset(sys.modules) or not known.issuperset(sys.path):
        forget_modules(tmp_path_factory.getbasetemp())


def pytest_configure() -> None:
    """Let SIGINT interrupt processes that tests start, give generated inputs time, and large blocks back to the system.

    A shell starts its background jobs with SIGINT ignored, and processes inherit that. glibc keeps large blocks once it has
    freed one, and tests use bodies of megabytes.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_quick():
        sys.addaudithook(skip_programs)
    slow = hypothesis.HealthCheck.too_slow
    hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=[slow])
    hypothesis.settings.load_profile("any machine")
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def skip_programs(event: str, _arguments: tuple[object, ...]) -> None:
    """Skip the test that starts a program. This is an audit hook of Python."""
    if event == "subprocess.Popen" and "PYTEST_CURRENT_TEST" in os.environ:
        want("a process of its own")


def pytest_sessionstart(session: pytest.Session) -> None:
    """With CI=true, begin nothing while a server hangs: each of its tests would run into its time limit."""
    is_first = not hasattr(session.config, "workerinput") and not session.config.option.collectonly
    if is_ci() and is_first and not is_quick():
        for server in SERVERS:
            if server.answers() and is_silent(server.url):
                pytest.exit(note_hanging(server), returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and exempt from it what lives until the end: thousands of tests.

    Each full collection during the tests would visit all of it again. Bytecode is written here even if the environment forbids
    it: otherwise each process compiles all modules in each run.
    """
    gc.disable()
    forbidden, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = forbidden
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that repeat others, and leave them out of a quick run."""
    mark_repeats(items)
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)
    if is_quick():
        chosen = quick(items)
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup() -> None:
    """Leave a test out when the time of the run is over."""
    if is_over():
        pytest.skip(REASON)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true, end the session when a test has failed because a server hangs by now.

    `pytest.exit` is an internal error in a process of pytest-xdist; this way it hands the reason on.
    """
    report = yield
    if report.failed and is_ci():
        look_for_hanging()
        if HANGING:
            item.session.shouldstop = "; ".join(HANGING)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand on what this session has to say to the process that prints the last lines, where that is another one.

    Delete the files of the Django project, if a test has set one up.
    """
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["measured"], output["missing"] = list(MEASURED), [tuple(server) for server in MISSING]
    if (project := sys.modules.get("tests.django_project")) is not None:
        project.clean_up()


@pytest.hookimpl(optionalhook=True)  # it is pytest-xdist's
def pytest_testnodedown(node: Any) -> None:
    """Take over what another process's session has to say."""
    output: dict[str, Any] = getattr(node, "workeroutput", {})  # a process that died has said nothing
    MEASURED.extend(output.get("measured", ()))
    MISSING.update(Server(*fields) for fields in output.get("missing", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was measured, and what was not tested."""
    for line in MEASURED:
        terminalreporter.write_line(f"measured: {line}")
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    for line in (*missing_lines(MISSING), *left_out(skipped)):
        terminalreporter.write_line(line, red=True, bold=True)
