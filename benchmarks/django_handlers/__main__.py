"""`python -m benchmarks.django_handlers`: compare a handler on Django's ORM with the same as a task of Celery.

Each message is a row, and an event in another queue. Both have the same number of processes. A child of Celery's has one task
at a time, a process of onceonly four messages.
"""

import asyncio
import os
import sys
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.celery_tasks.running import Plan, count, measure
from benchmarks.django_handlers.running import KINDS, DjangoPlace
from benchmarks.machine import load

DATABASE, BROKER = "postgresql://root@127.0.0.1:5432/postgres", "amqp://guest:guest@127.0.0.1:5672/"


def main(
    *,
    messages: Annotated[int, typer.Option(min=20, help="Messages of each round.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds. Each runs all kinds in turns.")] = 3,
    processes: Annotated[int, typer.Option(min=1, help="Processes that handle.")] = 2,
) -> None:
    """Measure messages a second, and what a message costs on the wire."""
    servers = (os.environ.get("BENCH_DATABASE", DATABASE), os.environ.get("BENCH_BROKER", BROKER))

    def plan(kind: str, number: int = messages) -> Plan:
        return Plan(kind=kind, postgresql=servers[0], rabbitmq=servers[1], tasks=number, children=processes)

    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS:
            found = asyncio.run(measure(plan(kind), DjangoPlace))
            if found.rows != messages or found.follow_ups < messages:
                sys.exit(f"!!! FAILED: {kind} has {found.rows} rows and {found.follow_ups} events of {messages}")
            rates[kind].append(found.rate)
            print(f"round {number + 1}, {kind}: {found.rate:.0f} messages/s, load {load():.1f}", file=sys.stderr, flush=True)
    table = Table(title=f"{messages} messages, {processes} processes, {rounds} rounds")
    for name in (
        "",
        "messages/s",
        "each round",
        "ratio to celery",
        "to kept",
        "statements",
        "round trips",
        "commits",
        "publishes",
    ):
        table.add_column(name, justify="right" if name else "left")
    for kind in KINDS:
        costs = asyncio.run(count(plan(kind, min(messages, 1000)), DjangoPlace))
        ratios = {
            base: median(own / plain for own, plain in zip(rates[kind], rates[base], strict=True))
            for base in ("celery", "kept")
        }
        table.add_row(
            kind,
            f"{median(rates[kind]):.0f}",
            ", ".join(f"{rate:.0f}" for rate in rates[kind]),
            *(f"{ratio:.2f}" for ratio in ratios.values()),
            *(f"{number:.2f}" for number in (costs.statements, costs.trips, costs.commits, costs.publishes)),
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
