"""`onceonly dead export` and `onceonly dead import`: dead letters in files, to store them or to move them."""

from typing import Annotated, BinaryIO

import typer

from onceonly.cli.commands import JsonOption, StoreOption
from onceonly.cli.dead import EndpointOption, GroupOption, PlaceArgument, ReasonOption, TypeOption, app
from onceonly.cli.output import NEGATIVE, print_error, progress, say, show, show_json
from onceonly.model.errors import RetryableError, SetupError


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
    import asyncio

    from onceonly.cli.files import write_lines, writing
    from onceonly.cli.operator_ports import open_letters
    from onceonly.cli.targets import target_of
    from onceonly.operations.letters import complete_group, pages
    from onceonly.ports.dead_letters import Filter

    if as_json and file == "-":
        raise SetupError("--json prints the count to standard output, where the dead letters go: name a FILE")
    target = target_of(place, store)
    options = Filter(endpoint=endpoint or target.name, type=type_, reason=reason, failure=group)

    async def run() -> int:
        async with open_letters(target, reads=True) as letters:
            chosen = await complete_group(letters, options)
            total = await letters.count(chosen)
            with writing(file) as stream, progress() as bar:
                task = bar.add_task("exporting", total=total)
                return await write_lines(pages(letters, chosen), stream, tick=lambda count: bar.advance(task, count))

    count = asyncio.run(run())
    if as_json:
        show_json({"exported": count, "file": file})
    else:
        (say if file == "-" else show)(f"{count} exported")


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
    import asyncio

    from onceonly.cli.events import BadItem
    from onceonly.cli.files import ImportResult, interruptible, read_lines, reading
    from onceonly.cli.operator_ports import open_letters
    from onceonly.cli.targets import target_of

    target = target_of(place, store)
    tally, problem = ImportResult(), ""

    async def run(stream: BinaryIO) -> None:
        async with open_letters(target) as letters:
            with progress() as bar:
                task = bar.add_task("importing", total=None)
                await read_lines(interruptible(stream), letters, tally=tally, tick=lambda count: bar.advance(task, count))

    with reading(file) as stream:
        try:
            asyncio.run(run(stream))
        except BadItem as error:
            problem = str(error)
        except RetryableError:
            if tally.new:
                say(f"{tally.new} imported before the error. Import the file again: existing dead letters are skipped")
            raise
    if as_json:
        show_json({"imported": tally.new, "known": tally.known, "error": problem or None})
    else:
        show(f"{tally.new} imported, {tally.known} already present")
    if problem:
        print_error(f"{problem}. {tally.new} imported before it. Correct the line and import the file again")
        raise typer.Exit(NEGATIVE)
