"""`python -m benchmarks.brokers`: the raw handler on NATS and Redis, compared with the echo of the broker's driver.

PostgreSQL (BENCH_DATABASE), NATS and Redis on this machine; a database and queues of the run's own. The two rows of a broker
take turns. After each round rows and messages are counted, and a wrong total ends the run with exit code 1.
"""

import asyncio
import os
import sys
from statistics import median
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.brokers.running import PAIRS, BrokersJob, BrokersOutcome, measure
from benchmarks.crew import RunFailed
from benchmarks.worker import new_event_loop

DATABASE = "postgresql://root@127.0.0.1:5432/postgres"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    broker: Annotated[list[str] | None, typer.Option(help="nats or redis; several times for several.")] = None,
    messages: Annotated[int, typer.Option(min=100, help="Messages in a round.")] = 12_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure each broker against its driver's echo."""
    if unknown := sorted(set(broker or ()) - set(PAIRS)):
        raise typer.BadParameter(f"unknown broker {unknown[0]!r}: use {' or '.join(PAIRS)}")
    server = os.environ.get("BENCH_DATABASE", DATABASE)
    job = BrokersJob(database=server, brokers=tuple(broker or PAIRS), messages=messages, rounds=rounds)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            outcome = runner.run(measure(job, _say))
    except RunFailed as error:
        sys.exit(f"!!! FAILED: {error}")
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(outcome)).decode())
    else:
        _show(outcome)


def _show(outcome: BrokersOutcome) -> None:
    load = f"load {outcome.machine.load_before} to {outcome.machine.load_after}"
    table = Table(
        "broker",
        "batches at once",
        "raw handler/s",
        "echo/s",
        "ratio",
        "lowest",
        "highest",
        "asked",
        "ratio of CPU",
        title=f"{outcome.date}, {load}, medians",
    )
    for each in outcome.results:
        rates = [f"{median(sample.rate for sample in samples):,.0f}" for samples in (each.raw, each.echo)]
        ratios = [f"{value:.2f}" for value in (each.ratio.median, each.ratio.low, each.ratio.high, each.asked, each.cpu_ratio)]
        table.add_row(each.broker, str(each.batches), *rates, *ratios)
    Console(width=120).print(table)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
