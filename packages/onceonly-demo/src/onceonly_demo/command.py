"""`onceonly demo`: its options."""

from typing import Annotated

import typer

from onceonly_demo.options import Deduplication, DemoOptions


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
    documents: Annotated[
        bool, typer.Option("--documents", help="Also write documents of the application, next to the entities.")
    ] = False,
    collection: Annotated[str, typer.Option(help="Collection or table of these documents [default: the store's].")] = "",
    transport: Annotated[str, typer.Option(help="Transport URL [default: a temporary SQLite file].")] = "",
    seed: Annotated[int, typer.Option(help="Seed for the order of messages and the choice of processes.")] = 2013,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the numbers, as JSON.")] = False,
) -> None:
    """Count the miles of real flights exactly once while processes are killed.

    Exits with code 1 if a message is lost, handled twice, announced without a commit, not announced, or left over, or if a
    total is wrong. The control run (`--deduplication off`) exits with code 1 if it shows no duplicates. On a document service,
    each leg of an airline is an entity. With `--documents`, also if a document of the application disagrees with its entity.
    """
    if collection and not documents:
        raise typer.BadParameter("--collection needs --documents")
    for option, url, of in (
        ("--tokens", tokens, Deduplication.TOKENS),
        ("--dedup-store", dedup_store, Deduplication.DEDUP_STORE),
    ):
        if url and deduplication is not of:
            raise typer.BadParameter(f"{option} needs --deduplication {of}")
    options = DemoOptions(
        flights=flights,
        kills=kills,
        processes=processes,
        deduplication=deduplication,
        store=store,
        transport=transport,
        dedup_url=tokens or dedup_store,
        blobs=blobs,
        documents=documents,
        collection=collection,
        seed=seed,
    )
    from onceonly_demo.report import run_and_report  # noqa: PLC0415 - a wrong option is reported before SQLAlchemy is imported

    raise typer.Exit(0 if run_and_report(options, as_json=as_json) else 1)
