"""In a quick run, each test that asks for a server is skipped, and so is one that starts a program."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import skip_programs
from tests.servers.available import SERVERS, Server, mariadb_database, need, own_postgresql, postgresql_database, redis_place
from tests.servers.azurite import azurite
from tests.servers.cosmos import cosmos
from tests.servers.debian import PROGRAMS, program
from tests.servers.emulators import ministack
from tests.servers.mariadb import own_mariadb
from tests.servers.mongodb import mongodb, mongodb_replica_set
from tests.servers.nats import own_nats
from tests.servers.rabbitmq import own_rabbitmq
from tests.servers.redis import own_redis

Opens = Callable[[], AbstractContextManager[Any]]

OPENED: list[Opens] = [
    *(mariadb_database, postgresql_database, redis_place),
    *(own_nats, own_postgresql, own_rabbitmq, own_redis, lambda: own_mariadb(Path("nowhere"))),
    *(azurite, cosmos, ministack, mongodb, mongodb_replica_set),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_QUICK", "1")


@pytest.mark.parametrize("opened", OPENED)
def test_who_asks_for_a_server_is_skipped(opened: Opens) -> None:
    """Before anything is looked for or started."""
    with pytest.raises(pytest.skip.Exception, match="quick"), opened():
        pass


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_who_asks_for_the_place_of_a_server_is_skipped(server: Server) -> None:
    """Also past `need`."""
    with pytest.raises(pytest.skip.Exception):
        need(server)
    with pytest.raises(pytest.skip.Exception):
        server.answers()


@pytest.mark.parametrize("wanted", PROGRAMS, ids=lambda wanted: wanted.name)
def test_who_asks_for_an_installed_program_is_skipped(wanted: Server) -> None:
    """A browser is one."""
    with pytest.raises(pytest.skip.Exception):
        program(wanted)


def test_who_starts_a_program_is_skipped() -> None:
    """Other events of Python's are not what it is about."""
    skip_programs("open", ())
    with pytest.raises(pytest.skip.Exception):
        skip_programs("subprocess.Popen", ())
