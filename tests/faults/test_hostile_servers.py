"""A server that is away is never a wrong set-up: whatever happens to connections, opening waits and raises no bug."""

import asyncio
import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest

from onceonly import Endpoint
from onceonly.adapters.mariadb import watch as mariadb_watch
from onceonly.adapters.postgresql import drivers as postgresql_drivers
from onceonly.cli.child import wiring_of
from onceonly.model.errors import RetryableError
from onceonly.runtime.processes.child import new_event_loop
from tests.servers.azurite import ACCOUNT, KEY
from tests.servers.hostile import HOSTILE, Behaviour, Hostile

pytestmark = pytest.mark.slow

TRIES = 20
"""A connection is cut at another moment each time; each driver has its own words for each moment."""


def systems(port: int) -> dict[str, tuple[str, str]]:
    """Return each system with the setting that names it, and its URL at this port."""
    host, azure, account = f"127.0.0.1:{port}", quote(f"http://127.0.0.1:{port}/{ACCOUNT}", safe=""), quote(KEY, safe="")
    http = quote(f"http://{host}", safe="")
    return {
        "PostgreSQL, asyncpg": ("store", f"postgresql://root@{host}/postgres"),
        "PostgreSQL, psycopg": ("store", f"postgresql+psycopg://root@{host}/postgres"),
        "PostgreSQL, queue": ("transport", f"postgresql://root@{host}/postgres"),
        "MariaDB": ("store", f"mysql://root@{host}/test"),
        "MariaDB, queue": ("transport", f"mysql://root@{host}/test"),
        "RabbitMQ": ("transport", f"amqp://guest:guest@{host}/?timeout=1"),
        "Redis": ("store", f"redis://{host}/0?timeout=1"),
        "Redis Streams": ("transport", f"redis://{host}/0?timeout=1"),
        "MongoDB": ("store", f"mongodb://{host}/db?timeout=1"),
        "Cosmos DB": ("store", f"cosmos://:a2V5@{host}/db/c"),
        "Azure Blob Storage": ("store", f"azure-blob://{ACCOUNT}:{account}@{ACCOUNT}/container/folder?endpoint={azure}"),
        "Azure queues": ("transport", f"azure-queue://{ACCOUNT}:{account}@{ACCOUNT}/shop?timeout=1&endpoint={azure}"),
        "Azure Table Storage": ("store", f"azure-table://{ACCOUNT}:{account}@{ACCOUNT}/table?endpoint={azure}"),
        "DynamoDB": ("store", f"dynamodb://us-east-1/table?timeout=1&endpoint={http}"),
        "S3": ("store", f"s3://bucket/folder?region=us-east-1&timeout=1&endpoint={http}"),
    }


SLOW = {"MongoDB": 1, "Cosmos DB": 2}
"""Drivers that try again by themselves before they give up; how often they are asked."""


@dataclass
class Go:
    """A message."""

    number: int


def endpoint(role: str, url: str) -> Endpoint:
    """Make an endpoint with one place that is away."""
    made = Endpoint("shop", **{"store": "memory://away", "transport": "memory://away", role: url})

    @made.handler
    async def go(message: Go) -> None:
        """Do nothing."""

    return made


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    """Return a port that nobody listens on yet."""
    with Hostile().listening() as port:
        yield port


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less long for an answer than in production; have credentials for AWS."""
    monkeypatch.setattr(mariadb_watch, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(postgresql_drivers, "CONNECT_SECONDS", 1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.fixture(autouse=True)
def forgotten_sockets() -> Iterator[None]:
    """Collect the sockets that drivers forget in the test that opened them: a later test would fail by their warning."""
    yield
    gc.collect()


PATIENT = ("Cosmos DB", "Azure Blob Storage", "Azure Table Storage")
CASES = [
    pytest.param(system, behaviour, marks=[pytest.mark.slow] if behaviour == "silent" and system in PATIENT else [])
    for system in systems(0)
    for behaviour in HOSTILE
]


# PyMongo and aiohttp leave sockets open when a connection is cancelled or reset; `forgotten_sockets` has them reported here
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("system", "behaviour"), CASES)
def test_whatever_connections_end_with_the_server_is_away(
    hostile: Hostile, system: str, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    """RetryableError, which names the place; not SetupError, nor an error of a driver's.

    In uvloop, as `onceonly run` has it.
    """
    hostile.behave(behaviour)
    role, url = systems(hostile.port)[system]
    made = endpoint(role, url)
    repeats = behaviour in {Behaviour.RESETS, Behaviour.CLOSES, Behaviour.GARBAGE}

    async def open_it() -> None:
        for _ in range(SLOW.get(system, TRIES) if repeats else 1):
            async with asyncio.timeout(60):
                with pytest.raises(RetryableError, match=f"endpoint 'shop' cannot use its {role} "):
                    async with wiring_of(made, made.settings):
                        """It is not reached."""

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(open_it())
    assert hostile.connections > 0 or behaviour is Behaviour.REFUSES
    assert not [record for record in caplog.records if record.exc_info and record.levelno >= logging.WARNING]
