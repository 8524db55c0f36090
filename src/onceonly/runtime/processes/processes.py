"""The parent's side: starts worker processes, replaces those that die, kills those that hang, and stops them all."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from multiprocessing.context import SpawnProcess
from typing import Any

from msgspec import Struct

from onceonly.model.health import Pulse
from onceonly.runtime.processes.child import new_event_loop, stopping_on_signals
from onceonly.runtime.processes.counters import Column, CounterRow, SharedCounters
from onceonly.runtime.processes.early_start import SETUP, EarlyStart

STARTUP_SECONDS = 30.0  # for a child to import its program, before its first tick
STACK_TRACE_SECONDS = 0.2  # for a child that hangs to show where
YOUNG_SECONDS = 5.0  # a child that dies earlier than this died at once
PROGRESS = (Column.RECEIVED, Column.KNOWN, Column.HANDLED, Column.DEAD, Column.RETRIED, Column.LOW, Column.HIGH)
"""What moves while messages are handled; LOW and HIGH with every handler that begins or ends."""
DELAY_FIRST_SECONDS, DELAY_MOST_SECONDS = 0.1, 5.0
DELAY_BLAMED_SECONDS = 0.25


class ChildEventKind(StrEnum):
    """What happened to a child.

    UNFIT: it ended because its set-up is wrong, so all others are stopped.
    UNRESPONSIVE: the watchdog killed it. STUCK: it was killed because a handler did not end in time.
    In a stop, KILLED: it outstayed the grace time; HURRIED: it was killed within it, because a second signal asked for that.
    """

    STARTED = "started"
    REPLACED = "replaced"
    DIED = "died"
    UNFIT = "unfit"
    UNRESPONSIVE = "unresponsive"
    STUCK = "stuck"
    STOPPED = "stopped"
    KILLED = "killed"
    HURRIED = "hurried"


class ChildEvent(Struct, frozen=True, kw_only=True):
    """Something happened to a child. A negative `exitcode` is the signal that ended it; `delay` is before its replacement."""

    kind: ChildEventKind
    index: int
    pid: int
    exitcode: int | None = None
    delay: float = 0.0


class Child:
    """One place among the processes, and whoever fills it just now."""

    def __init__(self, index: int, row: CounterRow) -> None:
        self.index = index
        self.row = row
        self.process: SpawnProcess | None = None
        self.pid = 0
        self.ended = asyncio.Event()
        self.since = self.turned = self.moved = 0.0
        self._counts: tuple[int, ...] = ()
        self.has_turned = False
        self.on_purpose = False
        self.blamed: bool | None = None
        """Whether a message is blamed for its death. None until that is recorded."""
        self.is_unfit = False
        self.young_deaths = 0

    def fill(self, process: SpawnProcess) -> None:
        """Take in a process that was just started, and watch for its end."""
        self.process, self.pid = process, process.pid or 0
        self.ended = asyncio.Event()
        self.since, self.on_purpose, self.has_turned = time.monotonic(), False, False
        self.blamed = None
        self.turned = self.moved = self.since
        asyncio.get_running_loop().add_reader(process.sentinel, self._end_process, process.sentinel)

    def clear(self) -> int:
        """Clean up after the process that ended. Returns its exit code."""
        process = self.process
        if process is None:
            return 0
        self.process = None
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        code = process.exitcode or 0
        process.close()
        return code

    def record_death(self, *, blames: bool = True) -> bool:
        """Record its death in the shared counters, once: before a kill, so that it is there when its messages come again."""
        if self.blamed is None:
            self.blamed = self.row.record_death(blames=blames)
        return self.blamed

    def signal(self, number: signal.Signals) -> bool:
        alive = self.process is not None and not self.ended.is_set() and self.process.is_alive()
        if alive:
            os.kill(self.pid, number)
        return alive

    def turns(self, now: float, *, is_sure: bool) -> None:
        """Note that its event loop turned by now; not `is_sure` when this process itself did not look in time."""
        self.turned = now
        self.has_turned |= is_sure

    def pulse(self) -> Pulse:
        runs, now = self.process is not None and not self.ended.is_set(), time.monotonic()
        starts, silent, still = runs and not self.has_turned, round(now - self.turned, 1), round(now - self.moved, 1)
        pid = self.pid if runs else 0
        return Pulse(process=self.index, pid=pid, runs=runs, starts=starts, silent=silent, still=still)

    def look(self, now: float, *, is_sure: bool) -> None:
        """Note whether it makes progress: it holds no message, or a handler began or ended, or something was counted."""
        counts = tuple(self.row.get(column) for column in PROGRESS)
        if counts != self._counts or not self.row.get(Column.HELD) or not is_sure:
            self._counts, self.moved = counts, now

    def delay(self, *, blamed: bool = False) -> float:
        """Return the seconds to wait before the replacement: more and more for a child that dies at once again and again.

        Not for one that a message ended which is `blamed`: after a few such deaths that message is given up.
        """
        if blamed:
            return DELAY_BLAMED_SECONDS
        early = time.monotonic() - self.since < YOUNG_SECONDS or not self.has_turned  # a slow machine imports for longer
        young = early and not self.on_purpose
        self.young_deaths = self.young_deaths + 1 if young else 0
        return min(DELAY_MOST_SECONDS, DELAY_FIRST_SECONDS * 2.0 ** (self.young_deaths - 1)) if self.young_deaths else 0.0

    def _end_process(self, sentinel: int) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)
        self.ended.set()


class Supervisor:
    """Keeps `processes` children running, each calling `target(index, counters_path, *arguments)`.

    `target` is a function of a module and does its work with `run_child`. A child is killed when its last tick in the shared
    counters is older than `watchdog` seconds (None: never). A child that exits is replaced, unless its exit code is `SETUP`:
    that stops all of them. A stop sends SIGTERM, waits `grace` seconds, and kills the rest. `on_event` receives what happens,
    in the parent's loop. The first children are those of `early`, as far as it has some.
    """

    def __init__(  # noqa: PLR0913 - the parts of one setting; all but two by name
        self,
        target: Callable[..., None],
        arguments: Sequence[Any],
        *,
        processes: int,
        counters: SharedCounters,
        watchdog: float | None,
        grace: float,
        on_event: Callable[[ChildEvent], None],
        early: EarlyStart | None = None,
    ) -> None:
        self._target = target
        self._arguments = tuple(arguments)
        self._processes = processes
        self._counters = counters
        self._watchdog = watchdog
        self._grace = grace
        self._on_event = on_event
        self._early = early or EarlyStart({})
        self._children: list[Child] = []

    def pids(self) -> dict[int, int]:
        return {child.index: child.pid for child in self._children if child.process is not None and not child.ended.is_set()}

    def pulses(self) -> tuple[Pulse, ...]:
        """Return for each place whether a process fills it, and since when its event loop has not turned."""
        return tuple(child.pulse() for child in self._children)

    def kill(self, index: int) -> bool:
        """Kill one child with SIGKILL; it is replaced at once. Returns whether there was one that was not killed before.

        No message is blamed for that.
        """
        child = self._children[index]
        if child.on_purpose or not child.signal(signal.SIGSTOP):  # from here on it begins no run
            return False
        child.on_purpose = True
        child.record_death(blames=False)
        child.signal(signal.SIGKILL)
        return True

    def main(self) -> int:
        """Run until SIGTERM or Ctrl-C, hurry at another one, later. Returns the exit code, 0 when every child ended well."""
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(self._until_signal())

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> int:
        """Run until `stop` is set or a child is unfit; `hurry` ends the grace time. Leaves no child behind.

        Gives the exit code: 0 when every child ended well, `SETUP` when one was unfit, otherwise 1.
        """
        self._children = [Child(index, self._counters.row(index)) for index in range(self._processes)]
        keeping = [asyncio.create_task(self._keep_filled(child, stop)) for child in self._children]
        told = asyncio.create_task(_wait_for(stop))
        try:
            await asyncio.wait([told, *keeping], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*(_cancelled(task) for task in keeping))
            worst = await self._stop(hurry or asyncio.Event())
            return SETUP if any(child.is_unfit for child in self._children) else worst
        finally:
            await asyncio.gather(*(_cancelled(task) for task in [told, *keeping]), return_exceptions=True)
            await self._kill_all()

    async def _until_signal(self) -> int:
        stop, hurry = asyncio.Event(), asyncio.Event()
        with stopping_on_signals(stop, hurry.set):
            return await self.run(stop, hurry)

    async def _keep_filled(self, child: Child, stop: asyncio.Event) -> None:
        """Fill one place again and again, until whoever fills it is unfit."""
        kind = ChildEventKind.STARTED
        while not stop.is_set():
            self._start(child)
            self._report(kind, child)
            kind = ChildEventKind.REPLACED
            await self._watch(child)
            # a program may end with any exit code, but a handler runs in a process whose set-up is right
            exitcode, is_running = child.clear(), child.row.get(Column.RUNNING)
            blamed = child.record_death()
            child.row.clear_marks()
            if exitcode == SETUP and not is_running:
                child.is_unfit = True
                self._report(ChildEventKind.UNFIT, child, exitcode=exitcode)
                return
            delay = child.delay(blamed=blamed)
            self._report(ChildEventKind.DIED, child, exitcode=exitcode, delay=delay)
            await asyncio.sleep(delay)

    def _start(self, child: Child) -> None:
        child.row.set(Column.HELD, 0)  # what the one before held went back with it
        child.row.clear_marks()
        starting = self._early.take(child.index)
        child.fill(starting.run(self._target, (child.index, str(self._counters.path), *self._arguments)))

    async def _watch(self, child: Child) -> None:
        """Return when the child has ended; end it when it does not tick."""
        seen = child.row.get(Column.TICK)
        period = min(1.0, (self._watchdog or 4.0) / 4)
        until = checked = time.monotonic()
        until += STARTUP_SECONDS + (self._watchdog or 0.0)
        while not await _is_set_within(child.ended, period):
            tick, now = child.row.get(Column.TICK), time.monotonic()
            late = now - checked > 2 * period + 1  # it was this process that did not run, or the whole machine
            checked = now
            child.look(now, is_sure=not late)
            if child.row.get(Column.STUCK):
                self._report(ChildEventKind.STUCK, child)
                child.record_death()
                child.signal(signal.SIGKILL)  # its handler would keep it from ending
                await child.ended.wait()
            elif tick != seen or late:
                child.turns(now, is_sure=tick != seen)
                seen, until = tick, now + (self._watchdog or 0.0)
            elif self._watchdog is not None and now > until:
                self._report(ChildEventKind.UNRESPONSIVE, child)
                child.signal(signal.SIGUSR1)  # it shows where it hangs
                await _is_set_within(child.ended, STACK_TRACE_SECONDS)
                child.record_death()
                child.signal(signal.SIGKILL)
                await child.ended.wait()

    async def _stop(self, hurry: asyncio.Event) -> int:
        running = [child for child in self._children if child.process is not None]
        for child in running:
            child.signal(signal.SIGTERM)
        await _all_ended(running, self._grace, hurry)
        worst, forced = 0, ChildEventKind.HURRIED if hurry.is_set() else ChildEventKind.KILLED
        for child in running:
            if killed := not child.ended.is_set():
                child.record_death(blames=False)
            child.signal(signal.SIGKILL)
            await child.ended.wait()
            exitcode = child.clear()
            if exitcode:  # the program may be started again with the same counters
                child.record_death()
            child.row.clear_marks()
            worst = worst or int(exitcode != 0 and not child.on_purpose)
            self._report(forced if killed else ChildEventKind.STOPPED, child, exitcode=exitcode)
        return worst

    async def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None:
                child.signal(signal.SIGKILL)
                await child.ended.wait()
                child.clear()

    def _report(self, kind: ChildEventKind, child: Child, *, exitcode: int | None = None, delay: float = 0.0) -> None:
        self._on_event(ChildEvent(kind=kind, index=child.index, pid=child.pid, exitcode=exitcode, delay=delay))


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def _all_ended(children: Sequence[Child], seconds: float, hurry: asyncio.Event) -> None:
    async def each() -> None:
        for child in children:
            await child.ended.wait()

    ended, hurried = asyncio.create_task(each()), asyncio.create_task(_wait_for(hurry))
    await asyncio.wait([ended, hurried], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    await _cancelled(ended)
    await _cancelled(hurried)


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; raises what it died of."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
