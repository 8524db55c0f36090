"""`python -m benchmarks.django_views`: compare a view with a key, a row and an event with plain `atomic` and `on_commit`.

One process serves requests in several threads, without HTTP in between. Each writes one row and publishes one event.
"""

import asyncio
import os
import sys
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.crew import RunFailed
from benchmarks.django_views.running import KINDS, Plan, Round, count, measure
from benchmarks.machine import load

DATABASE, BROKER = "postgresql://root@127.0.0.1:5432/postgres", "amqp://guest:guest@127.0.0.1:5672/"


def main(
    *,
    requests: Annotated[int, typer.Option(min=20, help="Requests of each round.")] = 3000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds. Each runs all kinds in turns.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads that serve requests.")] = 4,
) -> None:
    """Measure requests a second, and what a request costs on the wire."""

    def plan(kind: str, number: int = requests) -> Plan:
        database, broker = os.environ.get("BENCH_DATABASE", DATABASE), os.environ.get("BENCH_BROKER", BROKER)
        return Plan(kind=kind, postgresql=database, rabbitmq=broker, requests=number, threads=threads)

    found: dict[str, list[Round]] = {kind: [] for kind in KINDS}
    try:
        for number in range(rounds):
            for kind in KINDS:
                each = asyncio.run(measure(plan(kind)))
                found[kind].append(each)
                words = f"{each.rate:.0f} requests/s, {each.sent:.0f} events/s, {each.cpu:.2f} ms CPU, load {load():.1f}"
                print(f"round {number + 1}, {kind}: {words}", file=sys.stderr, flush=True)
        table = Table(title=f"{requests} requests, {threads} threads, {rounds} rounds")
        names = ("requests/s", "each round", "ratio to plain", "each", "events sent, ratio", "CPU, ms")
        for name in ("", *names, "statements", "round trips", "publishes"):
            table.add_column(name, justify="right" if name else "left")
        for kind in KINDS:
            costs = asyncio.run(count(plan(kind, min(requests, 1000))))
            ratios = [own.rate / plain.rate for own, plain in zip(found[kind], found["plain"], strict=True)]
            sent = [own.sent / plain.sent for own, plain in zip(found[kind], found["plain"], strict=True)]
            table.add_row(
                kind,
                f"{median(each.rate for each in found[kind]):.0f}",
                ", ".join(f"{each.rate:.0f}" for each in found[kind]),
                f"{median(ratios):.2f}",
                ", ".join(f"{ratio:.2f}" for ratio in ratios),
                f"{median(sent):.2f}",
                f"{median(each.cpu for each in found[kind]):.2f}",
                *(f"{number:.2f}" for number in (costs.statements, costs.trips, costs.publishes)),
            )
    except RunFailed as error:
        sys.exit(f"!!! FAILED: {error}")
    Console(width=160).print(table)


if __name__ == "__main__":
    typer.run(main)
