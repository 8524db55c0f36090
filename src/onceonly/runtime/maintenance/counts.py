"""Counts for people that outlive the process, such as messages dropped without a live token, or events without a subscriber."""

import asyncio
import logging
from collections import Counter as Counts
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from onceonly.algorithms.settlement import BatchReport
from onceonly.formats.log_events import EventLogger, FailureLog
from onceonly.model.errors import SetupError
from onceonly.ports.maintenance import Counter, EventCounts
from onceonly.runtime.environment import LIVE, Environment, pause

WRITE_INTERVAL_SECONDS = 1.0
"""Seconds between two writes, at least."""
LAST_WRITE_SECONDS = 2.0
"""Seconds that the last write may take, at the end."""
WRITES_FOR_EACH_COLLECTION = 10
"""The broker is asked for delayed events without subscribers about every 10 seconds."""

Collect = Callable[[], Awaitable[None]]
_drops_log = EventLogger(logging.getLogger("onceonly.drops"))
_events_log = EventLogger(logging.getLogger("onceonly.events"))


def dropped(report: BatchReport, *, in_store: bool) -> int:
    """Return how many messages came without a live token. With tokens in the store, these are the idle ones."""
    return report.dropped + (report.idle if in_store else 0)


class CountedRunner(Protocol):
    """A worker, or what handles messages of a host, as far as it is counted."""

    report: BatchReport

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set."""


class DroppedCounter:
    """A worker that has the messages it dropped counted, about once a second and at its end.

    A copy of a message that was handled has no live token any more, and is dropped. So is every message once the tokens
    themselves are lost, and nothing else would show it. Copies that come together count once, and those that come with the
    first one, whose token is live, not at all.

    What cannot be written now is written later; after an answer that was lost it may count twice, never not at all.
    """

    def __init__(
        self, worker: CountedRunner, counter: Counter, *, endpoint: str, in_store: bool, environment: Environment = LIVE
    ) -> None:
        """Run this worker, and add to this counter; `in_store` shows whether the tokens are in the store's own database."""
        self.worker = worker
        self._in_store = in_store
        self._counter = counter
        self._endpoint = endpoint
        self._environment = environment
        self._written = 0
        self._failures = FailureLog(_drops_log, "count of dropped messages not stored, will be retried", endpoint=endpoint)

    async def run(self, stop: asyncio.Event) -> None:
        """Run the worker until it ends, however it ends; then write the rest."""
        ended = asyncio.Event()
        counting = asyncio.create_task(self._count_until(ended))
        try:
            await self.worker.run(stop)
        finally:
            ended.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(counting, LAST_WRITE_SECONDS)

    async def _count_until(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await pause(WRITE_INTERVAL_SECONDS, self._environment.timer, ended)
            await asyncio.sleep(0)  # adapters in memory never wait; others need their turn all the same
            await self._write()
        await self._write()  # what was dropped during the last one

    async def _write(self) -> None:
        fresh = dropped(self.worker.report, in_store=self._in_store) - self._written
        if not fresh:
            return
        try:
            await self._counter.add(fresh)
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it, ends no count
            self._failures.failed(error)
            return
        self._written += fresh
        self._failures.succeeded()
        _drops_log.info("messages dropped: no live token", extra={"endpoint": self._endpoint, "count": fresh})


class TakesCounts(Protocol):
    """What counts in memory until the counts are stored."""

    def take(self) -> Counts[str]:
        """Return what was counted since the last call."""

    def put_back(self, counts: Counts[str]) -> None:
        """Add what could not be stored."""


@asynccontextmanager
async def storing_counts(
    events: TakesCounts,
    stored: EventCounts | None,
    collect: Collect | None = None,
    *,
    endpoint: str,
    environment: Environment = LIVE,
    failures: FailureLog | None = None,
) -> AsyncIterator[None]:
    """Add what was counted to the stored numbers, about once a second and at the end of the block.

    `collect` adds what the broker has put aside to `events`, about every 10 seconds and at the end. What cannot be stored now
    is stored later. After a lost answer it may be counted twice. A process that is killed loses the counts of its last second.
    Without `stored`, events are only logged. `failures` is for counts of something else than events.
    """
    ended = asyncio.Event()
    rounds = _Rounds(events, stored, collect, endpoint=endpoint, failures=failures)
    storing = asyncio.create_task(_run_until(ended, rounds, environment))
    try:
        yield
    finally:
        ended.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(storing, LAST_WRITE_SECONDS)


async def _run_until(ended: asyncio.Event, rounds: "_Rounds", environment: Environment) -> None:
    number = 0
    while True:
        is_last = ended.is_set()
        await rounds.store()
        if is_last or number % WRITES_FOR_EACH_COLLECTION == 0:
            await rounds.collect()
            await rounds.store()
        if is_last:
            return
        number += 1
        await pause(WRITE_INTERVAL_SECONDS, environment.timer, ended)
        await asyncio.sleep(0)  # adapters in memory never wait; others need their turn all the same


class _Rounds:
    """What each round does. An error does not end the count, and is logged once until the next success."""

    def __init__(
        self,
        events: TakesCounts,
        stored: EventCounts | None,
        collect: Collect | None,
        *,
        endpoint: str,
        failures: FailureLog | None = None,
    ) -> None:
        self._events = events
        self._stored = stored
        self._collect = collect
        self._has_collected = False
        self._storing = failures or FailureLog(
            _events_log, "count of events without subscribers not stored, will be retried", endpoint=endpoint
        )
        self._collecting = FailureLog(
            _events_log, "delayed events without subscribers not counted, will be retried", endpoint=endpoint
        )

    async def store(self) -> None:
        counts = self._events.take()
        if not counts or self._stored is None:
            return
        try:
            await self._stored.add(counts)
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it
            self._events.put_back(counts)
            self._storing.failed(error)
        else:
            self._storing.succeeded()

    async def collect(self) -> None:
        if self._collect is None:
            return
        try:
            await self._collect()
        except SetupError:
            pass  # the worker itself reports it, and ends
        except Exception as error:  # noqa: BLE001 - the same
            # at a start, the worker reports an outage
            self._collecting.failed(error, level=logging.WARNING if self._has_collected else logging.DEBUG)
        else:
            self._has_collected = True
            self._collecting.succeeded()
