"""`python -m benchmarks.soak`: run hosts for an hour, and compare what they hold with limits.

They are a forked and a threaded host, and a worker of Celery with prefork. Those that are chosen run at the same time. Each
has a database of its own on PostgreSQL (BENCH_DATABASE) and a virtual host of its own on RabbitMQ (BENCH_BROKER), which are
removed at the end. It exits with 1 if a limit was exceeded, or if an order was lost or done twice.
Connections and channels of RabbitMQ are counted with `rabbitmqctl`.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.soak.limits import Quarter
from benchmarks.soak.plan import HostName, plan_of
from benchmarks.soak.running import Outcome, Servers, run

DATABASE, BROKER = "postgresql://root@127.0.0.1:5432/postgres", "amqp://guest:guest@127.0.0.1:5672/"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    minutes: Annotated[float, typer.Option(min=0.2, help="How long each host runs.")] = 60.0,
    host: Annotated[list[str] | None, typer.Option(help="forked, threaded or celery [default: the first two].")] = None,
    samples: Annotated[Path | None, typer.Option(help="Write everything, with all samples, to this file as JSON.")] = None,
) -> None:
    """Run hosts, and compare what they hold with limits."""
    servers = Servers(os.environ.get("BENCH_DATABASE", DATABASE), os.environ.get("BENCH_BROKER", BROKER))
    outcomes = asyncio.run(_run(_chosen(host), minutes, servers))
    for outcome in outcomes:
        show(outcome)
    if samples is not None:
        samples.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)) + b"\n")
    if any(outcome.problems for outcome in outcomes):
        sys.exit(1)


def _chosen(names: list[str] | None) -> list[HostName]:
    hosts: tuple[HostName, ...] = ("forked", "threaded", "celery")
    unknown = sorted(set(names or ()) - {*hosts})
    if unknown:
        raise typer.BadParameter(f"no host {', '.join(unknown)}; there are {', '.join(hosts)}")
    return [each for each in hosts if each in (names or hosts[:2])]


async def _run(hosts: list[HostName], minutes: float, servers: Servers) -> list[Outcome]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # databases and queues are removed then, too
    return list(await asyncio.gather(*(run(plan_of(each, minutes), servers, _say) for each in hosts)))


def show(outcome: Outcome) -> None:
    """Print one run."""
    table = Table(title=f"{outcome.host} host, {outcome.minutes:g} minutes")
    for name in ("", "first quarter", "last quarter", "highest", "limit", "growth", "limit of growth"):
        table.add_column(name, justify="left" if not name else "right")
    for each in outcome.findings:
        most, growth = each.limit.most, each.limit.growth
        table.add_row(
            each.limit.name,
            _quarter(each.first),
            _quarter(each.last),
            f"{each.highest:.4g}",
            "" if most is None else f"{most:.4g}",
            f"{each.growth:.3g}",
            "" if growth is None else f"{growth:.3g}",
            style="red" if each.problems else None,
        )
    console = Console(width=160)
    console.print(table)
    ended = ", ".join(f"{count} {how}" for how, count in outcome.ended.items()) or "none"
    print(
        f"{outcome.orders:,} orders, {outcome.rows:,} rows, {outcome.events:,} events, {outcome.repeated:,} of them repeated;"
        f" children or threads that ended: {ended}"
    )
    if not any("RabbitMQ" in finding.limit.name for finding in outcome.findings):
        print("not counted: connections and channels of RabbitMQ, for want of rights on rabbitmqctl")
    for problem in outcome.problems:
        print(f"!!! {problem}")
    print("FAILED" if outcome.problems else "passed")


def _quarter(quarter: Quarter) -> str:
    return " / ".join(f"{value:.4g}" for value in quarter)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
