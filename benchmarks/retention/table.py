"""The findings, for a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.report import WIDE
from benchmarks.retention.findings import DatabaseFindings, Emptying, Rate, RetentionFindings, middle, paired


def show(findings: RetentionFindings, console: Console | None = None) -> None:
    """Print everything."""
    out = console or Console(width=WIDE)
    out.print(_promises(findings))
    for name, found in findings.databases.items():
        out.print(_database(name, found))


def _promises(findings: RetentionFindings) -> Table:
    machine = findings.machine
    title = f"{findings.date}, PostgreSQL, {findings.seconds:g} s, load {machine.load_before} to {machine.load_after}"
    table = Table("what", "seen", "meant", "", title=title, title_justify="left")
    for each in findings.meant:
        limit = f"{'at least' if each.least else 'at most'} {each.limit:g}"
        table.add_row(each.what, f"{each.seen:,.3g}", limit, "" if each.is_kept else "[bold red]MISSED[/]")
    return table


def _database(name: str, found: DatabaseFindings) -> Table:
    table = Table("", "ring", "classic table", title=f"{name}, {found.claims:,} claims", title_justify="left")
    shuffled = "" if found.sizes.shuffled is None else f", shuffled {found.sizes.shuffled:.1f}"
    table.add_row("bytes a claim", f"{found.sizes.in_order:.1f}{shuffled}", f"{found.sizes.classic:.1f}")
    table.add_row("claims/s when full", _rate(found.full), _rate(found.classic))
    table.add_row("claims/s when empty", _rate(found.empty), _rate(found.classic_empty))
    if found.bare.claims:
        ratio = paired(found.empty.claims, found.bare.claims)
        table.add_row("claims/s without the label", _rate(found.bare), "")
        table.add_row("with the label over without", f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})", "")
    for what in ("seconds", "undisturbed", "beside", "longest", "dead_rows"):
        cells = [", ".join(f"{getattr(each, what) or 0:,g}" for each in side) for side in (found.emptied, found.deleted)]
        if any(cell.strip("0, ") for cell in cells):
            table.add_row(f"forgetting: {what.replace('_', ' ')}", *cells)
    if found.control:
        table.add_row("rate during over before and after", *(_ratios(side) for side in (found.emptied, found.deleted)))
        table.add_row("the same without any work", _ratios(found.control), "")
    return table


def _ratios(side: Sequence[Emptying]) -> str:
    return ", ".join(f"{each.ratio:.2f}" for each in side)


def _rate(rate: Rate) -> str:
    wal = f", {middle(rate.wal):.0f} bytes of log each" if rate.wal else ""
    return f"{middle(rate.claims):,.0f} ({min(rate.claims):,.0f} to {max(rate.claims):,.0f}){wal}"
