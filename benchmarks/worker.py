"""A worker process: reads its job, runs one row's code until the parent says stop, and reports what it used."""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import msgspec
from sqlalchemy.engine.default import DefaultDialect

from benchmarks.job import JobControl, WorkerJob, report

Work = Callable[[WorkerJob, JobControl], Awaitable[None]]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop where it is installed, to every row alike."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def listened() -> Counter[str]:
    """Count what every engine of this process executes and commits from now on; BEGIN and COMMIT are statements.

    With a listener the library would insert the objects of each handler alone, so this is one below SQLAlchemy's events.
    """
    counted = Counter[str]()

    def counting(name: str, *kinds: str) -> None:
        said = getattr(DefaultDialect, name)

        def say(*arguments: Any, **options: Any) -> Any:
            counted.update(kinds)
            return said(*arguments, **options)

        setattr(DefaultDialect, name, say)

    for name in ("do_execute", "do_executemany", "do_execute_no_params"):
        counting(name, "statements")
    counting("do_commit", "statements", "commits")
    return counted


def find(reference: str) -> Any:
    """Import `module:name` below `benchmarks.rows`."""
    module, _, name = reference.partition(":")
    return getattr(import_module(f"benchmarks.rows.{module}"), name)


def find_optional(reference: str) -> Any | None:
    """Import `module:name` below `benchmarks.rows`; None when the module has no such name."""
    module, _, name = reference.partition(":")
    return getattr(import_module(f"benchmarks.rows.{module}"), name, None)


async def main(job: WorkerJob) -> None:
    """Run the job's work; it begins its turn itself."""
    work: Work = find(job.work)
    counted = listened() if job.counting else Counter[str]()
    turn = JobControl(counted)
    await work(job, turn)
    if turn.usage is not None:  # else it was told to stop before it could begin
        report(msgspec.structs.replace(turn.usage, statements=counted["statements"], commits=counted["commits"]))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main(msgspec.json.decode(sys.stdin.readline(), type=WorkerJob)))
