"""What the broker's absence left: many records, and several relays at once, which share them or do not."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import cast

from msgspec import Struct

from benchmarks.rows.onceonly import EVENT, SHOP
from benchmarks.scenario import OrderPlaced, encode
from benchmarks.transactions.places import TransactionsPlaces
from onceonly import Endpoint
from onceonly.assembly import open_database, open_relay
from onceonly.model.identity import Identity, outgoing_id
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.ports.bundle import RelayPorts
from onceonly.ports.store import PendingRecords
from onceonly.runtime.processes.notifier import Notifier
from onceonly.runtime.relay.relay import Relay
from onceonly.sql.store.statements import row_of
from onceonly.sql.store.tables import tables

AFTER = 0.001
CHUNK = 1000
_RECORDS = tables("onceonly_").records


class RelayBacklog(Struct, frozen=True, kw_only=True):
    """So many relays at a backlog: how many messages they sent for it, and how many of its records a second were done."""

    relays: int
    shared: bool
    records: int
    sent: int
    rate: float


class GreedyRecords:
    """Takes what others have taken, as relays did before they knew of each other."""

    def __init__(self, inner: PendingRecords) -> None:
        """Search these records."""
        self._inner = inner
        self.undispatched, self.find = inner.undispatched, inner.find

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        """Have no lease last."""
        return await self._inner.take(older_than, limit, lease=min(lease, 0), after=after)


async def measure(places: TransactionsPlaces, records: int, relays: int, *, shared: bool) -> RelayBacklog:
    """Leave so many records, and let relays of several connections send them until none is left."""
    await places.empty()
    await _leave(places, records)
    shop = Endpoint(SHOP, store=places.database, transport=places.transport, relay_after=AFTER)
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        running: list[Relay] = []
        for _ in range(relays):
            opened = await stack.enter_async_context(open_relay(shop.settings))
            ports = cast("RelayPorts", opened.for_relay())  # a database can be searched
            ports = ports if shared else ports._replace(pending=GreedyRecords(ports.pending))
            running.append(Relay(ports, after=AFTER, grace=10.0, notifier=Notifier()))
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for relay in running:
                tasks.create_task(relay.run(stop))
            await places.forgotten()
            seconds = time.perf_counter() - began
            stop.set()
    return RelayBacklog(
        relays=relays, shared=shared, records=records, sent=await places.waiting(), rate=round(records / seconds, 1)
    )


async def _leave(places: TransactionsPlaces, count: int) -> None:
    def left(number: int) -> dict[str, object]:
        identity = Identity(SHOP, f"left-{number}")
        body = encode(OrderPlaced(f"left-{number}"))
        message = Message(id=outgoing_id(SHOP, identity, 0), source=SHOP, type=EVENT, body=body)
        return row_of(SHOP, Record(identity, (Send(message=message),)), 1)

    async with open_database(places.database) as database, database.writing() as connection:
        for start in range(0, count, CHUNK):
            rows = [left(number) for number in range(start, min(count, start + CHUNK))]
            await connection.run_sync(database.dialect.insert_all, _RECORDS, rows)
