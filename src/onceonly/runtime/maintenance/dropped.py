"""The tally of what a worker dropped, written down where it outlives the process.

A copy of a message that was handled has no live token any more, and is dropped: that is how tokens work. So is every message
once the tokens themselves are lost, and nothing else would show it. The number is for people. Copies that come together count
once, and those that come with the first one, whose token is live, not at all.
"""

import asyncio
import logging
from contextlib import suppress

from onceonly.algorithms.delivery import BatchReport
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import OnceOnlyError
from onceonly.ports.maintenance import Counter
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.runtime.worker.worker import Worker

WRITE_INTERVAL_SECONDS = 1.0
"""Seconds between two writes, at least."""
LAST_WRITE_SECONDS = 2.0
"""Seconds that the last write may take, at the end."""

_log = EventLogger(logging.getLogger("onceonly.drops"))


def dropped(report: BatchReport, *, in_store: bool) -> int:
    """Return how many messages came without a live token. With tokens in the store, these are the idle ones."""
    return report.dropped + (report.idle if in_store else 0)


class DroppedCounter:
    """A worker that has the messages it dropped counted, about once a second and at its end.

    What cannot be written now is written later; after an answer that was lost it may count twice, never not at all.
    """

    def __init__(
        self, worker: Worker, counter: Counter, *, endpoint: str, in_store: bool, environment: Environment = LIVE
    ) -> None:
        """Run this worker, and add to this counter; `in_store` shows whether the tokens are in the store's own database."""
        self.worker = worker
        self._in_store = in_store
        self._counter = counter
        self._endpoint = endpoint
        self._surroundings = environment
        self._written = 0
        self._trouble = False

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
            await pause(WRITE_INTERVAL_SECONDS, self._surroundings.timer, ended)
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
            self._went_bad(error)
            return
        self._written += fresh
        self._trouble = False
        _log.info("messages dropped: no live token", extra={"endpoint": self._endpoint, "count": fresh})

    def _went_bad(self, error: Exception) -> None:
        if self._trouble:
            return  # said once for each change of state
        self._trouble = True
        bug = not isinstance(error, OnceOnlyError)
        _log.log(
            logging.ERROR if bug else logging.WARNING,
            "count of dropped messages not stored, will be retried",
            exc_info=error if bug else None,
            extra={"endpoint": self._endpoint, "reason": f"{type(error).__name__}: {error}"},
        )
