"""Worker processes as their parent sees them: started, ready, told to go and to stop, each fresh for its run."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import msgspec

from benchmarks.job import GO, STOP, Usage, WorkerJob

ROOT = Path(__file__).parents[1]
PATIENCE = 60.0  # seconds to start, and to stop


class RunFailed(Exception):
    """A run did not do what it had to do; the message says what, with the worker's own words."""


class WorkerProcess:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        """Hold a started process and the file of its standard error."""
        self.process = process
        self._errors = errors

    async def tell(self, line: str) -> None:
        """Write one line to it."""
        assert self.process.stdin is not None  # noqa: S101 - for the type checker: it was started with a pipe
        self.process.stdin.write(line.encode() + b"\n")
        await self.process.stdin.drain()

    async def hear(self) -> str:
        """Read one line of its. Raises RunFailed when it died or says nothing."""
        assert self.process.stdout is not None  # noqa: S101 - the same
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        except TimeoutError:
            raise RunFailed(f"a worker says nothing; its errors:\n{self.errors()}") from None
        if not line:
            raise RunFailed(f"a worker died; its errors:\n{self.errors()}")
        return line.decode()

    def check(self) -> None:
        """Make sure that it lives. Raises RunFailed."""
        if self.process.returncode is not None:
            raise RunFailed(f"a worker died; its errors:\n{self.errors()}")

    def errors(self) -> str:
        """Read what it wrote to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]


class Crew:
    """The processes of one run."""

    def __init__(self, workers: list[WorkerProcess]) -> None:
        """Lead these workers."""
        self._workers = workers

    async def ready(self) -> None:
        """Wait until each of them has prepared all it needs."""
        for worker in self._workers:
            await worker.hear()

    async def go(self) -> None:
        """Let them work; returns when all have begun to receive."""
        for worker in self._workers:
            await worker.tell(GO)
        for worker in self._workers:
            await worker.hear()

    async def stop(self) -> list[Usage]:
        """Let them stop, and read what each used."""
        for worker in self._workers:
            await worker.tell(STOP)
        usages = [msgspec.json.decode(await worker.hear(), type=Usage) for worker in self._workers]
        for worker in self._workers:
            await asyncio.wait_for(worker.process.wait(), PATIENCE)
        return usages

    def errors(self) -> str:
        """Read what they wrote to standard error."""
        return "".join(worker.errors() for worker in self._workers)

    def check(self) -> None:
        """Make sure that all live. Raises RunFailed."""
        for worker in self._workers:
            worker.check()


@asynccontextmanager
async def crew(job: WorkerJob, processes: int = 1) -> AsyncIterator[Crew]:
    """Start processes for a job; at the end none is left."""
    async with AsyncExitStack() as stack:
        yield Crew([await stack.enter_async_context(_started(job)) for _ in range(processes)])


@asynccontextmanager
async def _started(job: WorkerJob) -> AsyncIterator[WorkerProcess]:
    with TemporaryFile() as errors:
        worker = await _start(job, errors)
        try:
            yield worker
        finally:
            if worker.process.returncode is None:
                worker.process.kill()
                await worker.process.wait()


async def _start(job: WorkerJob, errors: IO[bytes]) -> WorkerProcess:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        cwd=ROOT,
    )
    worker = WorkerProcess(process, errors)
    await worker.tell(msgspec.json.encode(job).decode())
    return worker
