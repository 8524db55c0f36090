"""What a worker process is told, and how it and its parent take turns: ready, go, stop, usage."""

import asyncio
import resource
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

READY, GO, STARTED, STOP = "ready", "go", "started", "stop"
KILOBYTES = 1024


class WorkerJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and where. `work` is `module:function` below `benchmarks.rows`; URLs that a row does not need are empty.

    `counting` has the worker count its own statements, where there is no wire to count them on.
    """

    work: str
    database: str = ""
    broker: str = ""
    prefix: str = ""
    source: str = ""
    target: str = ""
    folder: str = ""
    concurrency: int = 1
    counting: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker process used: CPU seconds between go and stop, and the most memory it ever had, in bytes.

    Statements and commits, when it was told to count them, are those from go to its end.
    """

    cpu: float
    peak: int
    statements: int = 0
    commits: int = 0


class JobControl:
    """The worker's side: `begin` once all is prepared, `until_over` or `over` to work until the parent says stop."""

    def __init__(self, counted: Counter[str]) -> None:
        """Wait for nothing yet; what was `counted` before all was prepared does not count."""
        self._counted = counted
        self.stop = asyncio.Event()
        self._cpu = 0.0
        self._listening: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self.usage: Usage | None = None

    async def begin(self, started: asyncio.Event | None = None) -> None:
        """Tell the parent that all is prepared, and wait for its go.

        CPU time, statements and the clock count from here; with an event, from when that is set.
        """
        _say(READY)
        if await _heard() != GO:
            self.stop.set()
            return
        self._counted.clear()
        self._cpu = time.process_time()
        self._listening = asyncio.create_task(self._listen())
        if started is None:
            _say(STARTED)
        else:
            self._starting = asyncio.create_task(self._start(started))

    async def over(self) -> None:
        """Wait until the parent says stop."""
        await self.stop.wait()

    async def until_over(self, work: Coroutine[Any, Any, None]) -> None:
        """Run an endless loop until the parent says stop, then cancel it. Raises what the loop raised before."""
        working, over = asyncio.create_task(work), asyncio.create_task(self.stop.wait())
        await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if working.done():
            working.result()
        working.cancel()
        await asyncio.gather(working, over, return_exceptions=True)

    async def _start(self, started: asyncio.Event) -> None:
        await started.wait()
        self._counted.clear()
        self._cpu = time.process_time()
        _say(STARTED)

    async def _listen(self) -> None:
        await _heard()  # "stop", or the end of a parent that died
        self.usage = Usage(cpu=time.process_time() - self._cpu, peak=peak_memory())
        self.stop.set()


def report(usage: Usage | None) -> None:
    """Tell the parent what was used."""
    _say(msgspec.json.encode(usage).decode())


def peak_memory() -> int:
    """Return the most memory this process ever had, in bytes.

    Linux's own figure for the program: `ru_maxrss` would remember the parent that it was forked from.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * KILOBYTES
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KILOBYTES


def _say(line: str) -> None:
    print(line, flush=True)


async def _heard() -> str:
    line: str = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return line.strip()
