"""Hosted delivery: takes what a host hands over through the algorithm, within the host's time. It decides nothing.

read      a delivery for each message, with the attempts that its host has counted
work      units as a worker's, one call after another as far as the store allows; what loses a race is repeated
cut off   what the host's time does not suffice for; nothing of it is committed later than its handler could be
answer    settled, or when the next delivery is due

No task owes anything when `handle` returns. Records are deleted at once, not together with those of other calls.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import isawaitable
from typing import NamedTuple

from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.settlement import BatchReport
from onceonly.config.worker import WorkerSettings
from onceonly.formats.log_events import EventLogger, FailureLog
from onceonly.hosted.calls import CUT_OFF, HostedCalls
from onceonly.hosted.run_markers import HostedRunMarkers
from onceonly.hosted.transport import HostedCall, HostedDeadLetters, enter_call
from onceonly.model.errors import HandlerStuck, WrongEventLoop, error_text
from onceonly.model.hosted import HostedMessage, HostedOutcome
from onceonly.model.message import Delivery
from onceonly.ports.bundle import Ports
from onceonly.ports.maintenance import Backlog
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.hosted.maintenance import MaintenanceStep
from onceonly.runtime.worker.backpressure import Backpressure, RecentFailures
from onceonly.runtime.worker.batched_delete import BatchedDelete
from onceonly.runtime.worker.dispatches import Dispatches
from onceonly.runtime.worker.pipeline import HandlerSlot
from onceonly.runtime.worker.run_times import RunTimes
from onceonly.runtime.worker.worker import IN_FLIGHT, LAST_RELEASE_SECONDS, SIDE_BY_SIDE, SharedByLoops, WorkerLoop

MARGIN_SECONDS, MARGIN_PARTS = 1.0, 4
"""A unit is cut off this number of seconds before the end of the host's time, or this part of the time if that is less."""
END_SECONDS = 3.0
"""Seconds that a cancelled call waits for the end of its units, as far as the host's time allows."""
MOST_CONFLICTS = 10
"""How often a call repeats messages that lost a race. After that the host delivers them again."""
MOST_UNKNOWN = 8
"""After how many batches in a row of which nothing could be settled a call leaves the rest to the host.

By then the batches of a large call have one message, so that no single message keeps the others from being settled.
"""

Extend = Callable[[Sequence[HostedMessage]], object]
"""Renews the host's lease on the messages of a call. It may be a coroutine function."""
_log = EventLogger(logging.getLogger("onceonly.hosted"))


class HostedLimits(NamedTuple):
    """How many units a process may have open, and how many calls handle, dispatch or finish at the same time.

    `longest` is how many seconds a handler of this process may take: a unit that waits for longer is logged.
    """

    units: int
    calls: int
    longest: float


def limits_of(least: int, most: int, longest: float) -> HostedLimits:
    """Return the limits of a worker that handles `least` batches at once, and `most` while handlers wait."""
    most = max(least, most)
    return HostedLimits(most, (IN_FLIGHT - 1) * least + most, longest)


class HostedDeliveries:
    """Handles messages of one endpoint that a host hands over. Its ports are those of `wire(..., hosted=True)`.

    Calls may overlap in one event loop. A worker's counters and reports can be read here as well.
    """

    def __init__(
        self,
        ports: Ports,
        settings: WorkerSettings,
        *,
        limits: HostedLimits,
        environment: Environment = LIVE,
        maintenance: MaintenanceStep | None = None,
    ) -> None:
        self._calls = HostedCalls(ports.handlers, ports.endpoint, environment.clock)
        markers = HostedRunMarkers(ports.run_markers, self._calls.gives_up)
        self._ports = ports._replace(run_markers=markers, dead_letters=HostedDeadLetters(ports.dead_letters))
        self._settings = settings
        self._environment = environment
        self._maintenance = maintenance
        self._turns, self._room = asyncio.Semaphore(limits.units), asyncio.Semaphore(limits.calls)
        self.run_times = RunTimes(environment.clock)
        dispatches = Dispatches()
        at_once = BatchedDelete(ports.store, environment.timer, enough=1, forgotten=dispatches.forgotten)
        self._shared = SharedByLoops(
            at_once, dispatches, asyncio.Semaphore(SIDE_BY_SIDE), None, None, limits.longest, self.run_times
        )
        self._recent_failures = RecentFailures(settings.batch_size)
        self._working: dict[asyncio.Task[None], HostedCall] = {}
        self._failures = FailureLog(_log, "hosted messages not settled", endpoint=ports.endpoint, every_bug=True)
        self._extending = FailureLog(_log, "lease of the host not renewed", endpoint=ports.endpoint)
        self.report = BatchReport()
        self.is_closed = False

    @property
    def held(self) -> tuple[Delivery, ...]:
        return tuple(delivery for call in self._working.values() for delivery in call.deliveries)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why messages are delivered again, and what is wrong with maintenance, in words. Empty if all is well."""
        unsettled = ("cannot settle messages",) if self._failures.is_failing else ()
        return (*unsettled, *(self._maintenance.troubles if self._maintenance is not None else ()))

    async def backlog(self) -> Backlog | None:
        """Return None: the queue is the host's."""
        return None

    async def run(self, stop: asyncio.Event) -> None:
        """Wait for the stop: what reports a worker runs next to it."""
        await stop.wait()

    async def close(self) -> None:
        """Cut off what is in work. Its calls return that it must be delivered again. Set `is_closed` for further ones."""
        self.is_closed = True
        if self._maintenance is not None:
            await self._maintenance.close()
        await _end(tuple(self._working), END_SECONDS)

    async def handle(
        self, messages: Sequence[HostedMessage], *, remaining: float | None = None, extend: Extend | None = None, every: float
    ) -> tuple[HostedOutcome, ...]:
        """Handle messages; see `Hosted.handle`."""
        timer = self._environment.timer
        until = None if remaining is None else timer.seconds() + remaining
        call = self._calls.begin(messages)
        if remaining is not None and remaining <= 0:
            return self._calls.cut_off(call, messages)
        task = asyncio.create_task(self._work(call), name=f"onceonly hosted {self._ports.endpoint}")
        self._working[task] = call
        task.add_done_callback(self._ended)
        tasks = [task]
        if extend is not None:
            tasks.append(asyncio.create_task(self._extend(extend, every, messages), name="onceonly hosted lease"))
        margin = END_SECONDS if remaining is None else min(MARGIN_SECONDS, remaining / MARGIN_PARTS)
        try:
            await asyncio.wait({task}, timeout=None if remaining is None else remaining - margin)
            await _end(tasks, margin)
        except asyncio.CancelledError:
            try:
                await _end(tasks, margin)
            finally:
                self._calls.cut_off(call, messages)  # what is left is delivered again, and that counts for nothing
            raise
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error
        outcomes = self._calls.outcomes(call, messages)
        if task.done():
            call.forget()
        if self._maintenance is not None and not self.is_closed:
            await self._maintenance.run(None if until is None else until - timer.seconds() - margin)
        return outcomes

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._working[task]
        if not task.cancelled():
            task.exception()  # read, so that the event loop does not log that of a task that was left behind

    async def _work(self, call: HostedCall) -> None:
        """Take all deliveries of a call through. What ran out of a unit's budget, or lost a race, is repeated."""
        enter_call(call)
        backpressure = Backpressure(self._settings.batch_size, self._environment.random)
        waiting, conflicts, unknown = call.left(call.deliveries), 0, 0
        while waiting:
            some, waiting = waiting[: backpressure.limit], waiting[backpressure.limit :]
            report = await self._take_through(call, some)
            left = call.left(some)
            seconds = backpressure.after(report, len(some))
            conflicts += report.conflicted > 0
            unknown = unknown + 1 if len(left) == len(some) and report.unknown else 0
            if report.postponed or (report.conflicted and conflicts <= MOST_CONFLICTS):
                waiting = (*left, *waiting)
            if unknown == MOST_UNKNOWN:
                return
            if waiting:
                await self._environment.timer.sleep(seconds)

    async def _take_through(self, call: HostedCall, some: Sequence[Delivery]) -> BatchReport:
        async with self._room:
            slot = HandlerSlot(self._turns)
            loop = WorkerLoop(self._ports, self._settings, self._environment, slot=slot, shared=self._shared)
            call.offered = tuple(some)
            loop.begin_batch(await loop.ports.transport.receive(len(some), 0.0), len(some))
            try:
                await slot.take()
                report = await deliver(loop.batch, loop.ports, loop.side_by_side, isolated=bool(self._recent_failures))
            except HandlerStuck:
                loop.run_markers.leave()  # a marker stays: it is found when the message comes again
                self._log_stuck(call, some)
                return await self._give_back(call, some, loop)
            except asyncio.CancelledError:
                call.trouble = CUT_OFF
                await self._remove_run_markers(loop)
                await self._give_back(call, some, loop)
                raise
            except Exception as error:
                await self._remove_run_markers(loop)
                report = await self._give_back(call, some, loop)
                if isinstance(error, WrongEventLoop):
                    raise
                call.trouble = error_text(error)
                self._failures.failed(error)
                return report
            finally:  # awaits nothing
                loop.store.end_batch()
                slot.give_up()
        self._adapt(report, call, len(some))
        return report

    def _adapt(self, report: BatchReport, call: HostedCall, taken: int) -> None:
        self.report += report
        self._recent_failures.after(report, taken)
        if report.slot_not_ready and self._maintenance is not None:
            self._maintenance.ask()
        if report.unknown > report.needs_upgrade:
            call.trouble = "; ".join(report.trouble) or "an effect was not confirmed"
            self._failures.failed(None, reason=call.trouble)
        elif not report.unknown and self._failures.succeeded():
            _log.info("hosted messages settled again", extra={"endpoint": self._ports.endpoint})

    async def _remove_run_markers(self, loop: WorkerLoop) -> None:
        """Remove what a run that was cut off has recorded: its process lives on, so nothing may be counted for it."""
        with suppress(Exception):  # a record that is left is found later
            async with asyncio.timeout(LAST_RELEASE_SECONDS):
                await loop.run_markers.close()

    async def _give_back(self, call: HostedCall, some: Sequence[Delivery], loop: WorkerLoop) -> BatchReport:
        left = call.left(some)
        with suppress(Exception):  # only observers learn of it
            await loop.ports.transport.release(left)
        return BatchReport(unknown=len(left))

    def _log_stuck(self, call: HostedCall, some: Sequence[Delivery]) -> None:
        call.trouble = "its handler did not end although it was cancelled"
        self._calls.note_stuck(call, some)
        _log.error("handler did not end, restart this process", extra={"endpoint": self._ports.endpoint})

    async def _extend(self, extend: Extend, every: float, messages: Sequence[HostedMessage]) -> None:
        while True:
            await self._environment.timer.sleep(every)
            try:
                extended = extend(messages)
                if isawaitable(extended):
                    await extended
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._extending.failed(None, reason=error_text(error))  # what it waited for was cancelled, such as a request
            except Exception as error:  # noqa: BLE001 - the host's own; the lease may end, and the message comes again
                self._extending.failed(error)
            else:
                self._extending.succeeded()


async def _end(tasks: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Cancel tasks, and wait for their end for that long. One that takes longer owes nothing: its deliveries are not settled.

    A caller that is cancelled, however often, waits as well. AnyIO cancels a task in each turn of the event loop.
    """
    for task in tasks:
        task.cancel()
    loop = asyncio.get_running_loop()
    until, cancelled = loop.time() + seconds, None
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left, timeout=max(0.0, until - loop.time()))
        except asyncio.CancelledError as error:
            cancelled = error
        if loop.time() >= until:
            break
    if cancelled is not None:
        raise cancelled
