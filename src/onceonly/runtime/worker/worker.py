"""The worker: takes what waits, lets the algorithm deliver it, and keeps the pace. It decides nothing about a message.

turn      receive, deliver, and wait as long as the pace says; the next batch is handled while this one is dispatched
extend    renew the leases of what is in work, and of what could not be released yet
stop      receive no more; finish what is in work within the grace time; release the rest
"""

import asyncio
import logging
from bdb import BdbQuit
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, Protocol

from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.settlement import BatchReport
from onceonly.config.worker import WorkerSettings
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import HandlerStuck, OnceOnlyError, QueueMissing, WorkerStopped, WrongEventLoop, error_text
from onceonly.model.message import Delivery
from onceonly.ports.bundle import Ports
from onceonly.ports.maintenance import Backlog
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.runtime.processes.counters import Column, CounterRow
from onceonly.runtime.worker.backpressure import Backpressure, RecentFailures
from onceonly.runtime.worker.batched_delete import BatchedDelete
from onceonly.runtime.worker.dispatches import Dispatches
from onceonly.runtime.worker.growth import ElasticTurns, WaitSampler
from onceonly.runtime.worker.handlers import LoopHandlers
from onceonly.runtime.worker.isolated_runs import GateMember, IsolatedRuns
from onceonly.runtime.worker.pipeline import ConcurrencyLimit, HandlerSlot, SlottedStore
from onceonly.runtime.worker.run_times import RunTimes
from onceonly.runtime.worker.transports import PatientTransport

LONGEST_HANDLER_SECONDS = 60.0  # unless the endpoint's settings say another time
LAST_RELEASE_SECONDS = 2.0  # to release what a stop cut off
IN_FLIGHT = 8  # batches at most for each that is handled: the others are dispatched and finished
ENOUGH = IN_FLIGHT // 2  # batches that are done: no more are waited for to forget their records together
SIDE_BY_SIDE = 32  # units of a worker at most that run at once, where each is one entity
LEASE_PARTS = 3  # a lease is renewed this often before it would end

_log = EventLogger(logging.getLogger("onceonly.worker"))


class WorkerTrouble(Enum):
    """Why a worker waits longer between turns: it cannot receive, an answer is uncertain, or delivering raised."""

    OUTAGE = "cannot receive"
    UNKNOWN = "cannot settle messages"
    FAULT = "cannot deliver a batch"


class Runner(Protocol):
    """Something that works next to others in one process until it is stopped."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then end gracefully."""


class Worker:
    """Runs the handlers of one endpoint on what its transport brings, until it is stopped.

    Correct alone or next to any number of others, in this process or elsewhere. `counters` is the row where it counts; what it
    counts is for people. `ask` is called when messages wait for a bucket of claims that is not rotated yet. An outage of any
    port makes it wait and try again, without end.
    """

    def __init__(  # noqa: PLR0913 - what it has from its process, by name
        self,
        ports: Ports,
        settings: WorkerSettings,
        *,
        environment: Environment = LIVE,
        counters: CounterRow | None = None,
        ask: Callable[[], object] = lambda: None,
        least: int | None = None,
        most: int = 1,
        longest: float = LONGEST_HANDLER_SECONDS,
    ) -> None:
        """Prepare to run; nothing is received before `run`.

        `least` batches are handled at once, by default as the settings say, and up to `most` while handlers wait for something
        else than the store. `longest` is how many seconds a handler of this process may take: a unit that waits for longer is
        logged.
        """
        least = least or settings.at_once
        self._transport = PatientTransport(ports.transport)
        self.run_times = RunTimes(environment.clock)
        dispatches = Dispatches()
        together = BatchedDelete(ports.store, environment.timer, enough=ENOUGH * least, forgotten=dispatches.forgotten)
        self._ports = ports._replace(transport=self._transport)
        self._settings = settings
        self._environment = environment
        self._row = counters
        self._ask = ask
        self.turns = turns = ElasticTurns(least, max(most, least), in_flight=IN_FLIGHT)
        sampler = WaitSampler(turns) if turns.can_grow else None
        shared = SharedByLoops(
            together, dispatches, asyncio.Semaphore(SIDE_BY_SIDE), counters, sampler, longest, self.run_times
        )
        self._loops = [
            WorkerLoop(self._ports, settings, environment, slot=HandlerSlot(turns), shared=shared) for _ in range(turns.loops)
        ]
        # A worker that may grow begins with one message: it is not known yet whether its handlers wait.
        self._backpressure = Backpressure(settings.batch_size, environment.random, first=1 if turns.can_grow else None)
        self._recent_failures = RecentFailures(settings.batch_size)
        self._trouble: WorkerTrouble | None = None
        self._lacks_queue = False
        self.report = BatchReport()

    @property
    def held(self) -> tuple[Delivery, ...]:
        return tuple(delivery for loop in self._loops for delivery in loop.batch)

    async def backlog(self) -> Backlog | None:
        """Ask the broker what waits. None if nothing knows it. Raises RetryableError, CommitFailed, OutcomeUnknown."""
        measure = self._ports.maintenance.backlog
        return None if measure is None else await measure()

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why it waits longer between turns, in words; empty if it does not."""
        return () if self._trouble is None else (self._trouble.value,)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then finish what is in work within the grace time.

        Raises WorkerStopped when a handler does not end, or when one of its loops ends unexpectedly. What kills a loop, such as
        a crash point or WrongEventLoop, ends the worker and is raised. However it ends, other workers of the process go on.
        """
        try:
            await self._run(stop)
        except asyncio.CancelledError:
            await self._remove_run_markers()
            raise
        finally:
            for loop in self._loops:
                loop.run_markers.leave()

    async def _run(self, stop: asyncio.Event) -> None:
        _log.info("worker started", extra=self._extra())
        extending = asyncio.create_task(self._extend())
        turning = [asyncio.create_task(self._run_rounds(stop, loop)) for loop in self._loops]
        try:
            cut_off = await self._until_stopped(turning, stop)
        except (WorkerStopped, WrongEventLoop) as error:
            _log.error("worker failed", extra=self._extra(reason=str(error)))
            raise
        finally:  # ends tasks; calls no port
            await _cancel([extending, *turning])
        await self._give_back(logging.INFO if cut_off or self._transport.left else logging.DEBUG)
        _log.info("worker stopped", extra=self._extra())

    async def _until_stopped(self, turning: list[asyncio.Task[None]], stop: asyncio.Event) -> bool:
        """Wait for the stop, and then for the end of what is in work. Returns whether the grace time was too short for it."""
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stopped, *turning}, return_when=asyncio.FIRST_COMPLETED)
            self._watch_for_deaths(turning, stop)
            await asyncio.wait(turning, timeout=self._settings.grace)
        finally:
            await _cancel([stopped])
        self._watch_for_deaths(turning, stop)
        return not all(task.done() for task in turning)

    def _watch_for_deaths(self, turning: Sequence[asyncio.Task[None]], stop: asyncio.Event) -> None:
        """Raise what ended a loop that was to go on."""
        for task in turning:
            if not task.done():
                continue
            error = None if task.cancelled() else task.exception()
            if isinstance(error, HandlerStuck):
                words = f"a handler of endpoint {self._ports.endpoint!r} did not end in time, so the worker stops"
                raise WorkerStopped(words) from error
            if error is not None:
                raise error
            if task.cancelled() or not stop.is_set():
                raise WorkerStopped(f"a loop of the worker of endpoint {self._ports.endpoint!r} ended without a stop request")

    async def _run_rounds(self, stop: asyncio.Event, loop: "WorkerLoop") -> None:
        while not stop.is_set():
            async with self.turns.room:
                await loop.slot.take()
                try:
                    seconds = 0.0 if stop.is_set() else await self._run_round(loop, stop)
                    await asyncio.sleep(0)  # adapters in memory never wait; signals and ticks need their turn all the same
                    await pause(seconds, self._environment.timer, stop)
                finally:  # awaits nothing
                    loop.slot.give_up()

    async def _run_round(self, loop: "WorkerLoop", stop: asyncio.Event) -> float:
        """Receive and deliver once. Returns how long to wait before the next turn."""
        try:
            await self._declare_again()
            await self._transport.give_back()
            asked = self._backpressure.limit
            loop.begin_batch(await self._transport.receive(asked, self._settings.wait), asked)
        except Exception as error:
            if isinstance(error, WrongEventLoop):
                raise  # it is the same in each turn
            self._lacks_queue = isinstance(error, QueueMissing)
            self._log_failure(WorkerTrouble.OUTAGE, error)
            return self._backpressure.after_outage()
        if self._trouble is WorkerTrouble.OUTAGE:
            self._log_recovery()
            self._backpressure.after_receiving()
        if not loop.batch or stop.is_set():
            self.turns.shrink()
            return 0.0  # what came too late is released by `run`
        return await self._work(loop, stop)

    async def _declare_again(self) -> None:
        """Declare the queue if it was deleted, as a restart would. Its messages are lost. Raises what `declare` raises."""
        if self._lacks_queue and self._ports.declared:
            await self._transport.declare(self._ports.declared)
            _log.warning("queue was missing, declared again", extra=self._extra())
        self._lacks_queue = False

    async def _work(self, loop: "WorkerLoop", stop: asyncio.Event) -> float:
        taken = len(loop.batch)
        self._count(received=taken, held=taken)
        try:
            report = await deliver(loop.batch, loop.ports, loop.side_by_side, isolated=bool(self._recent_failures))
            seconds = self._adapt(report, loop)
        except Exception as error:
            if isinstance(error, BdbQuit):  # `q` in `onceonly run --debug`
                stop.set()
            else:
                self._log_failure(WorkerTrouble.FAULT, error)
            seconds = self._backpressure.after_fault(taken)
            await loop.run_markers.close()  # before the message comes again: it died of nothing
            with suppress(Exception):  # their leases end on their own
                await self._transport.release(loop.batch)
            if isinstance(error, WrongEventLoop):
                raise
        finally:
            loop.store.end_batch()
            self._count(held=-taken)
        loop.batch = ()
        return seconds

    def _adapt(self, report: BatchReport, loop: "WorkerLoop") -> float:
        taken, waited = len(loop.batch), loop.waited
        self.report += report
        if not waited or report.conflicted:
            self.turns.shrink()
        self._recent_failures.after(report, taken, loop.failed)
        if report.slot_not_ready:
            self._ask()
        self._count(known=report.known, handled=report.handled, dead=report.dead, retried=report.retried)
        if report.unknown > report.needs_upgrade:
            self._log_failure(WorkerTrouble.UNKNOWN, None, report.trouble)
        elif self._trouble:
            self._log_recovery()
        return self._backpressure.after(report, taken, waited, loop.asked)

    async def _extend(self) -> None:
        lease = self._transport.traits.lease
        while lease is not None:
            await self._environment.timer.sleep(lease / LEASE_PARTS)
            if deliveries := (*self.held, *self._transport.left):
                with suppress(Exception):  # the next turn of `extend` tries again, and the observer has seen it
                    await self._transport.extend(deliveries)

    async def _give_back(self, level: int) -> None:
        """Release what was cut off, or came too late to begin with: a stop is not a failure of the message."""
        left = (*self.held, *self._transport.left)
        if not left:
            return
        _log.log(level, "worker releases deliveries", extra=self._extra(count=len(left)))
        with suppress(Exception):  # their leases end on their own
            async with asyncio.timeout(LAST_RELEASE_SECONDS):
                for loop in self._loops:
                    await loop.run_markers.close()
                await self._transport.release(left)

    async def _remove_run_markers(self) -> None:
        """Remove the records of runs that were cancelled: their process lives on, so nothing may be counted for them."""
        with suppress(Exception):  # a record that is left is found later
            async with asyncio.timeout(LAST_RELEASE_SECONDS):
                for loop in self._loops:
                    await loop.run_markers.close()

    def _log_failure(self, what: WorkerTrouble, error: Exception | None, said: Sequence[str] = ()) -> None:
        told, self._trouble = self._trouble, what
        bug = error is not None and not isinstance(error, OnceOnlyError)
        if told and not (bug and what is WorkerTrouble.FAULT):
            return  # said once for each change of state, but a bug is said every time
        reason = error_text(error) if error else "; ".join(said) or "an effect was not confirmed"
        level, trace = (logging.ERROR, error) if bug else (logging.WARNING, None)
        extra = self._extra(reason=reason)
        match what:
            case WorkerTrouble.OUTAGE:
                _log.log(level, "worker cannot receive, retrying with backoff", exc_info=trace, extra=extra)
            case WorkerTrouble.UNKNOWN:
                _log.warning("worker cannot settle messages, retrying with backoff", extra=extra)
            case WorkerTrouble.FAULT:
                _log.log(level, "worker cannot deliver a batch, retrying with backoff", exc_info=trace, extra=extra)

    def _log_recovery(self) -> None:
        self._trouble = None
        _log.info("worker recovered", extra=self._extra())

    def _extra(self, **fields: object) -> dict[str, object]:
        return {"endpoint": self._ports.endpoint, **fields}

    def _count(self, **numbers: int) -> None:
        if self._row is not None:
            for name, number in numbers.items():
                self._row.add(Column[name.upper()], number)


class SharedByLoops(NamedTuple):
    forgets: BatchedDelete
    dispatches: Dispatches
    room: asyncio.Semaphore
    row: CounterRow | None
    sampler: WaitSampler | None
    longest: float
    run_times: RunTimes


class WorkerLoop:
    """One of a worker's loops: what it has in work, and its slot."""

    def __init__(
        self, ports: Ports, settings: WorkerSettings, environment: Environment, *, slot: HandlerSlot, shared: SharedByLoops
    ) -> None:
        row = shared.row
        membership = GateMember(ports.endpoint, patience=shared.longest)
        self._handlers = LoopHandlers(
            ports.handlers,
            settings.budget,
            environment.timer,
            endpoint=ports.endpoint,
            row=row,
            membership=membership,
            sampler=shared.sampler,
            times=shared.run_times,
        )
        self.run_markers = IsolatedRuns(
            ports.run_markers, membership, endpoint=ports.endpoint, environment=environment, row=row
        )
        self.store = SlottedStore(ports.store, slot, membership, forgets=shared.forgets, dispatches=shared.dispatches)
        self.ports = ports._replace(handlers=self._handlers, store=self.store, run_markers=self.run_markers)
        self.slot = slot
        self.side_by_side = ConcurrencyLimit(shared.room, slot)
        self.batch: tuple[Delivery, ...] = ()
        self.asked = 0

    @property
    def waited(self) -> float:
        """How long, in seconds, the handlers of this batch waited for something else than the store."""
        return self._handlers.waited

    @property
    def failed(self) -> int:
        """How many runs of handlers failed in this batch."""
        return self._handlers.failed

    def begin_batch(self, batch: tuple[Delivery, ...], asked: int) -> None:
        """Enclose the work on these deliveries, of which at most `asked` were requested."""
        self.batch, self.asked = batch, asked
        self._handlers.begin_batch()


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_all(runners: Sequence[Runner], stop: asyncio.Event) -> None:
    """Run workers and relays of one process side by side; when one dies, so do the others, and its end is raised."""
    await side_by_side([runner.run(stop) for runner in runners])


async def side_by_side(runs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all of these until they end; when one dies or is cancelled, so do the others, and its end is raised."""
    tasks = [asyncio.create_task(run) for run in runs]
    left = set(tasks)
    try:
        while left:  # a task that is cancelled is no exception to `asyncio.wait`
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.cancelled():
                    raise WorkerStopped("a task of the worker, the relay or the janitor was cancelled without a stop request")
                task.result()
    finally:
        await _cancel(tasks)
