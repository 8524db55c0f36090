"""Reports that a process runs an endpoint, so that operators see it. Messages neither wait for a report nor depend on one."""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Self

from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import OnceOnlyError
from onceonly.model.presence import REPORT_SECONDS, ProcessReport
from onceonly.ports.maintenance import Presence
from onceonly.runtime.environment import Environment, pause
from onceonly.runtime.maintenance.types_elsewhere import TypesElsewhere
from onceonly.runtime.worker.worker import Runner, Worker

LAST_WRITE_SECONDS = 2.0
"""Seconds that a stop waits for the row to be removed."""
VERSION = version("onceonly")
_NAME_LENGTH = 200

_log = EventLogger(logging.getLogger("onceonly.presence"))


class ReportedWorker:
    """A worker whose process is reported at once, then every 10 seconds, and removed when the worker has ended.

    An error is logged once until the next success, and the next report is made at its time. A killed process leaves its row.
    The types that other processes handle are read while a message needs them.
    """

    def __init__(self, runner: Runner, worker: Worker, presence: Presence, *, endpoint: str, environment: Environment) -> None:
        """Run `runner`, and report what `worker`, which may be a part of it, has counted."""
        self._runner, self._worker, self._presence = runner, worker, presence
        self._endpoint, self._timer = endpoint, environment.timer
        self._host = socket.gethostname()[:_NAME_LENGTH]
        self.process = f"{self._host}:{os.getpid()}:{environment.ids.new_id()[:8]}"
        self._fails = False
        self._types: tuple[str, ...] = ()
        self._elsewhere = TypesElsewhere()

    def with_types(self, types: Sequence[str], elsewhere: TypesElsewhere) -> Self:
        """Report that the process handles these types, and read those of others when `elsewhere` is asked for them."""
        self._types, self._elsewhere = tuple(types), elsewhere
        return self

    async def run(self, stop: asyncio.Event) -> None:
        """Run the worker until it ends, however it ends."""
        ended = asyncio.Event()
        self._elsewhere.begin(self._timer)
        reporting = asyncio.create_task(self._report_until(ended))
        reading = asyncio.create_task(self._read_others())
        try:
            await self._runner.run(stop)
        finally:
            ended.set()
            reading.cancel()
            await asyncio.wait([reading])
            self._elsewhere.end()
            with suppress(Exception):  # the row becomes stale, and maintenance deletes it
                async with asyncio.timeout(LAST_WRITE_SECONDS):
                    await reporting  # a report after the removal would bring the row back
                    await self._presence.remove(self.process)

    async def _report_until(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await self._report()
            await pause(REPORT_SECONDS, self._timer, ended)
            await asyncio.sleep(0)  # adapters in memory never wait; others need their turn all the same

    async def _report(self) -> None:
        try:
            await self._presence.report(self._current())
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it
            self._went_bad(error)
        else:
            self._fails = False

    async def _read_others(self) -> None:
        while True:
            await self._elsewhere.wanted()
            try:
                found = await self._presence.read()
            except Exception as error:  # noqa: BLE001 - an outage, however a driver words it
                self._elsewhere.learn((), f"the processes cannot be read ({type(error).__name__}: {error})")
            else:
                self._elsewhere.learn([each for each in found if each.report.process != self.process])

    def _current(self) -> ProcessReport:
        counted = self._worker.report
        counters = {
            "handled": counted.handled,
            "duplicates": counted.known,
            "retried": counted.retried,
            "dead_letters": counted.dead,
            "held": len(self._worker.held),
        }
        return ProcessReport(
            process=self.process,
            host=self._host,
            pid=os.getpid(),
            version=VERSION,
            counters=counters,
            troubles=self._worker.troubles,
            types=self._types,
        )

    def _went_bad(self, error: Exception) -> None:
        if self._fails:
            return  # logged once for each change of state
        self._fails = True
        outage = isinstance(error, OnceOnlyError)
        _log.log(
            logging.WARNING if outage else logging.ERROR,
            "process not reported, will be retried",
            exc_info=None if outage else error,
            extra={"endpoint": self._endpoint, "reason": f"{type(error).__name__}: {error}"},
        )
