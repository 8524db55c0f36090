"""The janitor: when to clean up, and in which process. What is done is in `tasks`; it decides nothing about a message.

look      read the journal, which all processes share: is anything due?
lead      become the one leader, or leave it to the leader
do        the tasks that are due, one after the other; one that fails keeps no other from being done
note      write down what was done, how long it took, and what fails
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from math import inf

from msgspec.structs import replace

from onceonly.formats.log_events import EventLogger, FailureLog
from onceonly.model.errors import OnceOnlyError, WrongEventLoop, error_text
from onceonly.model.maintenance_journal import RETRY_SECONDS, LateBucket, MaintenanceJournal, MaintenanceReport, TaskRun
from onceonly.ports.bundle import Ports
from onceonly.runtime.background import run_until_stopped
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.runtime.maintenance.tasks import PAGE, BucketRotation, MaintenanceTask, tasks_of
from onceonly.runtime.maintenance.unmaintained import MaintenanceWatch
from onceonly.runtime.observe.telemetry import NO_TASK_SPANS, TaskSpans
from onceonly.runtime.worker.backpressure import Backpressure

SHORTEST_INTERVAL_SECONDS = 1.0
"""Seconds between two rounds, however often one is requested."""

_log = EventLogger(logging.getLogger("onceonly.janitor"))


class MaintenanceLoop:
    """Keeps what one endpoint leaves behind from growing, until it is stopped.

    One of all processes does it at a time; every one looks, at moments spread by chance, and so another takes over when the
    leader dies. An outage makes it wait and try again, forever; nothing else waits for it.
    """

    def __init__(
        self, ports: Ports, *, grace: float, environment: Environment = LIVE, spans: TaskSpans = NO_TASK_SPANS
    ) -> None:
        """Prepare to run; `grace` is how long, in seconds, a stop waits for what is in work."""
        self._ports = ports
        self._maintenance = ports.maintenance
        self._grace = grace
        self._spans = spans
        self._environment = environment
        self._buckets = BucketRotation(self._maintenance.ring) if self._maintenance.ring is not None else None
        self._tasks = tuple(tasks_of(ports, self._buckets, environment.clock))
        self._rest = min(task.every for task in self._tasks)
        self._backpressure = Backpressure(PAGE, environment.random)
        self._rung = asyncio.Event()
        self._asked = False
        self._until, self._is_cut_off = inf, False
        self._has_taken_over = False
        self._failures = FailureLog(_log, "janitor cannot run, retrying with backoff", endpoint=ports.endpoint, every_bug=True)
        self._journal: MaintenanceJournal | None = None
        self._troubles: tuple[str, ...] = ()
        self._watch = MaintenanceWatch(ports.endpoint, retention=ports.maintenance.retention, clock=environment.clock)

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong with the maintenance of the endpoint, in words, as of the last round."""
        return self._troubles

    def ask(self) -> None:
        """Ask for a round soon: a message waits for a bucket. Awaits nothing; in the janitor's event loop."""
        self._asked = True
        self._rung.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then finish what is in work within the grace time.

        Raises WrongEventLoop, which is the same in each round.
        """
        try:
            await run_until_stopped(self._run_rounds(stop), stop, rung=self._rung, grace=self._grace)
        except WrongEventLoop as error:
            _log.error("janitor failed", extra=self._extra(reason=str(error)))
            raise

    async def clean_up(self) -> MaintenanceJournal | None:
        """Do all tasks now, due or not; returns the journal of it, None if another process does them.

        Raises CommitFailed, OutcomeUnknown when it could not be written down.
        """
        return await self._lead(lambda _task, _journal: True)

    async def run_due(self, seconds: float) -> float:
        """Do what is due, for at most `seconds`, in a process without a loop. Returns after how many the next round is due.

        Each task has half of the time that is left, so that none keeps the others from being done. One that takes longer is
        cancelled, and stays due. Raises WrongEventLoop.
        """
        self._until, self._is_cut_off = self._environment.timer.seconds() + seconds, False
        try:
            async with asyncio.timeout(seconds):
                if not self._has_taken_over:
                    await self._take_over()
                    self._has_taken_over = True
                rest = await self._run_round()
                return SHORTEST_INTERVAL_SECONDS if self._is_cut_off else rest
        except TimeoutError:
            return SHORTEST_INTERVAL_SECONDS
        finally:
            self._until = inf

    async def run_once(self, seconds: float) -> MaintenanceReport:
        """Do what is due, for at most `seconds`, also where it is left to other processes. Time is shared as in `run_due`.

        Raises CommitFailed, OutcomeUnknown if the store does not answer; WrongEventLoop.
        """
        began, self._is_cut_off = self._environment.clock.now(), False
        self._until = self._environment.timer.seconds() + seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                journal = await self._lead(self._is_due)
        except TimeoutError:
            if not limit.expired():
                raise
            return MaintenanceReport(troubles=("its time was over before it was done",))
        finally:
            self._until = inf
        if journal is None:
            return MaintenanceReport(troubles=("another process is doing it",))
        tasks = {name: run.count for name, run in journal.tasks.items() if run.at >= began}
        cut_off = ("its time was over before it was done",) if self._is_cut_off else ()
        return MaintenanceReport(tasks=tasks, troubles=(*_troubles_of(journal), *cut_off))

    async def _run_rounds(self, stop: asyncio.Event) -> None:
        timer, fraction = self._environment.timer, self._environment.random.fraction
        await self._take_over()
        await pause(self._rest * fraction(), timer, self._rung)  # not all processes at once
        while not stop.is_set():
            self._rung.clear()
            seconds = await self._run_round()
            await asyncio.sleep(0)  # adapters in memory never wait; signals need their turn all the same
            await pause(min(SHORTEST_INTERVAL_SECONDS, seconds), timer, stop)
            await pause(seconds - SHORTEST_INTERVAL_SECONDS, timer, self._rung)

    async def _take_over(self) -> None:
        """Note when this process took over after a long break, so that tasks are not overdue at once."""
        journals, now = self._maintenance.journals, self._environment.clock.now
        if journals is None or not self._maintenance.leads:
            return
        try:
            journal = await journals.read()
            if journal is None or not journal.overdue(now()):
                return
            async with self._leading() as is_leader:
                journal = await journals.read() if is_leader else None
                if journal is not None and journal.overdue(now()):
                    await journals.write(replace(journal, since=now()))
        except WrongEventLoop:
            raise
        except Exception as error:  # noqa: BLE001 - as in a round
            self._failures.failed(error)

    async def _run_round(self) -> float:
        """Do what is due. Returns how long to rest."""
        asked, self._asked = self._asked, False

        def is_due(task: MaintenanceTask, journal: MaintenanceJournal | None) -> bool:
            return (asked and task.urgent) or self._is_due(task, journal)

        try:
            journal = await self._read()
            if self._maintenance.leads and any(is_due(task, journal) for task in self._tasks):
                journal = await self._lead(is_due) or journal
            elif (
                journal is None and self._maintenance.journals is not None
            ):  # others shall know for how long this endpoint keeps
                await self._maintenance.journals.write(self._new_journal())
        except WrongEventLoop:
            raise
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it, kills no janitor
            self._failures.failed(error)
            return self._backpressure.after_outage()
        self._log_recovery()
        if not self._maintenance.leads:  # nothing here does it when no other process does
            self._watch.note(journal)
            self._troubles = (self._watch.reason,) if self._watch.reason else ()
        else:
            self._troubles = _troubles_of(journal)
        rest = min(self._rest, RETRY_SECONDS) if journal is not None and journal.is_failing() else self._rest
        return rest * (1 + self._environment.random.fraction() / 2)

    def _is_due(self, task: MaintenanceTask, journal: MaintenanceJournal | None) -> bool:
        return journal is None or journal.is_due(task.name, task.every, self._environment.clock.now())

    async def _lead(self, is_due: Callable[[MaintenanceTask, MaintenanceJournal | None], bool]) -> MaintenanceJournal | None:
        async with self._leading() as is_leader:
            if not is_leader:
                return None
            journal = await self._read()  # whoever led until now may have done it all
            due = [task for task in self._tasks if is_due(task, journal)]
            return await self._run_tasks(due, journal) if due else journal

    async def _run_tasks(self, due: Sequence[MaintenanceTask], journal: MaintenanceJournal | None) -> MaintenanceJournal:
        known = {task.name for task in self._tasks}
        before = journal.tasks if journal is not None else {}
        done = {name: each for name, each in before.items() if name in known}
        for task in due:
            ran = await self._run_within(task, before.get(task.name))
            if ran is not None:
                done[task.name] = ran
        late = self._buckets.late if self._buckets is not None else ()
        noted = replace(self._new_journal(), by=f"{socket.gethostname()}:{os.getpid()}", tasks=done, late=late)
        self._log_late(noted.late, journal.late if journal is not None else ())
        if self._maintenance.journals is not None:
            await self._maintenance.journals.write(noted)
        self._journal = noted
        return noted

    def _new_journal(self) -> MaintenanceJournal:
        now, maintenance = self._environment.clock.now(), self._maintenance
        return MaintenanceJournal(at=now, interval=round(self._rest * 1000), retention=maintenance.retention)

    async def _run_within(self, task: MaintenanceTask, before: TaskRun | None) -> TaskRun | None:
        """Do one task. Returns None if the time of `run_due` was over before: then it stays due."""
        if self._until == inf:
            return await self._run_task(task, before)
        limit = asyncio.timeout((self._until - self._environment.timer.seconds()) / 2)
        try:
            async with limit:
                return await self._run_task(task, before)
        except TimeoutError:
            if not limit.expired():
                raise
            self._is_cut_off = True
            return None

    async def _run_task(self, task: MaintenanceTask, before: TaskRun | None) -> TaskRun:
        """Do one task, portion by portion. Returns its outcome. Raises WrongEventLoop, and nothing else."""
        timer, now = self._environment.timer, self._environment.clock.now
        began, count = timer.seconds(), 0
        try:
            with self._spans.task(task.name):
                count = some = await task.once()
                while some >= PAGE:
                    some = await task.once()
                    count += some
        except WrongEventLoop:
            raise
        except Exception as error:  # noqa: BLE001 - an outage or a bug of one task keeps no other from being done
            since = before.failing_since if before is not None and before.failing_since else now()
            done = TaskRun(at=now(), count=count, failing_since=since, reason=error_text(error))
            done = replace(done, took=round((timer.seconds() - began) * 1000))
            self._log_failed(task, done, error, is_new=since == done.at or before is None)
            return done
        done = TaskRun(at=now(), took=round((timer.seconds() - began) * 1000), count=count)
        self._log_done(task, done, was_failing=before is not None and before.failing_since > 0)
        return done

    async def _read(self) -> MaintenanceJournal | None:
        journals = self._maintenance.journals
        return await journals.read() if journals is not None else self._journal

    def _leading(self) -> AbstractAsyncContextManager[bool]:
        leader = self._maintenance.leader
        return nullcontext(enter_result=True) if leader is None else leader.leading()

    def _log_done(self, task: MaintenanceTask, done: TaskRun, *, was_failing: bool) -> None:
        extra = self._extra(task=task.name, count=done.count, milliseconds=done.took)
        if was_failing:
            _log.info("janitor task recovered", extra=extra)
        elif done.count:
            _log.info("janitor task done", extra=extra)

    def _log_failed(self, task: MaintenanceTask, done: TaskRun, error: Exception, *, is_new: bool) -> None:
        bug = not isinstance(error, OnceOnlyError)
        if is_new or bug:  # said once for each change of state, but a bug is said every time
            level = logging.ERROR if bug else logging.WARNING
            extra = self._extra(task=task.name, reason=done.reason)
            _log.log(level, "janitor task failing", exc_info=error if bug else None, extra=extra)

    def _log_late(self, late: Sequence[LateBucket], before: Sequence[LateBucket]) -> None:
        known = {(bucket.number, bucket.stops) for bucket in before}
        for bucket in late:
            if (bucket.number, bucket.stops) in known:
                continue
            extra = self._extra(bucket=bucket.number, seconds=bucket.late // 1000, reason=bucket.reason)
            if bucket.stops:
                _log.warning("ALARM: time bucket late, messages delayed", extra=extra)
            else:
                _log.warning("time bucket late", extra=extra)
        if before and not late:
            _log.info("time buckets no longer late", extra=self._extra())

    def _log_recovery(self) -> None:
        self._backpressure.after_receiving()
        if self._failures.succeeded():
            _log.info("janitor recovered", extra=self._extra())

    def _extra(self, **fields: object) -> dict[str, object]:
        return {"endpoint": self._ports.endpoint, **fields}


def _troubles_of(journal: MaintenanceJournal | None) -> tuple[str, ...]:
    """Return what fails and what is late, in words, as of when the journal was written."""
    if journal is None:
        return ()
    return tuple(f"{trouble.part}: {trouble.reason}" for trouble in journal.troubles(journal.at))
