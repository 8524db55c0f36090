"""The limit: the same work in C, and the echo in C. The program takes the place of the worker process."""

from pathlib import Path

from benchmarks.job import JobControl, WorkerJob
from benchmarks.programs import become_limit, build_limit


def build(folder: Path) -> None:
    """Compile the program into the benchmark's folder."""
    build_limit(folder)


async def floor(job: WorkerJob, _: JobControl) -> None:
    """Consume, write rows and outbox rows with one INSERT each for a batch, publish, acknowledge."""
    become_limit(Path(job.folder), "floor", job.broker, job.source, job.target, job.database)


async def echo(job: WorkerJob, _: JobControl) -> None:
    """Publish what was consumed."""
    become_limit(Path(job.folder), "echo", job.broker, job.source, job.target, "")
