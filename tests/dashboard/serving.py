"""A dashboard on a port of this machine, and endpoints to show."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import uvicorn

from onceonly import Context, Endpoint
from onceonly.assembly import open_dead_letters, open_store
from onceonly.model.conversation import JournalEntry
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import Failure, FailureKind, Message
from onceonly.model.record import Record
from onceonly_dashboard.app import Dashboard
from tests.servers.available import free_port

NOW = 1_795_000_000_000
TRACE = """Traceback (most recent call last):
  File "/app/shop/charge.py", line 41, in charge
    gateway.post(order)
ValueError: total is negative: -30
"""


@dataclass
class PlaceOrder:
    """A command."""

    order_id: str
    total: int = 0


def endpoint(name: str = "shop", **settings: Any) -> Endpoint:
    """Make an endpoint in memory with one handler, whose world no other test has."""
    world = f"memory://{name}-{uuid4().hex}"
    made = Endpoint(name, **{"store": world, "transport": world, **settings})

    async def place(_order: PlaceOrder, _context: Context) -> None:
        pass

    made.handler(place)
    return made


def letter(endpoint: str = "shop", number: int = 1, **changes: Any) -> DeadLetter:
    """Make a dead letter as a worker stores it."""
    body = changes.pop("body", b'{"order_id": "A-%d", "total": -30}' % number)
    message = Message(id=f"A-{number}", source="web", type="PlaceOrder", body=body, headers=(("tenant", "blue"),))
    failure = Failure(
        kind=FailureKind.EXCEPTION,
        reason="ValueError: total is negative: -30",
        traceback=changes.pop("traceback", TRACE),
        at=NOW,
        handler="shop.place",
    )
    values: dict[str, Any] = {
        "endpoint": endpoint,
        "reason": "ValueError: total is negative: -30",
        "headers": (("ce-id", f"A-{number}"), ("ce-source", "web"), ("tenant", "blue")),
        "body": body,
        "message": message,
        "attempts": 8,
        "history": (failure,),
        "at": NOW,
    }
    return DeadLetter(**{**values, **changes})


async def store(endpoint: Endpoint, letters: Sequence[DeadLetter]) -> None:
    """Store dead letters where the endpoint has them. In memory they last as long as something else has the world open."""
    async with open_dead_letters(endpoint.settings.places.dead_letters) as opened:
        for each in letters:
            await opened.add(each)


async def tell(endpoint: Endpoint, *entries: JournalEntry, handled: Sequence[Record] = ()) -> None:
    """Write a story in the journal of an endpoint with a SQL store: what units handled, and entries."""
    async with open_store(endpoint.settings) as opened:
        journal: Any = opened.message_journal
        if handled:
            messages = [Message(id=each.identity.id, source=each.identity.source, type="Order", body=b"") for each in handled]
            await (await opened.store.begin(messages)).commit(handled)
        await journal.add(entries)


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an application; gives its URL."""
    port = free_port()
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False, lifespan="on")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            assert not serving.done(), "the server has ended"
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


async def sampled(app: Any, rounds: int = 1) -> None:
    """Wait until every probe of a dashboard has read something."""
    assert isinstance(app, Dashboard)
    for probes in app.services.endpoints.values():
        for probe in probes.all_probes:
            await probe.wait_for(rounds)
