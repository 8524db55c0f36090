"""Reports that a process runs an endpoint and which types it handles. Operators see it, and other processes read the types."""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import NamedTuple, Protocol, Self

from onceonly.algorithms.settlement import BatchReport
from onceonly.formats.log_events import EventLogger, FailureLog
from onceonly.model.health import REPORT_SECONDS, ProcessReport, ProcessState
from onceonly.model.message import Delivery
from onceonly.ports.maintenance import Backlog, Presence
from onceonly.runtime.environment import Environment, Timer, pause
from onceonly.runtime.maintenance.work_recorder import WorkRecorder
from onceonly.runtime.worker.run_times import RunTimes
from onceonly.runtime.worker.worker import Runner

FRESH_SECONDS = 5.0
"""Seconds for which what was read is used. Afterwards it is read again, if a message needs it."""
NO_REPORTS = "its store has no reports of processes"
LAST_WRITE_SECONDS = 2.0
"""Seconds that a stop waits for the row to be removed."""
BACKLOG_SECONDS = 2.0
"""Seconds that the broker may take to count what waits, once a minute."""
VERSION = version("onceonly")
_NAME_LENGTH = 200
_log = EventLogger(logging.getLogger("onceonly.presence"))


class CountedWork(Protocol):
    """What handles messages, as it is reported: a worker, or what handles those of a host."""

    report: BatchReport

    @property
    def held(self) -> Sequence[Delivery]:
        """What is in work."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong, in words."""

    @property
    def run_times(self) -> RunTimes:
        """The runs of its handlers."""

    async def backlog(self) -> Backlog | None:
        """Ask the broker what waits. None if that is unknown."""


class LiveTypes(NamedTuple):
    """What is known of the other live processes of an endpoint. `problem` is why nothing is, else it is empty."""

    processes: Sequence[ProcessState] = ()
    problem: str = ""

    def takers(self, type_: str) -> tuple[str, ...]:
        return tuple(each.report.process for each in self.processes if type_ in each.report.types)


class TypesElsewhere:
    """The types that other live processes handle, as handlers of this process look them up: at once, without any I/O.

    What reads them runs in the background, in the event loop of the handlers.
    """

    def __init__(self) -> None:
        self._timer: Timer | None = None
        self._wanted = asyncio.Event()
        self._known: tuple[float, LiveTypes] | None = None

    def look(self) -> LiveTypes | None:
        """Return what is known, or None while it is being read. Asks for it to be read."""
        if self._timer is None:
            return LiveTypes(problem=NO_REPORTS)
        if self._known is not None and self._timer.seconds() - self._known[0] < FRESH_SECONDS:
            return self._known[1]
        self._wanted.set()
        return None

    def begin(self, timer: Timer) -> None:
        """Make messages wait for what is read from now on. Called by the reader, in its event loop."""
        self._timer, self._wanted, self._known = timer, asyncio.Event(), None

    def end(self) -> None:
        self._timer = None

    async def wanted(self) -> None:
        await self._wanted.wait()
        self._wanted.clear()

    def learn(self, processes: Sequence[ProcessState], problem: str = "") -> None:
        if self._timer is not None:
            live = tuple(each for each in processes if not each.is_stale)
            self._known = self._timer.seconds(), LiveTypes(live, problem)


class ReportedWorker:
    """A worker whose process is reported at once, then every 10 seconds, and removed when the worker has ended.

    An error is logged once until the next success, and the next report is made at its time. A killed process leaves its row.
    The types that other processes handle are read while a message needs them.
    """

    def __init__(
        self, runner: Runner, worker: CountedWork, presence: Presence, *, endpoint: str, environment: Environment
    ) -> None:
        """Run `runner`, and report what `worker`, which may be a part of it, has counted."""
        self._runner, self._worker, self._presence = runner, worker, presence
        self._timer = environment.timer
        self._recorder = WorkRecorder(environment.clock)
        self._host = socket.gethostname()[:_NAME_LENGTH]
        self.process = f"{self._host}:{os.getpid()}:{environment.ids.new_id()[:8]}"
        self._failures = FailureLog(_log, "process not reported, will be retried", endpoint=endpoint)
        self._types: tuple[str, ...] = ()
        self._elsewhere = TypesElsewhere()

    def with_types(self, types: Sequence[str], elsewhere: TypesElsewhere) -> Self:
        """Report that the process handles these types, and read those of others when `elsewhere` is asked for them."""
        self._types, self._elsewhere = tuple(types), elsewhere
        return self

    async def run(self, stop: asyncio.Event) -> None:
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
                    self._recorder.count(self._worker.report, self._worker.run_times.take())
                    await self._presence.remove(self.process, self._recorder.history)

    async def _report_until(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await self._report()
            await pause(REPORT_SECONDS, self._timer, ended)
            await asyncio.sleep(0)  # adapters in memory never wait; others need their turn all the same

    async def _report(self) -> None:
        await self._ask_broker()
        self._recorder.count(self._worker.report, self._worker.run_times.take())
        report = self._current()
        try:
            is_new = await self._presence.report(report)
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it
            self._failures.failed(error)
        else:
            self._recorder.stored(report.work, is_new=is_new)
            self._failures.succeeded()

    async def _ask_broker(self) -> None:
        """Ask once a minute what waits. A broker that does not answer delays no report: the worker itself reports it."""
        if not self._recorder.asks:
            return
        backlog = None
        with suppress(Exception):
            async with asyncio.timeout(BACKLOG_SECONDS):
                backlog = await self._worker.backlog()
        self._recorder.learn(backlog)

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
            work=self._recorder.history,
        )
