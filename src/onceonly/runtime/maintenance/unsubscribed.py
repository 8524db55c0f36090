"""Stores the numbers of events that had no subscriber, so that `onceonly status` shows them."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import OnceOnlyError
from onceonly.ports.maintenance import EventCounts
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.systems.unsubscribed import UnsubscribedEvents

WRITE_INTERVAL_SECONDS = 1.0
LAST_WRITE_SECONDS = 2.0

_log = EventLogger(logging.getLogger("onceonly.events"))


@asynccontextmanager
async def storing_counts(
    events: UnsubscribedEvents, stored: EventCounts, *, endpoint: str, environment: Environment = LIVE
) -> AsyncIterator[None]:
    """Add what was counted to the stored numbers, about once a second and at the end of the block.

    What cannot be stored now is stored later. After a lost answer it may be counted twice. A process that is killed loses the
    counts of its last second.
    """
    ended = asyncio.Event()
    storing = asyncio.create_task(_store_until(ended, events, stored, endpoint=endpoint, environment=environment))
    try:
        yield
    finally:
        ended.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(storing, LAST_WRITE_SECONDS)


async def _store_until(
    ended: asyncio.Event, events: UnsubscribedEvents, stored: EventCounts, *, endpoint: str, environment: Environment
) -> None:
    is_failing = False
    while True:
        is_last = ended.is_set()
        if counts := events.take():
            try:
                await stored.add(counts)
            except Exception as error:  # noqa: BLE001 - an outage, however a driver words it, ends no count
                events.put_back(counts)
                if not is_failing:
                    _log_failure(error, endpoint)
                is_failing = True
            else:
                is_failing = False
        if is_last:
            return
        await pause(WRITE_INTERVAL_SECONDS, environment.timer, ended)
        await asyncio.sleep(0)  # adapters in memory never wait; others need their turn all the same


def _log_failure(error: Exception, endpoint: str) -> None:
    is_bug = not isinstance(error, OnceOnlyError)
    _log.log(
        logging.ERROR if is_bug else logging.WARNING,
        "count of events without subscribers not stored, will be retried",
        exc_info=error if is_bug else None,
        extra={"endpoint": endpoint, "reason": f"{type(error).__name__}: {error}"},
    )
