"""What `onceonly dead export` and `onceonly dead import` do."""

import asyncio
from typing import BinaryIO

import typer

from onceonly.assembly import open_dead_letters
from onceonly.assembly.looking import looked_at
from onceonly.cli.events import BadItem
from onceonly.cli.files import interruptible, reading, writing
from onceonly.cli.letter_lines import ImportResult, read_lines, write_lines
from onceonly.cli.output import NEGATIVE, complain, progress, say, show, show_json
from onceonly.cli.places import CommandTarget, UrlOverrides, place_of
from onceonly.cli.reaching import reached
from onceonly.cli.work.dead import completed, filter_of
from onceonly.model.errors import RetryableError, SetupError
from onceonly.operations.letters import LetterSelection, pages


def export(  # noqa: PLR0913 - one parameter for each option
    place: str, file: str, *, endpoint: str, type_: str, reason: str, group: str, store: str | None, as_json: bool
) -> None:
    """Export dead letters as JSON Lines, oldest first, with bodies in base64. The dead letters stay in the store."""
    if as_json and file == "-":
        raise SetupError("--json prints the count to standard output, where the dead letters go: name a FILE")
    where = place_of(place, UrlOverrides(store))
    count = asyncio.run(_export(where, LetterSelection(filter=filter_of(where, endpoint, type_, reason, group)), file))
    if as_json:
        show_json({"exported": count, "file": file})
    else:
        (say if file == "-" else show)(f"{count} exported")


def import_(place: str, file: str, *, store: str | None, as_json: bool) -> None:
    """Import dead letters of any endpoint from JSON Lines. Existing dead letters are not changed."""
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
            await read_lines(interruptible(stream), letters, tally=tally, tick=lambda count: bar.advance(task, count))
