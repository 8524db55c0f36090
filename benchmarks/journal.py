"""`python -m benchmarks.journal`: what `journal=Journal()` costs the endpoint of `benchmarks.handlers`.

Each round runs the endpoint without a journal and with one, in an order that changes with each round. Each message is handled
and sends one, so the journal gets two rows for each, in one statement for a batch.

It needs a database and a broker, uses tables and queues with a prefix of their own there, and drops them.
"""

import asyncio
import os
from statistics import median
from typing import Annotated

import msgspec
import typer

from benchmarks.handlers import BROKER, DATABASE, measure
from benchmarks.worker import new_event_loop
from onceonly import Journal

WARM_UP = 2_000
RATE, CPU = "messages a second", "cpu seconds per 1,000"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    database: Annotated[str, typer.Option(help="The store's URL.")] = DATABASE,
    broker: Annotated[str, typer.Option(help="The transport's URL; empty for the queue in the store's database.")] = BROKER,
    messages: Annotated[int, typer.Option(help="Number of messages of each run.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="Number of runs of each kind.")] = 5,
) -> None:
    """Measure, and print one line of JSON: medians, and medians of the ratios of each round."""
    found: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(measure(database, broker, WARM_UP))
        for number in range(rounds):
            for way in ("off", "on") if number % 2 else ("on", "off"):
                journal = Journal() if way == "on" else None
                found[way].append(runner.run(measure(database, broker, messages, journal=journal)))
    result: dict[str, object] = {
        name: {way: median(each[name] for each in runs) for way, runs in found.items()} for name in (RATE, CPU)
    }
    ratios = [{name: on[name] / off[name] for name in (RATE, CPU)} for on, off in zip(found["on"], found["off"], strict=True)]
    result["ratio of on to off"] = {name: round(median(each[name] for each in ratios), 3) for name in (RATE, CPU)}
    result["ratios of messages a second"] = [round(each[RATE], 3) for each in ratios]
    print(msgspec.json.encode({**result, "load": round(os.getloadavg()[0], 1)}).decode())


if __name__ == "__main__":
    app()
