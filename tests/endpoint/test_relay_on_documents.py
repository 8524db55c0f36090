"""A relay alone finishes what a dead process committed to documents, and reads nothing but what is pending."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from onceonly.adapters.aws.dynamodb.client import PENDING_INDEX
from onceonly.adapters.redis.documents import RedisDocuments
from onceonly.assembly import open_store, open_transport
from onceonly.assembly.documents import create, open_documents
from onceonly.cli.relay import _relay
from onceonly.ports.documents import Change, Documents
from onceonly.ports.transport import Topology, Transport
from onceonly.runtime.environment import LIVE
from tests.endpoint.relay_program import EXIT, RECEIVER, bank_at
from tests.servers.api_calls import ApiCall, api_calls
from tests.servers.available import MEASURED

ROOT = Path(__file__).parents[2]
SECONDS = 5.0
COMMITTED = ("message=a", "transaction=b", "bare=c")
"""What dead processes have committed, with its id."""
OTHERS = 40
"""Documents that the relay must not read."""


class Place(NamedTuple):
    """Where a bank is."""

    store: str
    transport: str


NOT_IN_CI = (pytest.mark.slow, pytest.mark.repeated)


class Asked(NamedTuple):
    """What was asked of a service, by the adapter and below it, until everything was sent, and how long that took."""

    calls: list[tuple[str, Sequence[str]]]
    requests: list[ApiCall]
    seconds: float

    @property
    def keys(self) -> set[str]:
        """The documents that the adapter was asked for."""
        return {key for _, keys in self.calls for key in keys}

    def named(self, name: str) -> list[ApiCall]:
        """Return the requests of this name."""
        return [request for request in self.requests if request.name == name]


SLOW = (
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("dynamodb", "mongodb", "cosmos")),
    pytest.param("ravendb", marks=NOT_IN_CI),
)


@pytest.fixture(params=["redis", *SLOW])
def system(request: pytest.FixtureRequest) -> str:
    """Return the name of a service that lists what is pending."""
    name: str = request.param
    return name


@pytest.fixture
async def place(request: pytest.FixtureRequest, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Create a place of the service."""
    name = f"t{uuid4().hex[:12]}"
    match system:
        case "redis":
            store = request.getfixturevalue("redis_url")
        case "dynamodb":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            store = f"dynamodb://eu-central-1/{name}?endpoint={request.getfixturevalue('ministack_endpoint')}"
        case "mongodb":
            store = f"{request.getfixturevalue('mongodb_server')}/onceonly?collection={name}"
        case "ravendb":
            store = f"{request.getfixturevalue('ravendb_server')}/onceonly-relay?prefix={name}"
        case _:
            store = f"{request.getfixturevalue('cosmos_account')}/onceonly/{name}?emulator=true"
    await create(store)
    return Place(store, f"sqlite:///{tmp_path}/queue.db")


async def test_the_relay_alone_sends_what_dead_processes_committed(
    place: Place, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 5 s, without a redelivery: a handler's messages, and those of transactions without a key, with an entity or none.

    Its calls name no other document than those that are pending, and its leases. Nor do the requests below the adapter.
    """
    asked = await finish_alone(place, system, monkeypatch)
    MEASURED.append(f"relay alone on {system}: sent after {asked.seconds:.1f} s, {len(asked.requests)} requests")
    assert asked.seconds < SECONDS
    assert {call for call, _ in asked.calls} == {"pending", "load", "save"}
    attempts = {key for key in asked.keys if key.startswith("attempt/bank/")}
    assert len(attempts) == 1
    assert asked.keys - attempts <= {"entity/Account/a", "entity/Account/b", "relay/bank", "janitor/bank", "retention/bank"}
    CHECKS[system](asked)


def check_redis(asked: Asked) -> None:
    """Scripts name their keys. The list is the endpoint's sorted set, and nothing walks over keys."""
    assert {request.name for request in asked.requests} <= {"EVALSHA", "EVAL", "SCRIPT LOAD", "ZRANGEBYSCORE"}
    assert {request.arguments["arguments"][0].rpartition(b":")[2] for request in asked.named("ZRANGEBYSCORE")} == {b"bank"}


def check_dynamodb(asked: Asked) -> None:
    """Each query is of the index. There is no scan, and no query of the table."""
    assert {request.name for request in asked.requests} <= {"Query", "BatchGetItem", "PutItem", "BatchExecuteStatement"}
    statements = [each for request in asked.named("BatchExecuteStatement") for each in request.arguments["Statements"]]
    assert not any(each["Statement"].startswith("SELECT") for each in statements)
    assert {request.arguments.get("IndexName") for request in asked.named("Query")} == {PENDING_INDEX}


def check_mongodb(asked: Asked) -> None:
    """Each search is for keys, or for both fields of the index."""
    assert {request.name for request in asked.requests} == {"find", "insert", "update"}
    filters = {tuple(request.arguments["filter"]) for request in asked.named("find")}
    assert filters == {("_id",), ("pending_for", "pending_at")}


def check_cosmos(asked: Asked) -> None:
    """Each query has a filter on the indexed properties, and nothing reads all documents or all keys.

    The emulator counts one unit for each request, so what a query costs is not shown.
    """
    assert {request.name for request in asked.requests} == {"query", "GET", "POST", "PUT"}
    queries = {str(request.arguments["query"]).partition(" WHERE ")[2] for request in asked.named("query")}
    filtered = "c.pending_at > @after AND c.pending_at < @before AND ARRAY_CONTAINS(c.pending_for, @endpoint)"
    assert queries == {f"{filtered} ORDER BY c.pending_at"}
    assert all(request.charge > 0 for request in asked.requests)


def check_ravendb(asked: Asked) -> None:
    """Documents are read by their ids, and each query is of the index."""
    assert {request.name for request in asked.requests} == {"POST docs", "PUT docs", "POST queries"}
    assert all(request.arguments["Ids"] for request in asked.named("POST docs"))
    assert all(
        request.arguments["Query"].startswith("from index 'OnceOnly/Pending' ") for request in asked.named("POST queries")
    )


CHECKS: dict[str, Callable[[Asked], None]] = {
    "redis": check_redis,
    "dynamodb": check_dynamodb,
    "mongodb": check_mongodb,
    "cosmos": check_cosmos,
    "ravendb": check_ravendb,
}


@pytest.mark.slow
@pytest.mark.parametrize("system", ["redis"])
async def test_a_relay_that_searches_the_store_is_seen(place: Place, system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the checks above can fail: a list that is made of all documents shows, by the adapter's calls and below it."""
    lists = RedisDocuments.pending

    async def search(self: RedisDocuments, *arguments: Any, **options: Any) -> Any:
        await self.load(await self.keys(""))
        return await lists(self, *arguments, **options)

    monkeypatch.setattr(RedisDocuments, "pending", search)
    asked = await finish_alone(place, system, monkeypatch)
    assert "keys" in {call for call, _ in asked.calls}
    assert "entity/Account/other0" in asked.keys
    with pytest.raises(AssertionError):
        check_redis(asked)


async def finish_alone(place: Place, system: str, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Have processes die after their commits, and a relay send what they left."""
    async with open_documents(place.store, clock=LIVE.clock) as documents:
        await documents.save([Change(key=f"entity/Account/other{number}", body=b"{}") for number in range(OTHERS)])
    async with receiving(place) as ledger:
        await die_after_commit(place, *COMMITTED)
        with api_calls(system) as requests:
            async with open_documents(place.store, clock=LIVE.clock) as documents:
                del requests[:]  # what the place was asked before it was used
                calls = log_calls(documents, monkeypatch)
                began, stop = LIVE.timer.seconds(), asyncio.Event()
                relaying = asyncio.create_task(_relay(bank_at(*place).settings, stop, None))
                await until_waiting(ledger, len(COMMITTED))
                seconds = LIVE.timer.seconds() - began
                await until_gone(place)
                stop.set()
                await relaying
    return Asked(calls, requests, seconds)


def log_calls(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[str]]]:
    """Log the calls of all clients of this kind of documents, with the keys that they name."""
    kind, calls = type(documents), list[tuple[str, Sequence[str]]]()

    def logged(name: str, keys_of: Callable[..., Sequence[str]]) -> None:
        original = getattr(kind, name)

        async def call(self: Any, *arguments: Any, **options: Any) -> Any:
            calls.append((name, keys_of(*arguments)))
            return await original(self, *arguments, **options)

        monkeypatch.setattr(kind, name, call)

    logged("load", tuple)
    logged("save", lambda changes: [change.key for change in changes])
    logged("keys", lambda prefix: [prefix])
    logged("pending", lambda *_: ())
    return calls


async def die_after_commit(place: Place, *committed: str) -> None:
    """Commit in processes that end after their commits; nothing is sent."""
    command = (sys.executable, "-m", "tests.endpoint.relay_program", *place, *committed)
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT, done.stderr


@asynccontextmanager
async def receiving(place: Place) -> AsyncIterator[Transport]:
    """Declare the queue of the receiver."""
    async with open_transport(place.transport, RECEIVER) as ledger:
        await ledger.declare((Topology(endpoint=RECEIVER, commands=("Deposited",)),))
        yield ledger


async def until_waiting(ledger: Transport, count: int) -> None:
    """Wait until the queue has this many messages."""
    async with asyncio.timeout(SECONDS):
        while (await ledger.depth(RECEIVER, ())).waiting < count:  # noqa: ASYNC110 - another process sends
            await asyncio.sleep(0.05)


async def until_gone(place: Place) -> None:
    """Wait until nothing is pending."""
    async with asyncio.timeout(SECONDS), open_store(bank_at(*place).settings) as opened:
        assert opened.pending is not None
        while await opened.pending.undispatched(1 << 52, 10):  # noqa: ASYNC110 - the service has no events
            await asyncio.sleep(0.05)
