"""The janitor: when to clean up, and in which process. What is done is in `chores`; it decides nothing about a message.

look      read the journal, which all processes share: is anything due?
lead      become the one leader, or leave it to the leader
do        the chores that are due, one after the other; one that fails keeps no other from being done
note      write down what was done, how long it took, and what fails
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from msgspec.structs import replace

from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import OnceOnlyError, WrongEventLoop
from onceonly.model.journal import RETRY_SECONDS, Journal, LateBucket, TaskRun
from onceonly.ports.bundle import Ports
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.runtime.maintenance.tasks import PAGE, BucketRotation, MaintenanceTask, tasks_of
from onceonly.runtime.observe.telemetry import NO_TASK_SPANS, TaskSpans
from onceonly.runtime.worker.backpressure import Backpressure
from onceonly.runtime.worker.stoppable import run_until_stopped

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
        self._surroundings = environment
        self._buckets = BucketRotation(self._maintenance.ring) if self._maintenance.ring is not None else None
        self._tasks = tuple(tasks_of(ports, self._buckets, environment.clock))
        self._rest = min(chore.every for chore in self._tasks)
        self._backpressure = Backpressure(PAGE, environment.chance)
        self._rung = asyncio.Event()
        self._asked = False
        self._trouble = False
        self._journal: Journal | None = None

    def ask(self) -> None:
        """Ask for a round soon: a message waits for a bucket. Awaits nothing; in the janitor's event loop."""
        self._asked = True
        self._rung.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then finish what is in work within the grace time.

        Raises WrongEventLoop, which is the same in each round.
        """
        try:
            await run_until_stopped(self._turn_until(stop), stop, rung=self._rung, grace=self._grace)
        except WrongEventLoop as error:
            _log.error("janitor failed", extra=self._extra(reason=str(error)))
            raise

    async def clean_up(self) -> Journal | None:
        """Do all chores now, due or not; returns the journal of it, None if another process does them.

        Raises CommitFailed, OutcomeUnknown when it could not be written down.
        """
        return await self._lead(lambda _chore, _journal: True)

    async def _turn_until(self, stop: asyncio.Event) -> None:
        timer, fraction = self._surroundings.timer, self._surroundings.chance.fraction
        await self._take_over()
        await pause(self._rest * fraction(), timer, self._rung)  # not all processes at once
        while not stop.is_set():
            self._rung.clear()
            seconds = await self._turn()
            await asyncio.sleep(0)  # adapters in memory never wait; signals need their turn all the same
            await pause(min(SHORTEST_INTERVAL_SECONDS, seconds), timer, stop)
            await pause(seconds - SHORTEST_INTERVAL_SECONDS, timer, self._rung)

    async def _take_over(self) -> None:
        """Note when this process took over after a long break, so that tasks are not overdue at once."""
        journals, now = self._maintenance.journals, self._surroundings.clock.now
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
            self._went_bad(error)

    async def _turn(self) -> float:
        """Do what is due; gives how long to rest."""
        asked, self._asked = self._asked, False
        now = self._surroundings.clock.now

        def is_due(chore: MaintenanceTask, journal: Journal | None) -> bool:
            return (asked and chore.urgent) or journal is None or journal.is_due(chore.name, chore.every, now())

        try:
            journal = await self._read()
            if self._maintenance.leads and any(is_due(chore, journal) for chore in self._tasks):
                journal = await self._lead(is_due) or journal
            elif (
                journal is None and self._maintenance.journals is not None
            ):  # others shall know for how long this endpoint keeps
                await self._maintenance.journals.write(self._blank())
        except WrongEventLoop:
            raise
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it, kills no janitor
            self._went_bad(error)
            return self._backpressure.after_outage()
        self._recovered()
        rest = min(self._rest, RETRY_SECONDS) if journal is not None and journal.is_failing() else self._rest
        return rest * (1 + self._surroundings.chance.fraction() / 2)

    async def _lead(self, is_due: Callable[[MaintenanceTask, Journal | None], bool]) -> Journal | None:
        async with self._leading() as is_leader:
            if not is_leader:
                return None
            journal = await self._read()  # whoever led until now may have done it all
            due = [chore for chore in self._tasks if is_due(chore, journal)]
            return await self._do(due, journal) if due else journal

    async def _do(self, due: Sequence[MaintenanceTask], journal: Journal | None) -> Journal:
        """Do chores, and write down how they went."""
        known = {chore.name for chore in self._tasks}
        before = journal.chores if journal is not None else {}
        done = {name: each for name, each in before.items() if name in known}
        for chore in due:
            done[chore.name] = await self._once(chore, before.get(chore.name))
        late = self._buckets.late if self._buckets is not None else ()
        noted = replace(self._blank(), by=f"{socket.gethostname()}:{os.getpid()}", chores=done, late=late)
        self._tell_late(noted.late, journal.late if journal is not None else ())
        if self._maintenance.journals is not None:
            await self._maintenance.journals.write(noted)
        self._journal = noted
        return noted

    def _blank(self) -> Journal:
        now, maintenance = self._surroundings.clock.now(), self._maintenance
        return Journal(at=now, interval=round(self._rest * 1000), retention=maintenance.retention)

    async def _once(self, chore: MaintenanceTask, before: TaskRun | None) -> TaskRun:
        """Do one chore, portion by portion. Returns its outcome. Raises WrongEventLoop, and nothing else."""
        timer, now = self._surroundings.timer, self._surroundings.clock.now
        began, count = timer.seconds(), 0
        try:
            with self._spans.task(chore.name):
                count = some = await chore.once()
                while some >= PAGE:
                    some = await chore.once()
                    count += some
        except WrongEventLoop:
            raise
        except Exception as error:  # noqa: BLE001 - an outage or a bug of one chore keeps no other from being done
            since = before.failing_since if before is not None and before.failing_since else now()
            done = TaskRun(at=now(), count=count, failing_since=since, reason=f"{type(error).__name__}: {error}")
            done = replace(done, took=round((timer.seconds() - began) * 1000))
            self._tell_failed(chore, done, error, is_new=since == done.at or before is None)
            return done
        done = TaskRun(at=now(), took=round((timer.seconds() - began) * 1000), count=count)
        self._tell_done(chore, done, was_failing=before is not None and before.failing_since > 0)
        return done

    async def _read(self) -> Journal | None:
        journals = self._maintenance.journals
        return await journals.read() if journals is not None else self._journal

    def _leading(self) -> AbstractAsyncContextManager[bool]:
        leader = self._maintenance.leader
        return nullcontext(enter_result=True) if leader is None else leader.leading()

    def _tell_done(self, chore: MaintenanceTask, done: TaskRun, *, was_failing: bool) -> None:
        extra = self._extra(task=chore.name, count=done.count, milliseconds=done.took)
        if was_failing:
            _log.info("janitor task recovered", extra=extra)
        elif done.count:
            _log.info("janitor task done", extra=extra)

    def _tell_failed(self, chore: MaintenanceTask, done: TaskRun, error: Exception, *, is_new: bool) -> None:
        bug = not isinstance(error, OnceOnlyError)
        if is_new or bug:  # said once for each change of state, but a bug is said every time
            level = logging.ERROR if bug else logging.WARNING
            extra = self._extra(task=chore.name, reason=done.reason)
            _log.log(level, "janitor task failing", exc_info=error if bug else None, extra=extra)

    def _tell_late(self, late: Sequence[LateBucket], before: Sequence[LateBucket]) -> None:
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

    def _went_bad(self, error: Exception) -> None:
        bug = not isinstance(error, OnceOnlyError)
        if self._trouble and not bug:
            return
        self._trouble = True
        _log.log(
            logging.ERROR if bug else logging.WARNING,
            "janitor cannot run, retrying with backoff",
            exc_info=error if bug else None,
            extra=self._extra(reason=f"{type(error).__name__}: {error}"),
        )

    def _recovered(self) -> None:
        self._backpressure.after_receiving()
        if self._trouble:
            self._trouble = False
            _log.info("janitor recovered", extra=self._extra())

    def _extra(self, **fields: object) -> dict[str, object]:
        return {"endpoint": self._ports.endpoint, **fields}
