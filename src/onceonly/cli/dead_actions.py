"""`onceonly dead edit`, `send-as-new`, `restore` and `actions`: changes of single dead letters, and what operators did."""

from typing import Annotated

import typer

from onceonly.cli.dead import NoteOption, PlaceArgument, app
from onceonly.cli.options import JsonOption, StoreOption, TransportOption


@app.command()
def edit(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the dead letter; the first digits are enough.")],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="File with the new body, or - for standard input. Without it, the body stays.")
    ] = "",
    *,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Set this header. May be repeated.", show_default=False),
    ] = None,
    remove_header: Annotated[
        list[str] | None,
        typer.Option("--remove-header", metavar="NAME", help="Remove this header. May be repeated.", show_default=False),
    ] = None,
    note: NoteOption = "",
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retry a dead letter with another body or other headers, and the same source and id. --note is required.

    Of the old and the new body, the first that is committed takes effect; the other one is a payload mismatch. The handler's
    type decodes the new body first. The bytes of the file are sent as they are, at most 16 MiB. A dead letter that is finish
    only, was handled or has no identity cannot be edited.

    In a SQL database, `onceonly dead restore` brings the old dead letter back for 7 days.
    """
    from onceonly.cli.work import dead_actions as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.edit(
        place,
        key,
        file,
        headers=header or (),
        removed=remove_header or (),
        note=note,
        store=store,
        transport=transport,
        as_json=as_json,
    )


@app.command("send-as-new")
def send_as_new(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the dead letter; the first digits are enough.")],
    *,
    type_: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Message type, for a dead letter without one.", show_default=False)
    ] = "",
    note: NoteOption = "",
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the body of a dead letter as a new message, and delete the dead letter. --note is required.

    Only for a payload mismatch, or a dead letter without identity. The new id is a hash of the dead letter's key, so repeating
    the command does not make a second message. Late copies with the old id are handled as well: check that both are meant.
    """
    from onceonly.cli.work import dead_actions as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.send_as_new(place, key, type_=type_, note=note, store=store, transport=transport, as_json=as_json)


@app.command()
def restore(
    place: PlaceArgument,
    action: Annotated[int, typer.Argument(metavar="ACTION", help="Number of the action, from `onceonly dead actions`.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Only this dead letter; the first digits are enough.")] = "",
    *,
    note: NoteOption = "",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore dead letters that an action deleted or edited, for 7 days. Their keys and times are those of before.

    If a restored message has been handled with an edited body, a retry of it is a payload mismatch.
    """
    from onceonly.cli.work import dead_actions as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.restore(place, action, key, note=note, store=store, as_json=as_json)


@app.command()
def actions(
    place: PlaceArgument,
    number: Annotated[int, typer.Argument(metavar="ACTION", help="Show the dead letters of this action.")] = 0,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 100,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what operators did with dead letters, the newest first: retries, edits, deletions, and what became of them.

    Actions are stored in SQL databases for 400 days. Elsewhere they are only lines of the log `onceonly.audit`.
    """
    from onceonly.cli.work import dead_actions as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.actions(place, number, limit=limit, store=store, as_json=as_json)
