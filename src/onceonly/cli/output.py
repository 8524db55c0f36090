"""How the command line speaks: answers on standard output, everything else on standard error."""

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from onceonly.formats.escaping import escape, to_json

NEGATIVE = 1
"""Exit code: the command worked, and the answer is no."""
SETUP = 2
"""Exit code: a person has to change something first."""


def answers() -> Console:
    """Give the console of answers. Piped, it never breaks a line: other programs read it."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=10_000)


def notices() -> Console:
    """Give the console of everything else: progress, hints, errors."""
    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Tell something that is no answer, in one line."""
    notices().print(Text(escape(text)), soft_wrap=True)


def complain(text: str) -> None:
    """Print what is wrong and what to do: one line, unless the text lists several problems."""
    notices().print(Text.assemble(("error: ", "bold red"), escape(text.strip())), soft_wrap=True)


def refuse(text: str, code: int = NEGATIVE) -> NoReturn:
    """Complain, and end the command."""
    complain(text)
    raise typer.Exit(code)


def show_json(value: Any) -> None:
    """Print one JSON document, indented."""
    typer.echo(to_json(value, indent=2))


def show(text: str) -> None:
    """Print an answer as plain text."""
    answers().print(Text(escape(text)), soft_wrap=True)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print an answer as a table."""
    if title:
        show(title)
    answers().print(table_of(columns, rows))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Draw a table; columns whose cells are all numbers are aligned to the right."""
    cells = [tuple(row) for row in rows]
    table = Table(header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[index], int | float) for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def progress() -> Progress:
    """Give a progress bar on standard error; nothing is drawn unless that is a terminal."""
    console = notices()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.1f}" if isinstance(value, float) else escape(str(value), multiline=False)
