"""How the command line speaks: answers on standard output, everything else on standard error.

Worker processes import this module for errors that end them. So Rich and Typer are imported when something is printed.
"""

import codecs
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NoReturn

from onceonly.model.escaping import escape, to_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

NEGATIVE = 1
"""Exit code: the command worked, and the answer is no."""
SETUP = 2
"""Exit code: a person has to change something first."""
_ESCAPES = "onceonly.escapes"


def answers() -> "Console":
    """Return the console of answers. Piped, it never breaks a line: other programs read it."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=10_000)


def notices() -> "Console":
    """Return the console of everything else: progress, hints, errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def replace_unwritable() -> None:
    r"""Print characters that the encoding of a terminal or a pipe does not have as `\uXXXX`, instead of failing.

    These are the escapes of JSON, so a JSON document stays one.
    """
    codecs.register_error(_ESCAPES, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors=_ESCAPES)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def write(text: str) -> None:
    """Print an answer as it is. Typer's `echo` would print UTF-8 where the stream is ASCII."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    from rich.text import Text

    notices().print(Text(escape(text)), soft_wrap=True)


def show_destinations(destinations: Mapping[str, Mapping[str, str]]) -> None:
    """Print where events go that do not go to their subscribers, by endpoint and type. Nothing if there are none."""
    rows = [(endpoint, type_, to) for endpoint, found in destinations.items() for type_, to in found.items()]
    if rows:
        show_table("", ("endpoint", "publishes", "to"), rows)


def print_error(text: str) -> None:
    """Print what is wrong and what to do: one line, unless the text lists several problems."""
    from rich.text import Text

    notices().print(Text.assemble(("error: ", "bold red"), escape(text.strip())), soft_wrap=True)


def refuse(text: str, code: int = NEGATIVE) -> NoReturn:
    import typer

    print_error(text)
    raise typer.Exit(code)


def show_json(value: Any) -> None:
    write(to_json(value, indent=2) + "\n")


def show(text: str) -> None:
    from rich.text import Text

    answers().print(Text(escape(text)), soft_wrap=True)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    if title:
        show(title)
    answers().print(table_of(columns, rows))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> "Table":
    """Draw a table; columns whose cells are all numbers are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    cells = [tuple(row) for row in rows]
    table = Table(header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[index], int | float) for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def progress() -> "Progress":
    """Return a progress bar on standard error; nothing is drawn unless that is a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = notices()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.1f}" if isinstance(value, float) else escape(str(value), multiline=False)


def size_text(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:  # noqa: PLR2004 - of a unit, the next one is better
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"
