"""The words around a run of the demo."""

import asyncio

from rich.console import Console

from onceonly.demo.flights import load, sends, totals
from onceonly.demo.options import Options
from onceonly.demo.run import Result, run
from onceonly.demo.view import MUST_BE_ZERO, View, findings_table, miles_table
from onceonly.formats.escaping import to_json
from onceonly.model.wording import counted


def run_and_show(options: Options, *, as_json: bool) -> bool:
    """Run the demo, and print what it shows. Return whether it is what it should be."""
    result = _watched(options)
    if as_json:
        print(to_json(result.numbers()))  # noqa: T201 - the answer
    else:
        _tell(result, options)
    return passed(result, options)


def passed(result: Result, options: Options) -> bool:
    """Return whether a run showed what it should."""
    if options.deduplicates:
        numbers = result.numbers()
        return not any(numbers[name] for name in MUST_BE_ZERO)
    return result.findings.duplicated > 0


def _watched(options: Options) -> Result:
    found = load(options.flights)
    deliveries = len(sends(found, options.seed))
    view = View(Console(stderr=True), options, deliveries=deliveries)
    with view.live:
        return asyncio.run(run(found, options, view.show))


def _tell(result: Result, options: Options) -> None:
    console = Console()
    console.print(miles_table(totals(load(options.flights)), result.remains.miles))
    console.print()
    console.print(findings_table(result.numbers(), options))
    console.print()
    console.print(_verdict(result, options))


def _verdict(result: Result, options: Options) -> str:
    if options.deduplicates:
        if passed(result, options):
            return f"[bold green]Exactly once[/], through {result.kills} kills."
        return "[bold red]The promise is broken[/]: see the red numbers."
    if passed(result, options):
        return f"[bold yellow]As expected[/]: without deduplication, {counted(result.findings.duplicated, 'message')} repeated."
    return "[bold red]The control run shows no duplicates[/], so it proves nothing: try more kills."
