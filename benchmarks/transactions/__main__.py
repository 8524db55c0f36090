"""`python -m benchmarks.transactions`: what a transaction costs, and how soon its message is on the queue.

PostgreSQL (BENCH_DATABASE) and RabbitMQ (BENCH_BROKER), in a database and behind a prefix of the run's own. Rates are medians
of rounds in which the ways take turns; after each round orders, messages, records and keys are counted, and a wrong total ends
the run with exit code 1.
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

from benchmarks.crew import RunFailed
from benchmarks.transactions.running import TransactionsJob, TransactionsOutcome, run
from benchmarks.worker import new_event_loop

DATABASE, BROKER = "postgresql://root@127.0.0.1:5432/postgres", "amqp://guest:guest@127.0.0.1:5672/"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    orders: Annotated[int, typer.Option(min=1, help="How many orders in a round.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 5,
    concurrency: Annotated[list[int] | None, typer.Option(help="Transactions at once; several times for several.")] = None,
    seconds: Annotated[float, typer.Option(help="How long latency is measured, at 20 orders a second.")] = 10.0,
    backlog: Annotated[int, typer.Option(min=1, help="How many records wait for the relays.")] = 10_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure transactions against ones that write their outbox row by hand."""
    job = TransactionsJob(
        database=os.environ.get("BENCH_DATABASE", DATABASE),
        broker=os.environ.get("BENCH_BROKER", BROKER),
        orders=orders,
        rounds=rounds,
        concurrencies=tuple(concurrency or TransactionsJob.__struct_defaults__[2]),
        seconds=seconds,
        backlog=backlog,
    )
    outcome = _run(job)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(outcome)).decode())
    else:
        _show(outcome)


def _run(job: TransactionsJob) -> TransactionsOutcome:
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(run(job, _say))
    except RunFailed as error:
        sys.exit(f"!!! FAILED: {error}")


def _show(outcome: TransactionsOutcome) -> None:
    console = Console(width=120)
    load = f"load {outcome.machine.load_before} to {outcome.machine.load_after}"
    table = Table(
        "way", "at once", "transactions/s", "sent/s", "CPU ms", title=f"{outcome.date}, {outcome.rounds} rounds, {load}"
    )
    for each in outcome.rates:
        sent = f"{median(each.sent):,.0f}" if any(each.sent) else "-"
        table.add_row(each.way, str(each.concurrency), f"{median(each.committed):,.0f}", sent, f"{median(each.cpu):.2f}")
    console.print(table)
    table = Table("ratio of transactions/s", "at once", "median", "lowest", "highest")
    for each in outcome.ratios:
        ends = (f"{value:.2f}" for value in (each.ratio.median, each.ratio.low, each.ratio.high))
        table.add_row(f"{each.over} / {each.under}", str(each.concurrency), *ends)
    console.print(table)
    table = Table("ms until the message is there", "orders/s", "p50", "p95", "p99")
    for since, found in (("with the commit", outcome.latency), ("after it returned", outcome.latency_after)):
        for name, each in found.items():
            table.add_row(f"{name}, {since}", str(each.rate), f"{each.p50:g}", f"{each.p95:g}", f"{each.p99:g}")
    console.print(table)
    table = Table("relays at a backlog", "records", "messages sent", "records/s")
    for backlog in outcome.backlogs:
        how = "" if backlog.shared else ", without sharing"
        table.add_row(f"{backlog.relays}{how}", f"{backlog.records:,}", f"{backlog.sent:,}", f"{backlog.rate:,.0f}")
    console.print(table)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
