"""`onceonly dead export` and `onceonly dead import`: dead letters in files, to keep them or to move them."""

import asyncio
from typing import Annotated, BinaryIO

import typer

from onceonly.assembly import open_dead_letters
from onceonly.assembly.looking import looked_at
from onceonly.cli.dead import EndpointOption, GroupOption, PlaceArgument, ReasonOption, TypeOption, app, completed, filter_of
from onceonly.cli.events import BadItem
from onceonly.cli.files import reading, writing
from onceonly.cli.letter_lines import ImportResult, read_lines, write_lines
from onceonly.cli.output import NEGATIVE, complain, progress, say, show, show_json
from onceonly.cli.places import CommandTarget, JsonOption, StoreOption, UrlOverrides, place_of
from onceonly.cli.reaching import reached
from onceonly.model.errors import RetryableError, SetupError
from onceonly.operations.letters import LetterSelection, pages


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
    if as_json and file == "-":
        raise SetupError("--json prints the count to standard output, where the dead letters go: name a FILE")
    where = place_of(place, UrlOverrides(store))
    count = asyncio.run(_export(where, LetterSelection(filter=filter_of(where, endpoint, type_, reason, group)), file))
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
    where = place_of(place, UrlOverrides(store))
    tally, problem = ImportResult(), ""
    with reading(file) as stream:
        try:
            asyncio.run(_import(where, stream, tally))
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
        complain(f"{problem}. {tally.new} imported before it. Correct the line and import the file again")
        raise typer.Exit(NEGATIVE)


async def _export(place: CommandTarget, chosen: LetterSelection, file: str) -> int:
    setting = looked_at(place.dead_letters)
    async with reached("dead_letters", setting, open_dead_letters(setting)) as letters:
        chosen = await completed(letters, chosen)
        total = await letters.count(chosen.filter)
        with writing(file) as stream, progress() as bar:
            task = bar.add_task("exporting", total=total)
            return await write_lines(pages(letters, chosen), stream, tick=lambda count: bar.advance(task, count))


async def _import(place: CommandTarget, stream: BinaryIO, tally: ImportResult) -> None:
    async with reached("dead_letters", place.dead_letters, open_dead_letters(place.dead_letters)) as letters:
        with progress() as bar:
            task = bar.add_task("importing", total=None)
            await read_lines(stream, letters, tally=tally, tick=lambda count: bar.advance(task, count))
