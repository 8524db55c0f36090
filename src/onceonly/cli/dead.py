"""`onceonly dead`: inspect, retry and purge dead letters."""

from typing import Annotated, TypeAlias

import typer

from onceonly.cli.options import JsonOption, StoreOption, TransportOption

PlaceArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ENDPOINT_OR_URL", help="module:endpoint, or the URL of the store with the dead letters.")
]
KeysArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY", help="Keys of dead letters; the first digits are enough.", show_default=False),
]
EndpointOption: TypeAlias = Annotated[
    str, typer.Option("--endpoint", metavar="NAME", help="Only dead letters of this endpoint.")
]
TypeOption: TypeAlias = Annotated[str, typer.Option("--type", metavar="TYPE", help="Only messages of this type.")]
ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Only dead letters whose reason contains this text.")
]
GroupOption: TypeAlias = Annotated[
    str,
    typer.Option("--group", metavar="KEY", help="Only dead letters of this failure group; the first digits are enough."),
]
NoteOption: TypeAlias = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Why, for `onceonly dead actions`.", show_default=False)
]
AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="All dead letters.")]
AnywayOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="With keys: retry even if the message is older than the retention or from the future. If it was handled before, "
        "it is HANDLED TWICE. Check your data first.",
    ),
]
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, show, retry, purge, export and import dead letters.",
)


@app.command("list")
def list_(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    *,
    endpoint: EndpointOption = "",
    type_: TypeOption = "",
    reason: ReasonOption = "",
    group: GroupOption = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of dead letters.")] = 100,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, oldest first."""
    from onceonly.cli.work import dead as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.list_(place, endpoint=endpoint, type_=type_, reason=reason, group=group, limit=limit, store=store, as_json=as_json)


@app.command()
def groups(
    place: PlaceArgument,
    *,
    endpoint: EndpointOption = "",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count dead letters with the same failure: message type, exception, and place in the code. The largest group is first.

    --group of the other commands selects the dead letters of a group. In a document store, the newest 1,000 dead letters are
    counted.
    """
    from onceonly.cli.work import dead as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.groups(place, endpoint=endpoint, store=store, as_json=as_json)


@app.command("show")
def show_(
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the dead letter; the first digits are enough.")],
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: its message, its reason, and the failures before it."""
    from onceonly.cli.work import dead as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.show_(place, key, store=store, as_json=as_json)


@app.command()
def retry(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    keys: KeysArgument = None,
    *,
    endpoint: EndpointOption = "",
    type_: TypeOption = "",
    reason: ReasonOption = "",
    group: GroupOption = "",
    all_: AllOption = False,
    anyway: AnywayOption = False,
    rate: Annotated[float, typer.Option(min=0, metavar="NUMBER", help="Messages per second. 0 means unlimited.")] = 0,
    probe: Annotated[
        int,
        typer.Option(
            min=0, metavar="NUMBER", help="Retry this number of dead letters first, and the rest only if these are handled."
        ),
    ] = 0,
    note: NoteOption = "",
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Return the messages of dead letters to the queue of their endpoint, with the same ids, and delete the dead letters.

    Select them by key, or with --endpoint, --type, --reason or --all. A message that was handled before is not handled again;
    only its unsent messages are sent.

    A message "behind the horizon" is older than the retention, so the store cannot decide whether it was handled. It is retried
    with --anyway only. A message "from the future" is retried when its time has come, or with --anyway.

    Exits with code 1 if a dead letter could not be retried.
    """
    from onceonly.cli.work import dead as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.retry(
        place,
        keys,
        endpoint=endpoint,
        type_=type_,
        reason=reason,
        group=group,
        all_=all_,
        anyway=anyway,
        rate=rate,
        probe=probe,
        note=note,
        store=store,
        transport=transport,
        as_json=as_json,
    )


@app.command()
def purge(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    keys: KeysArgument = None,
    *,
    endpoint: EndpointOption = "",
    type_: TypeOption = "",
    reason: ReasonOption = "",
    group: GroupOption = "",
    all_: AllOption = False,
    note: NoteOption = "",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters and their messages. In a SQL database, `onceonly dead restore` undoes it for 7 days.

    A finish-only dead letter is different: its handler's changes are committed. Its record stays in the store, and the relay
    retries the unsent messages until the broker accepts them.
    """
    from onceonly.cli.work import dead as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.purge(
        place,
        keys,
        endpoint=endpoint,
        type_=type_,
        reason=reason,
        group=group,
        all_=all_,
        note=note,
        store=store,
        as_json=as_json,
    )
