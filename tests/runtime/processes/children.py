"""Programs for child processes, and, run as a script, a parent that supervises two of them and says so on standard output."""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from bdb import BdbQuit
from importlib import import_module
from pathlib import Path
from typing import Any

from onceonly.model.errors import SchemaMissing
from onceonly.runtime.processes.child import run_child
from onceonly.runtime.processes.counters import HANDLED, Column, CounterRow, SharedCounters
from onceonly.runtime.processes.early_start import SAFE_PATH, SETUP
from onceonly.runtime.processes.processes import ChildEvent, ChildEventKind, Supervisor

TICK = 0.02
KEY = b"k" * 16
"""A claim's key."""


def idle(index: int, counters_path: str, *names: str) -> None:
    """Count that it is up, then wait for the stop."""

    async def main(stop: asyncio.Event, row: CounterRow) -> None:
        row.add(HANDLED, 1 + len(names))
        await stop.wait()

    run_child(index, counters_path, main, tick=TICK)


def stuck(index: int, counters_path: str) -> None:
    """Tick once, then hold the event loop for ever, as an endless loop in a handler does."""

    async def main(_stop: asyncio.Event, _row: CounterRow) -> None:
        await asyncio.sleep(2 * TICK)
        threading.Event().wait()

    run_child(index, counters_path, main, tick=TICK)


def runs_alone(index: int, counters_path: str) -> None:
    """Run one message alone, until it is killed."""

    async def main(stop: asyncio.Event, row: CounterRow) -> None:
        row.enter(KEY, 2)
        row.set(Column.ALONE, 1)
        row.add(HANDLED)
        await stop.wait()
        await asyncio.Event().wait()

    run_child(index, counters_path, main, tick=TICK)


def stubborn(index: int, counters_path: str) -> None:
    """Hear the stop, and go on all the same."""

    async def main(_stop: asyncio.Event, row: CounterRow) -> None:
        row.add(HANDLED)
        await asyncio.Event().wait()

    run_child(index, counters_path, main, tick=TICK)


def broken(_index: int, _counters_path: str) -> None:
    """Die at once, every time."""
    os._exit(3)


def misconfigured(_index: int, _counters_path: str) -> None:
    """Find that the set-up is wrong."""
    raise SchemaMissing("run `onceonly schema create`")


def says_where_it_searches(index: int, counters_path: str) -> None:
    """Write down where it searches for modules, what it found for two names, and that it is up."""
    found = [import_module(name).__file__ for name in ("email", "unloaded")]
    Path(counters_path).with_name("search.json").write_text(json.dumps([sys.path, os.environ.get(SAFE_PATH), found]))
    idle(index, counters_path)


def second_is_misconfigured(index: int, counters_path: str) -> None:
    """Be idle in the first process; find in the second one, when the first is up, that the set-up is wrong."""
    if index == 0:
        return idle(index, counters_path)
    with SharedCounters.open(counters_path) as counters:
        while not counters.total(HANDLED):
            time.sleep(TICK)
    raise SchemaMissing("run `onceonly schema create`")


def exits_with_the_code_of_a_wrong_set_up(index: int, counters_path: str) -> None:
    """Have a handler end the process, once."""

    async def main(stop: asyncio.Event, row: CounterRow) -> None:
        row.add(HANDLED)
        if row.get(HANDLED) == 1:
            row.enter(KEY, 2)
            os._exit(SETUP)
        await stop.wait()

    run_child(index, counters_path, main, tick=TICK)


def breaks(_index: int, counters_path: str) -> None:
    """Stop at a breakpoint, and write down what it raises."""
    try:
        breakpoint()  # noqa: T100 - what is tested
    except BdbQuit as error:
        Path(counters_path).with_name("raised.txt").write_text(str(error))


def halted(index: int, counters_path: str) -> None:
    """Have a handler stop the event loop, once."""

    async def main(stop: asyncio.Event, row: CounterRow) -> None:
        row.add(HANDLED)
        if row.get(HANDLED) == 1:
            row.enter(KEY, 2)
            try:
                asyncio.get_running_loop().stop()
                await asyncio.Event().wait()
            finally:
                row.leave(KEY, 2)
        await stop.wait()

    run_child(index, counters_path, main, tick=TICK)


def tell(event: ChildEvent) -> None:
    """Print one event as a line of JSON."""
    line: dict[str, Any] = {"kind": event.kind, "pid": event.pid, "exitcode": event.exitcode}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def announced(index: int, counters_path: str) -> None:
    """Print that it is up, then wait for the stop; print that it stops."""

    async def main(stop: asyncio.Event, _row: CounterRow) -> None:
        os.write(1, b'{"kind": "up"}\n')
        await stop.wait()
        os.write(1, b'{"kind": "stopping"}\n')

    run_child(index, counters_path, main, tick=TICK)


def lingering(index: int, counters_path: str) -> None:
    """Print that it is up and, after the stop, that it stops; then block its event loop for ever."""

    async def main(stop: asyncio.Event, _row: CounterRow) -> None:
        os.write(1, b'{"kind": "up"}\n')
        await stop.wait()
        os.write(1, b'{"kind": "stopping"}\n')
        threading.Event().wait()

    run_child(index, counters_path, main, tick=TICK, grace=0.1)


class HoldsPipes:
    """Tells events, and when both children are started forks a process that holds whatever the parent had open."""

    def __init__(self) -> None:
        self.started = 0

    def __call__(self, event: ChildEvent) -> None:
        """Hear one event."""
        tell(event)
        self.started += event.kind is ChildEventKind.STARTED
        if self.started == 2 and os.fork() == 0:
            while True:
                signal.pause()


if __name__ == "__main__":
    with SharedCounters.create(sys.argv[1], 2) as counters:
        hear = HoldsPipes() if "--held" in sys.argv else tell
        target = lingering if "--lingering" in sys.argv else announced
        supervisor = Supervisor(target, (), processes=2, counters=counters, watchdog=20.0, grace=10.0, on_event=hear)
        code = supervisor.main()
    sys.exit(code)
