"""`onceonly demo`: the words around a run."""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from onceonly.demo.flights import load, sends, totals
from onceonly.demo.options import Deduplication, Options
from onceonly.demo.run import Result, run
from onceonly.demo.view import MUST_BE_ZERO, View, findings_table, miles_table
from onceonly.formats.escaping import to_json
from onceonly.model.wording import counted


def demo(  # noqa: PLR0913 - one parameter for each option
    *,
    flights: Annotated[int, typer.Option(min=1, max=10_000, help="Number of flights to send.")] = 5000,
    kills: Annotated[int, typer.Option(min=0, help="Number of processes to kill while they hold messages.")] = 20,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Number of worker processes.")] = 3,
    deduplication: Annotated[
        Deduplication,
        typer.Option(help="Kind of deduplication. `off` is the control run, which must show duplicates."),
    ] = Deduplication.HISTORY,
    store: Annotated[
        str,
        typer.Option(help="Store URL, of a database or a document service [default: a temporary SQLite file]."),
    ] = "",
    tokens: Annotated[str, typer.Option(help="URL for tokens [default: the store].")] = "",
    dedup_store: Annotated[str, typer.Option(help="URL of the dedup store [default: the store].")] = "",
    blobs: Annotated[str, typer.Option(help="URL for blobs. If set, every tenth flight of an airline gets a receipt.")] = "",
    transport: Annotated[str, typer.Option(help="Transport URL [default: a temporary SQLite file].")] = "",
    seed: Annotated[int, typer.Option(help="Seed for the order of messages and the choice of processes.")] = 2013,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the numbers, as JSON.")] = False,
) -> None:
    """Count the miles of real flights exactly once while processes are killed.

    Exits with code 1 if a message is lost, handled twice, announced without a commit, not announced, or left over, or if a
    total is wrong. The control run (`--deduplication off`) exits with code 1 if it shows no duplicates. On a document service,
    each leg of an airline is an entity.
    """
    for option, url, of in (
        ("--tokens", tokens, Deduplication.TOKENS),
        ("--dedup-store", dedup_store, Deduplication.DEDUP_STORE),
    ):
        if url and deduplication is not of:
            raise typer.BadParameter(f"{option} needs --deduplication {of}")
    options = Options(
        flights=flights,
        kills=kills,
        processes=processes,
        deduplication=deduplication,
        store=store,
        transport=transport,
        dedup_url=tokens or dedup_store,
        blobs=blobs,
        seed=seed,
    )
    result = _watched(options)
    if as_json:
        print(to_json(result.numbers()))  # noqa: T201 - the answer
    else:
        _tell(result, options)
    raise typer.Exit(0 if passed(result, options) else 1)


def passed(result: Result, options: Options) -> bool:
    """Tell whether a run showed what it should."""
    numbers = result.numbers()
    if options.deduplicates:
        return not any(numbers[name] for name in MUST_BE_ZERO)
    return numbers["duplicated"] > 0


def _watched(options: Options) -> Result:
    found = load(options.flights)
    deliveries = len(sends(found, options.seed))
    view = View(Console(stderr=True), options, deliveries=deliveries)
    with view.live:
        return asyncio.run(run(found, options, view.show))


def _tell(result: Result, options: Options) -> None:
    console = Console()
    console.print(miles_table(totals(load(options.flights)), result.remains.miles))
    console.print()
    console.print(findings_table(result.numbers(), options))
    console.print()
    console.print(_verdict(result, options))


def _verdict(result: Result, options: Options) -> str:
    if options.deduplicates:
        if passed(result, options):
            return f"[bold green]Exactly once[/], through {result.kills} kills."
        return "[bold red]The promise is broken[/]: see the red numbers."
    if passed(result, options):
        return f"[bold yellow]As expected[/]: without deduplication, {counted(result.findings.duplicated, 'message')} repeated."
    return "[bold red]The control run shows no duplicates[/], so it proves nothing: try more kills."
