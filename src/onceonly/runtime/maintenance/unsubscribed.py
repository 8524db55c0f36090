"""Stores the numbers of events that had no subscriber, so that `onceonly status` shows them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly.ports.maintenance import EventCounts
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.systems.unsubscribed import UnsubscribedEvents

WRITE_INTERVAL_SECONDS = 1.0
WRITES_FOR_EACH_COLLECTION = 10
"""The broker is asked for delayed events without subscribers about every 10 seconds."""
LAST_WRITE_SECONDS = 2.0

Collect = Callable[[], Awaitable[None]]
_log = EventLogger(logging.getLogger("onceonly.events"))


@asynccontextmanager
async def storing_counts(
    events: UnsubscribedEvents,
    stored: EventCounts | None,
    collect: Collect | None = None,
    *,
    endpoint: str,
    environment: Environment = LIVE,
) -> AsyncIterator[None]:
    """Add what was counted to the stored numbers, about once a second and at the end of the block.

    `collect` adds what the broker has put aside to `events`, about every 10 seconds and at the end. What cannot be stored now
    is stored later. After a lost answer it may be counted twice. A process that is killed loses the counts of its last second.
    Without `stored`, events are only logged.
    """
    ended = asyncio.Event()
    rounds = _Rounds(events, stored, collect, endpoint=endpoint)
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
        self, events: UnsubscribedEvents, stored: EventCounts | None, collect: Collect | None, *, endpoint: str
    ) -> None:
        self._events = events
        self._stored = stored
        self._collect = collect
        self._endpoint = endpoint
        self._fails_to_store = False
        self._fails_to_collect = self._has_collected = False

    async def store(self) -> None:
        counts = self._events.take()
        if not counts or self._stored is None:
            return
        try:
            await self._stored.add(counts)
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it
            self._events.put_back(counts)
            if not self._fails_to_store:
                _log.log(
                    logging.WARNING if isinstance(error, OnceOnlyError) else logging.ERROR,
                    "count of events without subscribers not stored, will be retried",
                    exc_info=None if isinstance(error, OnceOnlyError) else error,
                    extra={"endpoint": self._endpoint, "reason": f"{type(error).__name__}: {error}"},
                )
            self._fails_to_store = True
        else:
            self._fails_to_store = False

    async def collect(self) -> None:
        """Count what the broker has put aside."""
        if self._collect is None:
            return
        try:
            await self._collect()
        except SetupError:
            pass  # the worker itself reports it, and ends
        except Exception as error:  # noqa: BLE001 - the same
            if not self._fails_to_collect:
                outage = logging.WARNING if self._has_collected else logging.DEBUG  # at a start, the worker reports it
                _log.log(
                    outage if isinstance(error, OnceOnlyError) else logging.ERROR,
                    "delayed events without subscribers not counted, will be retried",
                    exc_info=None if isinstance(error, OnceOnlyError) else error,
                    extra={"endpoint": self._endpoint, "reason": f"{type(error).__name__}: {error}"},
                )
            self._fails_to_collect = True
        else:
            self._has_collected, self._fails_to_collect = True, False
