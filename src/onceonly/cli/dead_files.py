"""`onceonly dead export` and `onceonly dead import`: dead letters in files, to keep them or to move them."""

from typing import Annotated

import typer

from onceonly.cli.dead import EndpointOption, GroupOption, PlaceArgument, ReasonOption, TypeOption, app
from onceonly.cli.options import JsonOption, StoreOption


@app.command("export")
def export(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="New file, or - for standard output.")] = "-",
    *,
    endpoint: EndpointOption = "",
    type_: TypeOption = "",
    reason: ReasonOption = "",
    group: GroupOption = "",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export dead letters as JSON Lines, oldest first: all fields, with bodies in base64. The dead letters stay in the store.

    If the export fails, no file is written. An existing file is never overwritten.
    """
    from onceonly.cli.work import dead_files as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.export(place, file, endpoint=endpoint, type_=type_, reason=reason, group=group, store=store, as_json=as_json)


@app.command("import")
def import_(
    place: PlaceArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="File written by `dead export`, or - for standard input.")] = "-",
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import dead letters of any endpoint from JSON Lines. Existing dead letters are not changed.

    Importing a file twice is safe: dead letters are identified by key. If a line is not a dead letter, the lines before it are
    imported, and the exit code is 1.
    """
    from onceonly.cli.work import dead_files as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.import_(place, file, store=store, as_json=as_json)
