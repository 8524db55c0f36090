"""The queue inside a SQL database: for applications that have a database anyway, and no broker.

Every call is one database transaction. An empty queue is looked at without the write lock. How soon a message that another
process sent is received depends on the database. PostgreSQL notifies, which takes some milliseconds. Other databases are
polled every 5 to 100 ms, the more seldom the longer the queue was empty. Nothing here is part of the store's transaction.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

from msgspec import MsgspecError, Struct
from sqlalchemy import Delete, Update, select
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly.formats.cloudevents import UNREADABLE, arrival, encode
from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.formats.records import decode_headers, encode_headers
from onceonly.model.errors import RetryableError
from onceonly.model.limits import is_endpoint_name
from onceonly.model.message import Delivery, Headers, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock
from onceonly.ports.measurements import QueueSample
from onceonly.ports.transport import Depth, Topology
from onceonly.queues.destinations import UnsubscribedEvents
from onceonly.queues.messages import queue_missing
from onceonly.sql.database import Database
from onceonly.sql.options import LEASE_SECONDS, MAX_BODY, queue_traits
from onceonly.sql.queue_tables import SCHEMA, Statements

__all__ = ["MAX_BODY", "SCHEMA", "QueueReceipt", "SqlTransport"]

AS_STORED = "onceonly-headers"
"""The header that keeps, as text, what was stored as a message's headers and could not be read."""

_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _GROWTH = 0.005, 0.1, 1.5  # between two looks at an empty queue
POLL_SECONDS = 5.0
"""Seconds between two looks at an empty queue while notifications are received: a lost one delays a message by this much."""
CHECK_SECONDS = 60.0
"""Seconds between two looks at whether the queue exists. Only a receive that found nothing looks, the first one always."""
SHOWN = 120
"""Characters of a name that another program wrote that are logged."""
_log = EventLogger(logging.getLogger("onceonly.queue"))
_Part = TypeVar("_Part")
NAMES_AT_ONCE = 500
"""Numbers or names in one statement: every database takes that many parameters."""


class QueueReceipt(Struct, frozen=True, order=True):
    """Which message, and which taking of it: a later one has another token."""

    token: str
    number: int


class SqlTransport:
    """One endpoint's queue in a SQL database. Any number of processes may share it.

    Leases and delays follow the database's clock: those of the processes may differ. Where a test gives a `clock`, it is that.
    """

    def __init__(
        self,
        database: Database,
        endpoint: str,
        *,
        lease: float = LEASE_SECONDS,
        max_body: int = MAX_BODY,
        clock: Clock | None = None,
    ) -> None:
        self.traits = queue_traits(lease=lease, max_body=max_body)
        self._database = database
        self._endpoint = endpoint
        self.unsubscribed = UnsubscribedEvents(endpoint)
        self._clock = clock
        self._sql = Statements(database, moves_time=clock is not None)
        self._notifications = database.notifications
        self._reported = LoggedKeys()
        self._expects_more = False
        self._pause = _SHORTEST_PAUSE_SECONDS
        self._heard: int | None = None
        self._look_at = self._check_at = 0.0
        self._due: float | None = None
        """Seconds until the next message is due, as far as a look has asked for it."""

    @property
    def wake_up(self) -> str | None:
        """How messages of other processes are noticed: "notifications" or "polling". Known after the first call.

        None for a database that has no notifications.
        """
        dialect = self._database.dialect
        return None if not dialect.notifies else "notifications" if dialect.listens else "polling"

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what waits; see the port. Cancelled, it releases what it has just taken.

        A queue that is deleted later raises QueueMissing within `CHECK_SECONDS`.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        with self._notifications.waiting(self._endpoint, remote=self._clock is None) as rung:
            while True:
                rung.clear()
                heard = self._notifications.count(self._endpoint)
                if wait <= 0 or not self._is_quiet(heard, clock()):
                    if taken := await self._look_and_take(limit):
                        self._pause, self._heard = _SHORTEST_PAUSE_SECONDS, None
                        return taken
                    if clock() >= self._check_at:
                        await self._require_queue()
                        self._check_at = clock() + CHECK_SECONDS
                    self._heard, self._look_at = heard, clock() + self._poll_interval()
                if (left := end - clock()) <= 0:
                    return ()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(self._look_at - clock(), left)):
                        await rung.wait()

    def _is_quiet(self, heard: int, now: float) -> bool:
        """Return whether a look would find nothing, as far as notifications can tell."""
        return self._notifications.is_live and heard == self._heard and now < self._look_at

    def _poll_interval(self) -> float:
        """Return how many seconds to wait for a notification until the next look."""
        pause, self._pause = self._pause, min(self._pause * _GROWTH, _LONGEST_PAUSE_SECONDS)
        return pause if self._due is None else min(self._due, POLL_SECONDS)

    @property
    def _waits_long(self) -> bool:
        return self._notifications.is_live and self._pause >= _LONGEST_PAUSE_SECONDS

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Hand over messages, all in one database transaction; see the port. REFUSED also: a body over `max_body`."""
        fitting = [send for send in sends if self._fits(send)]
        if not fitting:
            return (Answer.REFUSED,) * len(sends)
        async with self._database.writing() as connection:
            routes = await self._routes(connection, fitting)
            rows = [row for send in fitting for row in _rows(send, routes.queues(send), routes.now)]
            if rows:
                await connection.run_sync(self._database.dialect.insert_all, self._sql.messages, rows)
        self._notify({row["queue"] for row in rows})
        for send in fitting:
            if not send.to and not routes.queues(send):
                self.unsubscribed.add(send.message.type)
        return tuple(Answer.TAKEN if self._fits(send) and routes.can_take(send) else Answer.REFUSED for send in sends)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries for good; one that another receiver holds by now is ignored."""
        await self._change(self._sql.settle, deliveries)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries; one that another receiver holds by now is ignored."""
        await self._change(self._sql.give_back, deliveries, **self._clock_shift())
        if deliveries:
            self._notify({self._endpoint})

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        await self._change(self._sql.keep, deliveries, lease=self._lease(), **self._clock_shift())

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Make and end subscriptions; takes no write lock when all is as it should be. Safe in several processes at once."""
        async with self._database.reading() as connection:
            changes = await self._changes(connection, topologies)
        if any(changes):
            async with self._database.writing() as connection:
                insert_absent = self._database.dialect.insert_absent
                await connection.run_sync(insert_absent, self._sql.queues, changes.queues, key=["name"])
                await connection.run_sync(insert_absent, self._sql.subscriptions, changes.subscriptions, key=["event", "queue"])
                if changes.gone:
                    await connection.execute(self._sql.unsubscribe, changes.gone)

    async def subscriptions(self, endpoint: str) -> frozenset[str]:
        columns = self._sql.subscriptions.c
        async with self._database.reading() as connection:
            found = await connection.execute(select(columns.event).where(columns.queue == endpoint))
            return frozenset(found.scalars())

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        asked = {"of": endpoint, **self._clock_shift()}
        async with self._database.reading() as connection:
            declared, waiting, held, delayed = (await connection.execute(self._sql.depth, asked)).one()
        if not declared:
            raise queue_missing(f"queue {endpoint!r}")
        return Depth(waiting=waiting, held=int(held), delayed=int(delayed))  # a sum is a Decimal on MariaDB

    async def _require_queue(self) -> None:
        async with self._database.reading() as connection:
            found = await connection.execute(self._sql.known, {"names": [self._endpoint], **self._clock_shift()})
            if found.first() is None:
                raise queue_missing(f"queue {self._endpoint!r}")

    async def measure_queue(self, endpoint: str, limit: int) -> QueueSample:
        """Look at a queue by its index; see `ports.measurements`. Of what is not visible yet, the earliest comes first."""
        asked = {"of": endpoint, "most": limit, **self._clock_shift()}
        async with self._database.reading() as connection:
            declared, waiting, held, later, now, first = (await connection.execute(self._sql.sample, asked)).one()
        if not declared:
            raise queue_missing(f"queue {endpoint!r}")
        now = int(now)
        age = now - first if isinstance(first, int) and waiting else 0  # a foreign row may have any instant
        return QueueSample(waiting=waiting, held=int(held), delayed=later - int(held), oldest=max(0, min(age, now)))

    async def _look_and_take(self, limit: int) -> tuple[Delivery, ...]:
        """Look before taking where that takes a lock from others. While there is a backlog a look would be wasted."""
        if self._database.dialect.single_writer and not self._expects_more:
            asked = {"of": self._endpoint, **self._clock_shift()}
            async with self._database.reading() as connection:
                if (await connection.execute(self._sql.is_waiting, asked)).first() is None:
                    return ()
        taking = asyncio.ensure_future(self._take(limit))
        try:
            taken = await asyncio.shield(taking)
        except asyncio.CancelledError:
            await self._undo(taking)
            raise
        self._expects_more = len(taken) == limit
        return taken

    async def _take(self, limit: int) -> tuple[Delivery, ...]:
        token = token_hex(8)
        asked = {"of": self._endpoint, "most": limit, "lease": self._lease(), "by": token, **self._clock_shift()}
        async with self._database.writing(durable=False) as connection:
            rows = await connection.run_sync(self._sql.take, asked)
            self._due = None
            if not rows and self._waits_long:
                due = (await connection.execute(self._sql.next_due, asked)).scalar()
                self._due = POLL_SECONDS if due is None else max(1, due) / 1000
        return tuple(
            arrival(QueueReceipt(token, seq), self._endpoint, *_content(headers, body), suspect=leases > 1)
            for seq, leases, headers, body in sorted(map(tuple, rows))  # RETURNING promises no order
        )

    async def _undo(self, taking: "asyncio.Task[tuple[Delivery, ...]]") -> None:
        """Release what was taken for a receiver that has been cancelled; an error leaves it to the end of the lease."""
        with suppress(RetryableError):
            if taken := await taking:
                await self.release(taken)

    async def _change(self, statement: Delete | Update, deliveries: Sequence[Delivery], **parameters: int) -> None:
        if not deliveries:
            return
        async with self._database.writing(durable=False) as connection:
            for token, numbers in _by_token(deliveries):
                await connection.execute(statement, {"by": token, "numbers": numbers, **parameters})

    async def _routes(self, connection: AsyncConnection, sends: Iterable[Send]) -> "Routes":
        commands = sorted({send.to for send in sends if send.to})
        events = sorted({send.message.type for send in sends if not send.to})
        known: set[str] = set()
        subscribers: dict[str, list[str]] = defaultdict(list)
        now = 0
        for names in _chunks(commands):
            for name, then in await connection.execute(self._sql.known, {"names": names, **self._clock_shift()}):
                known.add(name)
                now = then
        for names in _chunks(events):
            for event, queue, then in await connection.execute(self._sql.subscribed, {"names": names, **self._clock_shift()}):
                now = then
                if is_endpoint_name(queue):
                    subscribers[event].append(queue)
                else:
                    self._report_subscriber(event, queue)
        return Routes(frozenset(known), subscribers, now)

    def _report_subscriber(self, event: str, queue: object) -> None:
        """Log a subscription of another program, once in a process: no endpoint can have this name, so nothing reads it."""
        found = ascii(queue)[:SHOWN]
        if self._reported.add(found):
            _log.warning("subscriber ignored: not an endpoint name", extra={"type": event, "subscriber": found})

    async def _changes(self, connection: AsyncConnection, topologies: Sequence[Topology]) -> "TopologyChanges":
        known = set((await connection.execute(select(self._sql.queues.c.name))).scalars())
        columns = self._sql.subscriptions.c
        there = {(event, queue) for event, queue in await connection.execute(select(columns.event, columns.queue))}
        wanted = {(event, topology.endpoint) for topology in topologies for event in topology.events}
        gone = {(event, topology.endpoint) for topology in topologies for event in topology.gone}
        return TopologyChanges(
            queues=[{"name": name} for name in sorted({topology.endpoint for topology in topologies} - known)],
            subscriptions=[{"event": event, "queue": queue} for event, queue in sorted(wanted - there)],
            gone=[{"type": event, "of": queue} for event, queue in sorted(there & gone)],
        )

    def _notify(self, queues: Iterable[str]) -> None:
        if self._clock is None:
            self._notifications.tell(queues)
        else:
            self._notifications.ring(queues)

    def _lease(self) -> int:
        return int((self.traits.lease or LEASE_SECONDS) * 1000)

    def _clock_shift(self) -> dict[str, int]:
        return {} if self._clock is None else {"now": self._clock.now()}

    def _fits(self, send: Send) -> bool:
        return len(send.message.body) <= self.traits.max_body


class TopologyChanges(NamedTuple):
    """What a declaration has to change: rows to insert, and parameters of what to delete."""

    queues: list[dict[str, str]]
    subscriptions: list[dict[str, str]]
    gone: list[dict[str, str]]


class Routes(Struct, frozen=True):
    """Where messages go: the declared queues, and who subscribed to what; `now` is when that was read, by the queue's clock."""

    known: frozenset[str]
    subscribers: Mapping[str, Sequence[str]]
    now: int

    def queues(self, send: Send) -> Sequence[str]:
        if send.to:
            return [send.to] if send.to in self.known else []
        return self.subscribers.get(send.message.type, ())

    def can_take(self, send: Send) -> bool:
        """Return whether a message can be routed; an event always can."""
        return not send.to or send.to in self.known


def _rows(send: Send, queues: Sequence[str], now: int) -> list[dict[str, Any]]:
    if not queues:
        return []
    headers, body = encode(send)
    text = encode_headers(headers)
    row = {"visible_at": max(send.due, now), "leases": 0, "receipt": "", "headers": text, "body": body}
    return [{"queue": queue, **row} for queue in queues]


def _content(headers: object, body: object) -> tuple[Headers, bytes]:
    """Read a row. One that a foreign program wrote wrongly must not hold up the others: it becomes unreadable.

    SQLite stores a value of any type in any column.
    """
    stored = headers.encode() if isinstance(headers, str) else headers
    raw = body.encode() if isinstance(body, str) else body
    if not isinstance(stored, bytes | bytearray | memoryview) or not isinstance(raw, bytes | bytearray | memoryview):
        wrong = f"its headers must be text and its body bytes; they are {type(headers).__name__} and {type(body).__name__}"
        return ((UNREADABLE, wrong), (AS_STORED, repr((headers, body)))), b""
    try:
        return decode_headers(bytes(stored)), bytes(raw)
    except (MsgspecError, ValueError, RecursionError) as error:
        text = bytes(stored).decode("utf-8", "surrogateescape")
        return ((UNREADABLE, f"its headers are not a JSON list of pairs of strings: {error}"), (AS_STORED, text)), bytes(raw)


def _by_token(deliveries: Iterable[Delivery]) -> Iterator[tuple[str, list[int]]]:
    """Group receipts by who took them: one statement each, however many there are."""
    groups: dict[str, list[int]] = defaultdict(list)
    for delivery in deliveries:
        if isinstance(delivery.receipt, QueueReceipt):
            groups[delivery.receipt.token].append(delivery.receipt.number)
    for token, numbers in groups.items():
        for part in _chunks(numbers):
            yield token, part


def _chunks(items: Sequence[_Part]) -> Iterator[list[_Part]]:
    for start in range(0, len(items), NAMES_AT_ONCE):
        yield list(items[start : start + NAMES_AT_ONCE])
