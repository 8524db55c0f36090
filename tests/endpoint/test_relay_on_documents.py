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

from onceonly.assembly import open_store, open_transport
from onceonly.assembly.documents import create, open_documents
from onceonly.cli.relay import _relay
from onceonly.ports.documents import Change, Documents
from onceonly.ports.transport import Topology, Transport
from onceonly.runtime.environment import LIVE
from tests.endpoint.relay_program import EXIT, RECEIVER, bank_at

ROOT = Path(__file__).parents[2]
SECONDS = 5.0
OTHERS = 40
"""Documents that the relay must not read."""


class Place(NamedTuple):
    """Where a bank is."""

    store: str
    transport: str


@pytest.fixture(params=["redis", "dynamodb"])
async def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Create a place of each service that lists what is pending."""
    name = f"t{uuid4().hex[:12]}"
    match request.param:
        case "redis":
            store = request.getfixturevalue("redis_url")
        case "dynamodb":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            store = f"dynamodb://eu-central-1/{name}?endpoint={request.getfixturevalue('ministack_endpoint')}"
        case "mongodb":
            store = f"{request.getfixturevalue('mongodb_server')}/onceonly?collection={name}"
        case _:
            store = f"{request.getfixturevalue('cosmos_account')}/onceonly/{name}?emulator=true"
    await create(store)
    return Place(store, f"sqlite:///{tmp_path}/queue.db")


async def test_the_relay_alone_sends_what_a_dead_process_committed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 5 s, without a redelivery. Its calls name no other document than those that are pending, and its leases."""
    async with open_documents(place.store, clock=LIVE.clock) as documents:
        await documents.save([Change(key=f"entity/Account/other{number}", body=b"{}") for number in range(OTHERS)])
        calls = log_calls(documents, monkeypatch)
        async with receiving(place) as ledger:
            await die_after_commit(place, "d1", "d2")
            began = LIVE.timer.seconds()
            stop = asyncio.Event()
            relaying = asyncio.create_task(_relay(bank_at(*place).settings, stop, None))
            await until_waiting(ledger, 2)
            seconds = LIVE.timer.seconds() - began
            await until_gone(place)
            stop.set()
            await relaying
    assert seconds < SECONDS
    assert {call for call, _ in calls} == {"pending", "load", "save"}
    pending = {"entity/Account/d1", "entity/Account/d2", "relay/bank", "janitor/bank"}
    assert {key for _, keys in calls for key in keys} <= pending


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


async def die_after_commit(place: Place, *ids: str) -> None:
    """Handle each message in a process that ends after the commit; nothing is sent."""
    for name in ids:
        command = (sys.executable, "-m", "tests.endpoint.relay_program", *place, name)
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
