"""Processes that start before their work is known: taken once, never left behind, deaf to no signal."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path

import pytest

from onceonly.runtime.processes.counters import HANDLED, SharedCounters
from onceonly.runtime.processes.early_start import EarlyStart, early_start
from onceonly.runtime.processes.processes import ChildEvent, ChildEventKind, Supervisor
from tests.runtime.processes.children import idle

ORPHANS = """
import os, signal, sys
from onceonly.runtime.processes.early_start import early_start
if __name__ == "__main__":
    with early_start(1, []) as early:
        starting = early.take(0)
        if "--held" in sys.argv and os.fork() == 0:
            signal.pause()
        print(starting.process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(name="counters")
def counters_of_two(tmp_path: Path) -> Iterator[SharedCounters]:
    """Counters with two rows."""
    with SharedCounters.create(tmp_path / "counters", 2) as made:
        yield made


class Run:
    """A supervisor of two processes. `started` are the process ids in the order of their starts."""

    def __init__(self, counters: SharedCounters, early: EarlyStart | None) -> None:
        self.started: list[int] = []
        self.exit_codes: list[int | None] = []
        self.died = asyncio.Event()
        self.counters = counters
        self.supervisor = Supervisor(
            idle, (), processes=2, counters=counters, watchdog=20.0, grace=10.0, on_event=self._hear, early=early
        )

    def _hear(self, event: ChildEvent) -> None:
        if event.kind in {ChildEventKind.STARTED, ChildEventKind.REPLACED}:
            self.started.append(event.pid)
        elif event.kind is ChildEventKind.DIED:
            self.exit_codes.append(event.exitcode)
            self.died.set()

    async def until_handled(self, number: int) -> int:
        """Run until the children have counted this much, then stop. Returns the exit code."""
        stop = asyncio.Event()
        running = asyncio.create_task(self.supervisor.run(stop))
        while self.counters.total(HANDLED) < number:  # noqa: ASYNC110 - a mapped file signals nothing
            await asyncio.sleep(0.01)
        stop.set()
        return await running


async def test_the_first_children_are_those_that_started_early(counters: SharedCounters) -> None:
    """At least one starts early, whatever the number of cores. The others start when they are needed."""
    with early_start(2, ["decimal"]) as early:
        first = early.take(0)
        pid = first.process.pid
        run = Run(counters, EarlyStart({0: first}))
        assert await run.until_handled(2) == 0
    assert run.started[0] == pid
    assert run.started[1] != pid


async def test_one_that_has_died_before_its_work_is_replaced(counters: SharedCounters) -> None:
    """Its death is noticed as that of any other child."""
    with early_start(1, []) as early:
        first = early.take(0)
        first.process.kill()
        first.process.join()
        run = Run(counters, EarlyStart({0: first}))
        assert await run.until_handled(2) == 0
    assert run.died.is_set()
    assert len(run.started) == 3


async def test_a_stop_that_comes_before_the_work_is_not_missed(counters: SharedCounters) -> None:
    """The signal is blocked until the child can answer it: it stops without an error."""
    with early_start(1, []) as early:
        first = early.take(0)
        os.kill(first.process.pid or 0, signal.SIGTERM)
        run = Run(counters, EarlyStart({0: first}))
        stop = asyncio.Event()
        running = asyncio.create_task(run.supervisor.run(stop))
        await asyncio.wait_for(run.died.wait(), 30)
        stop.set()
        assert await running == 0
    assert run.exit_codes == [0]


def test_those_that_nobody_takes_end_with_the_block() -> None:
    """A command that fails leaves no process behind."""
    before = set(active_children())
    with early_start(2, []):
        assert set(active_children()) - before
    assert set(active_children()) == before


@pytest.mark.parametrize("held", [(), ("--held",)])
def test_one_whose_parent_is_killed_ends(held: tuple[str, ...], tmp_path: Path) -> None:
    """Also when a process that the parent has forked keeps the pipe open."""
    program = tmp_path / "parent.py"
    program.write_text(ORPHANS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(program), *held], stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait()
        try:
            while is_running(pid):
                time.sleep(0.02)  # the time limit of a test ends it
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Return whether a process runs. One that has ended and that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
