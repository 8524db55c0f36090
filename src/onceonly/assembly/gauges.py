"""Gauges: what is read from databases and brokers, for `/metrics` at most every few seconds, for OpenTelemetry at intervals.

Each part of an endpoint is read separately, on a connection that stays open. A part that does not answer in time has no gauges,
and `onceonly.source.up` is 0: what is unknown is never reported as 0.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

from onceonly.assembly import open_dead_letters, open_read_only, open_transport, shown
from onceonly.assembly.parts import StoreParts
from onceonly.assembly.stores import read_only, refuse_missing
from onceonly.config.endpoint import Settings
from onceonly.model.errors import QueueMissing
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly.ports.measurements import EstimatesClaims, MeasuresLetters, MeasuresQueue, MeasuresRecords
from onceonly.ports.transport import Transport
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.runtime.maintenance.tasks import late_buckets
from onceonly.runtime.metrics import catalog
from onceonly.runtime.metrics.observer import MOST_TYPES, OTHER, CappedNames
from onceonly.runtime.metrics.series import Row
from onceonly.runtime.observe.telemetry import GaugeSink

EVERY_SECONDS = 5.0
"""Seconds between two reads of a part, at least."""
ANSWER_SECONDS = 2.0
"""Seconds that a part may take, its connection included."""
SCRAPE_SECONDS = 3.0
"""Seconds that a scrape waits for a read: less than the answer may take."""
SHADOW_OUTCOMES = ("known", "mismatched", "undecidable")
MOST_QUEUED = 100_001
MOST_RECORDS = 10_001
"""Up to these numbers messages, records and dead letters are counted. The number itself means "or more"."""

Values = dict[Row, float]
Reading = Callable[[Any], Awaitable[Values]]


class GaugePart:
    """One part of an endpoint, such as its store, and what was read from it last."""

    def __init__(
        self,
        endpoint: str,
        name: str,
        opening: Callable[[], AbstractAsyncContextManager[Any]],
        read: Reading,
        *,
        is_whole: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        """Read what `opening` opens. It is opened again after an error, and when what it opened is not whole yet."""
        self.up: Row = (catalog.UP, (endpoint, name))
        self._opening, self._read, self._is_whole = opening, read, is_whole
        self._stack = AsyncExitStack()
        self._opened: Any = None

    async def refresh(self) -> Values:
        """Read it. Never raises because of a server: then only `onceonly.source.up` is there."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if self._opened is None:
                    self._opened = await self._stack.enter_async_context(self._opening())
                values = {self.up: 1.0, **await self._read(self._opened)}
        except Exception:  # noqa: BLE001 - whatever a driver raises: it is down, and the log of the workers says why
            values = {self.up: 0.0}
        if not values[self.up] or not self._is_whole(self._opened):
            await self.close()
        return values

    async def close(self) -> None:
        stack, self._stack, self._opened = self._stack, AsyncExitStack(), None
        with suppress(Exception):
            async with asyncio.timeout(ANSWER_SECONDS):
                await stack.aclose()


class GaugeReader:
    """Reads the parts of all endpoints together, for a scrape, if the last read is old enough."""

    def __init__(self, parts: Sequence[GaugePart], *, every: float = EVERY_SECONDS) -> None:
        self._parts = parts
        self._every = every
        self._values: Values = {}
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def values(self) -> Values:
        """Return the values of the last read, which is at most `every` seconds old.

        A read that takes longer than a scrape may wait ends later. Until then all parts are down.
        """
        now = asyncio.get_running_loop().time()
        if self._read_at is None or now - self._read_at >= self._every:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._refresh())
            # who gives up does not end it for the others, and `close` ends no scrape
            done, _ = await asyncio.wait([self._reading], timeout=SCRAPE_SECONDS)
            if not done:
                return {part.up: 0.0 for part in self._parts}
        return self._values

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        for part in self._parts:
            await part.close()

    async def _refresh(self) -> None:
        self._values = await read_together(self._parts)
        self._read_at = asyncio.get_running_loop().time()


class GaugeLoop:
    """Reads the parts of one endpoint at intervals, and shows them to a sink. A runner, next to the worker."""

    def __init__(self, settings: Settings, events: Sequence[str], sink: GaugeSink, *, environment: Environment) -> None:
        """Read what these settings name; `events` are those that the endpoint subscribes to."""
        self._name, self._fixed, self._sink = settings.name, fixed([settings]), sink
        self._parts, self._timer = parts_of(settings, events), environment.timer

    async def run(self, stop: asyncio.Event) -> None:
        """Read until `stop` is set. After that the endpoint has no gauges here."""
        try:
            while not stop.is_set():
                read = await read_together(self._parts)
                self._sink.show(self._name, {**self._fixed, **read})
                await pause(self._sink.every, self._timer, stop)
                await asyncio.sleep(0)  # timers of tests never wait; others need their turn all the same
        finally:
            self._sink.show(self._name, {})
            for part in self._parts:
                await part.close()


async def read_together(parts: Sequence[GaugePart]) -> Values:
    found = await asyncio.gather(*(part.refresh() for part in parts))
    return {row: value for values in found for row, value in values.items()}


def fixed(settings: Iterable[Settings]) -> Values:
    """Return what follows from the settings of endpoints. Alerts compare gauges with it."""
    values: Values = {}
    for each in settings:
        values[catalog.INTERVAL, (each.name,)] = each.interval.total_seconds()
        if each.retention is not None:
            values[catalog.RETENTION, (each.name,)] = each.retention.total_seconds()
    return values


@asynccontextmanager
async def reading_gauges(endpoints: Sequence[tuple[Settings, Sequence[str]]]) -> AsyncIterator[GaugeReader]:
    """Read the gauges of these endpoints, given with the events that each subscribes to."""
    reader = GaugeReader([part for settings, events in endpoints for part in parts_of(settings, events)])
    try:
        yield reader
    finally:
        await reader.close()


def parts_of(settings: Settings, events: Sequence[str]) -> list[GaugePart]:
    """List what can be read of an endpoint. What is in the memory of its process cannot be."""
    places, name = settings.places, settings.name
    parts: list[GaugePart] = []
    if places.transport.is_shared:
        opening = lambda: open_transport(read_only(settings.transport), name)  # noqa: E731 - raises where the file is missing
        parts.append(GaugePart(name, "transport", opening, partial(_read_queue, name, events)))
    if settings.store_plan.has_tables:
        # the ring is known once a process has cut time
        is_whole = lambda opened: opened.ring is not None or settings.plan.history is None  # noqa: E731 - one use
        reading = partial(_read_store, settings, CappedNames(MOST_TYPES, OTHER))
        parts.append(GaugePart(name, "store", partial(_open_store, settings), reading, is_whole=is_whole))
    letters_in = settings.store if settings.dead_letters is None else settings.dead_letters
    if places.dead_letters.is_shared:
        opening_letters = lambda: open_dead_letters(read_only(letters_in))  # noqa: E731 - the same
        parts.append(GaugePart(name, "dead letters", opening_letters, partial(_read_letters, name)))
    return parts


@asynccontextmanager
async def _open_store(settings: Settings) -> AsyncIterator[StoreParts]:
    refuse_missing(settings.store)
    async with open_read_only(settings) as opened:
        yield opened


async def _read_queue(name: str, events: Sequence[str], transport: Transport) -> Values:
    try:
        if not isinstance(transport, MeasuresQueue):
            depth = await transport.depth(name, events)
            return _states(name, depth.waiting, depth.held, depth.delayed)
        sample = await transport.measure_queue(name, MOST_QUEUED)
    except QueueMissing:  # it has never run: there is nothing to say about it
        return {}
    states = _states(name, sample.waiting, sample.held, sample.delayed)
    return {**states, (catalog.QUEUE_OLDEST, (name,)): sample.oldest / 1000}


def _states(name: str, waiting: int, held: int, delayed: int) -> Values:
    numbers = {"waiting": waiting, "held": held, "delayed": delayed}
    return {(catalog.QUEUE_MESSAGES, (name, state)): number for state, number in numbers.items()}


async def _read_store(settings: Settings, type_of: CappedNames, opened: StoreParts) -> Values:
    name, store = settings.name, shown(settings.store)
    values: Values = {}
    if isinstance(opened.pending, MeasuresRecords):
        records = await opened.pending.measure_records(MOST_RECORDS)
        values[catalog.PENDING, (name,)] = records.count
        values[catalog.PENDING_OLDEST, (name,)] = _age(records.oldest)
    journal = await opened.journals.read() if opened.journals is not None else None
    for task, run in journal.tasks.items() if journal is not None else ():
        values[catalog.MAINTENANCE, (name, task)] = run.at / 1000
    if opened.ring is not None:
        values[catalog.BUCKETS_LATE, (store,)] = len(await late_buckets(opened.ring))
        estimate = await opened.ring.estimate() if isinstance(opened.ring, EstimatesClaims) else None
        if estimate is not None:
            values[catalog.CLAIMS, (store,)] = estimate
    counts = await opened.unsubscribed.read() if opened.unsubscribed is not None else {}
    for kind, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):  # the first ones keep their rows
        row = catalog.UNSUBSCRIBED, (name, type_of(kind))
        values[row] = values.get(row, 0) + count
    if opened.shadow is not None:
        shadow = await opened.shadow.stored.read()
        values |= {(catalog.SHADOW, (name, outcome)): shadow.get(outcome, 0) for outcome in SHADOW_OUTCOMES}
    return values


async def _read_letters(name: str, letters: DeadLetters) -> Values:
    if isinstance(letters, MeasuresLetters):
        sample = await letters.measure_letters(name, MOST_RECORDS)
        count, oldest = sample.count, sample.oldest
    else:
        chosen = Filter(endpoint=name)
        count = await letters.count(chosen)
        oldest = next((letter.at for letter in await letters.page(chosen, limit=1)), 0)
    return {(catalog.DEAD_LETTERS, (name,)): count, (catalog.DEAD_LETTERS_OLDEST, (name,)): _age(oldest)}


def _age(stored_at: int) -> float:
    return max(0, LIVE.clock.now() - stored_at) / 1000 if stored_at else 0.0
