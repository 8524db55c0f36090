"""`make servers` in a system of its own, where no server runs: they are installed, started, and used by tests."""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT
from tests.servers.available import MEASURED
from tests.servers.install.daemons import LOCAL_SERVERS
from tests.servers.own_root import OwnRoot, mirror, own_root

USES = (
    "tests/conformance/test_postgresql.py::TestPostgresqlLocks",
    "tests/conformance/test_mariadb.py::TestMariaDBLocks",
    "tests/conformance/test_redis.py::TestPendingInRedis",
    "tests/conformance/test_rabbitmq.py::TestRabbitMQAsABroker",
    "tests/conformance/test_nats.py::TestNatsAsABroker",
)
"""A few tests on each server."""
LEAST = 30


def timed(what: str, step: Callable[[], object]) -> str:
    """Do a step, and report how long it took."""
    since = time.monotonic()
    printed = step()
    MEASURED.append(f"make servers, {what}: {time.monotonic() - since:.1f} s")
    return str(printed)


def make_servers(root: OwnRoot) -> str:
    """Call it as README and CI do: nothing but make and Python is there."""
    printed = root.run("make", "servers", where=str(ROOT))
    print(printed)  # noqa: T201 - the log of this test, with -s
    return printed


def listening(root: OwnRoot) -> dict[str, str]:
    """Return the addresses that are listened on, and by which process."""
    printed = root.run("ss", "--listening", "--tcp", "--numeric", "--processes", "--no-header")
    return {line.split()[3]: line.split()[-1] for line in printed.splitlines()}


def check_tests(root: OwnRoot) -> None:
    """Run a few tests on each server. A missing one would be a failure."""
    options = ["-p", "no:cacheprovider", "-n", "0", "-q"]
    environment = {"CI": "true", "PYTHONDONTWRITEBYTECODE": "1"}
    printed = root.run(sys.executable, "-m", "pytest", *options, *USES, where=str(ROOT), environment=environment)
    counted = re.fullmatch(r"(\d+) passed in .*", printed.splitlines()[-1])
    assert counted, printed
    assert int(counted[1]) >= LEAST
    print(printed)  # noqa: T201 - the log of this test, with -s


def started(printed: str) -> set[str]:
    """Return the names of the servers that a call has started."""
    return set(re.findall(r"^(\w+): started, answers at 127\.0\.0\.1:\d+ after", printed, re.MULTILINE))


def check_target(root: OwnRoot) -> None:
    """Call `make servers` where no server runs, again, and after all were killed; in between, run tests.

    It has no network, so the packages are downloaded before.
    """
    everything = {server.name for server in LOCAL_SERVERS}
    timed("download of the packages", lambda: root.download([server.package for server in LOCAL_SERVERS]))
    with root.apart():
        assert listening(root) == {}
        first = timed("first call, which installs and starts", lambda: make_servers(root))
        assert started(first) == everything
        there = listening(root)
        assert {address.rpartition(":")[0] for address in there} <= {"127.0.0.1", "[::1]"}

        second = timed("second call", lambda: make_servers(root))
        answers = [f"{server.name}: answers at 127.0.0.1:{server.port}" for server in LOCAL_SERVERS]
        assert second.splitlines() == [*answers, "Nothing was changed: no server is missing."]
        assert listening(root) == there

        timed("tests on the servers", lambda: check_tests(root))

        root.run("sh", "-c", "kill -9 -1; rm -rf /run/postgresql /run/mysqld /run/redis")
        third = timed("call after all servers were killed", lambda: make_servers(root))
        assert started(third) == everything
        assert "installing" not in third
        assert "wrote" not in third


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.timeout(1800)
def test_servers_are_installed_and_started_where_none_runs(tmp_path: Path) -> None:
    """On this machine's release of Debian or Ubuntu."""
    with own_root(tmp_path, mirror()) as root:
        check_target(root)
