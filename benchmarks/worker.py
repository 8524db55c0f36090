"""A worker process: reads its job, runs one row's code until the parent says stop, and reports what it used."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import msgspec

from benchmarks.job import Job, Turn, report

Work = Callable[[Job, Turn], Awaitable[None]]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Give uvloop's event loop where it is installed, to every row alike."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def find(reference: str) -> Any:
    """Import `module:name` below `benchmarks.rows`."""
    module, _, name = reference.partition(":")
    return getattr(import_module(f"benchmarks.rows.{module}"), name)


async def main(job: Job) -> None:
    """Run the job's work; it begins its turn itself."""
    work: Work = find(job.work)
    turn = Turn()
    await work(job, turn)
    report(turn.usage)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main(msgspec.json.decode(sys.stdin.readline(), type=Job)))
