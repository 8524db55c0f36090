"""`python -m examples.shop_demo`: the words around a run."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from examples.shop_demo import rabbitmq

MUST_BE_ZERO = (
    "lost",
    "duplicated",
    "different_answers",
    "unbilled",
    "billed_twice",
    "unshipped",
    "shipped_twice",
    "ghosts",
)


def demo(
    *,
    kills: Annotated[int, typer.Option(min=0, help="How often the web process or the worker is killed.")] = 50,
    keys: Annotated[
        bool, typer.Option("--keys/--no-keys", help="Without keys it is the control run, which must show duplicates.")
    ] = True,
    broker: Annotated[
        bool, typer.Option("--broker/--no-broker", help="Use a RabbitMQ of the demo's own, where its programs are installed.")
    ] = True,
    outage: Annotated[float, typer.Option(min=0, help="For how many seconds that broker is stopped.")] = 10.0,
    seed: Annotated[int, typer.Option(help="For what is ordered, and for when processes die.")] = 2013,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON and nothing else.")] = False,
) -> None:
    """Order in the shop by clients that retry blindly, while its processes are killed.

    Exits with 1 when an order is lost or there twice, has not one invoice and one parcel, or a retry got another answer. On a
    temporary SQLite file, unless SHOP_STORE names an empty database with onceonly's tables.
    """
    words = Console(stderr=True)
    with _own_broker(words, wanted=broker and "SHOP_TRANSPORT" not in os.environ) as server, _settings(server):
        from examples.shop_demo.run import run  # noqa: PLC0415 - reads the settings from the environment

        words.print(f"clients order without a pause, and processes are killed {kills} times")
        result = asyncio.run(run(kills=kills, keys=keys, seed=seed, broker=server, outage=outage))
    numbers = result.numbers()
    wrong = any(numbers[name] for name in MUST_BE_ZERO)
    passed = not wrong if keys else result.findings.duplicated > 0
    if as_json:
        print(msgspec.json.encode(numbers).decode())
    else:
        _tell(Console(), numbers, keys=keys, passed=passed)
    raise typer.Exit(0 if passed else 1)


@contextmanager
def _own_broker(words: Console, *, wanted: bool) -> Iterator[rabbitmq.OwnRabbitMQ | None]:
    programs = rabbitmq.programs() if wanted else None
    if programs is None:
        if wanted:
            words.print("[bold yellow]RabbitMQ is not installed[/]: the queue is a SQLite file, and no broker is stopped")
        yield None
        return
    with rabbitmq.own_rabbitmq(*programs) as server:
        words.print("starting a RabbitMQ of our own")
        server.start()
        yield server


@contextmanager
def _settings(server: rabbitmq.OwnRabbitMQ | None) -> Iterator[None]:
    """Put the shop's settings into the environment, for this process and those that it starts."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="onceonly-shop-", ignore_cleanup_errors=True)))
        os.environ.setdefault("SHOP_STORE", f"sqlite+aiosqlite:///{folder}/shop.db")
        os.environ.setdefault("SHOP_TRANSPORT", server.url if server is not None else f"sqlite:///{folder}/queue.db")
        os.environ |= {"SHOP_WORKER": "apart", "SHOP_PACE": "0"}
        yield


def _tell(console: Console, numbers: dict[str, object], *, keys: bool, passed: bool) -> None:
    table = Table(show_header=False, box=None)
    for name, number in numbers.items():
        bad = name in MUST_BE_ZERO and number != 0
        table.add_row(name.replace("_", " "), f"[bold red]{number}[/]" if bad else str(number))
    console.print(table)
    if keys:
        console.print("[bold green]Every order, exactly once.[/]" if passed else "[bold red]The promise is broken.[/]")
    else:
        told = "[bold yellow]As expected[/]: without keys, a client that retries orders again." if passed else ""
        console.print(told or "[bold red]The control run shows no duplicates[/], so it proves nothing: try more kills.")


if __name__ == "__main__":
    typer.run(demo)
