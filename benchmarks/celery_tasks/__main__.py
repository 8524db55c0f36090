"""`python -m benchmarks.celery_tasks`: compare Celery's tasks with onceonly and without it.

Pool, prefetch, serializer, `acks_late` and `reject_on_worker_lost` are equal. Each task writes one row and sends one task.
"""

import asyncio
import os
import pstats
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.celery_tasks.running import KINDS, Plan, count, measure
from benchmarks.machine import load

DATABASE, BROKER = "postgresql://root@127.0.0.1:5432/postgres", "amqp://guest:guest@127.0.0.1:5672/"


def main(
    *,
    tasks: Annotated[int, typer.Option(min=20, help="Tasks of each round.")] = 3000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds. Each runs all kinds in turns.")] = 3,
    children: Annotated[int, typer.Option(min=1, help="Processes of the worker's pool.")] = 2,
    profile: Annotated[str, typer.Option(help="Measure nothing: print where this kind spends its time.")] = "",
) -> None:
    """Measure tasks a second, and what a task costs on the wire."""
    servers = (os.environ.get("BENCH_DATABASE", DATABASE), os.environ.get("BENCH_BROKER", BROKER))

    def plan(kind: str, number: int = tasks, folder: str = "") -> Plan:
        database, broker = servers
        return Plan(kind=kind, postgresql=database, rabbitmq=broker, tasks=number, children=children, profile=folder)

    if profile:
        with TemporaryDirectory() as folder:
            asyncio.run(measure(plan(profile, folder=folder)))
            print_profile(Path(folder))
        return
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS:
            found = asyncio.run(measure(plan(kind)))
            if found.rows != tasks or found.follow_ups < tasks:
                sys.exit(f"!!! FAILED: {kind} has {found.rows} rows and {found.follow_ups} follow-ups of {tasks}")
            rates[kind].append(found.rate)
            print(f"round {number + 1}, {kind}: {found.rate:.0f} tasks/s, load {load():.1f}", file=sys.stderr, flush=True)
    table = Table(title=f"{tasks} tasks, {children} children, {rounds} rounds")
    for name in ("", "tasks/s", "each round", "ratio to plain", "statements", "round trips", "commits", "publishes"):
        table.add_column(name, justify="right" if name else "left")
    for kind in KINDS:
        costs = asyncio.run(count(plan(kind, min(tasks, 1000))))
        ratios = [own / plain for own, plain in zip(rates[kind], rates["plain"], strict=True)]
        table.add_row(
            kind,
            f"{median(rates[kind]):.0f}",
            ", ".join(f"{rate:.0f}" for rate in rates[kind]),
            f"{median(ratios):.2f}",
            *(f"{number:.2f}" for number in (costs.statements, costs.trips, costs.commits, costs.publishes)),
        )
    Console(width=140).print(table)


def print_profile(folder: Path) -> None:
    """Print where the children have spent their time."""
    first, *others = sorted(map(str, folder.glob("*.prof")))
    stats = pstats.Stats(first, *others, stream=sys.stdout)
    stats.sort_stats("cumulative").print_stats(70)
    stats.sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    typer.run(main)
