"""Runs the demo, and prints its report."""

import asyncio

from rich.console import Console

from onceonly.model.escaping import to_json
from onceonly.model.wording import counted
from onceonly_demo.flights import load, sends, totals
from onceonly_demo.options import DemoOptions
from onceonly_demo.run import Result, run
from onceonly_demo.view import MUST_BE_ZERO, View, findings_table, miles_table


def run_and_report(options: DemoOptions, *, as_json: bool) -> bool:
    """Run the demo, and print its report. Return whether the result is as expected."""
    result = _run_with_view(options)
    if as_json:
        print(to_json(result.numbers()))  # noqa: T201 - the answer
    else:
        _print_report(result, options)
    return passed(result, options)


def passed(result: Result, options: DemoOptions) -> bool:
    """Return whether a run showed what it should."""
    if options.deduplicates:
        numbers = result.numbers()
        return not any(numbers[name] for name in MUST_BE_ZERO)
    return result.findings.duplicated > 0


def _run_with_view(options: DemoOptions) -> Result:
    found = load(options.flights)
    deliveries = len(sends(found, options.seed))
    view = View(Console(stderr=True), options, deliveries=deliveries)
    with view.live:
        return asyncio.run(run(found, options, view.show))


def _print_report(result: Result, options: DemoOptions) -> None:
    console = Console()
    console.print(miles_table(totals(load(options.flights)), result.remains.miles))
    console.print()
    console.print(findings_table(result.numbers(), options))
    console.print()
    console.print(_conclusion(result, options))


def _conclusion(result: Result, options: DemoOptions) -> str:
    if options.deduplicates:
        if passed(result, options):
            return f"[bold green]Exactly once[/], through {result.kills} kills."
        return "[bold red]The promise is broken[/]: see the red numbers."
    if passed(result, options):
        return f"[bold yellow]As expected[/]: without deduplication, {counted(result.findings.duplicated, 'message')} repeated."
    return "[bold red]The control run shows no duplicates[/], so it proves nothing: try more kills."
