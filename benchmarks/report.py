"""The tables of a run, for a terminal."""

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from benchmarks.page import backlog_rows, contention_rows, growth_rows, latency_rows, ratio_rows, row_rows
from benchmarks.results import Results

WIDE = 190


def show(results: Results, console: Console | None = None) -> None:
    """Print everything; what was skipped comes last and loud."""
    out = console or Console(width=WIDE)
    out.print(Group(*_tables(results)))
    for name, why in results.failed.items():
        out.print(Text(f"!!! FAILED: {name}: {why}", style="bold red"))
    for name, why in results.skipped.items():
        out.print(Text(f"!!! NOT MEASURED: {name}: {why}", style="bold red"))


def _tables(results: Results) -> list[Table]:
    load = f"load {results.machine.load_before} to {results.machine.load_after}"
    title = f"{results.date}, {results.mode}, {results.rounds} rounds, {load}"
    sections = [(title, row_rows(results)), ("Paired ratios", ratio_rows(results))]
    sections += [("Latency", latency_rows(results)), ("Memory with a backlog", backlog_rows(results))]
    sections += [("How cost grows", growth_rows(results)), ("Many processes beside each other", contention_rows(results))]
    return [_table(title, *rows) for title, rows in sections if len(rows) > 1]


def _table(title: str, head: list[str], *rows: list[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
