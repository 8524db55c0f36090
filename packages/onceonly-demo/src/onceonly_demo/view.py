"""What the demo shows while it runs, and its tables at the end. Everything here is text for people, on standard error."""

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from onceonly_demo.audit import differences
from onceonly_demo.flights import LEDGER, LOYALTY, SINK, airlines
from onceonly_demo.options import Deduplication, DemoOptions


class ViewState(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a run."""

    left: Mapping[str, int]
    sunk: int
    kills: int
    deliveries: int
    duplicates: int
    processes: Sequence[str]


class View:
    """A live picture of the run; quiet when standard error is not a terminal."""

    def __init__(self, console: Console, options: DemoOptions, *, deliveries: int) -> None:
        """Print the run's settings, and in how many deliveries the flights are sent."""
        self._kills = options.kills
        flights = options.flights
        self._bars = Progress(
            TextColumn("{task.description:>10}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._left = {LEDGER: deliveries, LOYALTY: flights}
        self._tasks = {name: self._bars.add_task(name, total=total) for name, total in self._left.items()}
        self._tasks[SINK] = self._bars.add_task("on the wire", total=flights)
        self._title = "every flight, exactly once" if options.deduplicates else "control run: without deduplication"
        self.live = Live(self._render(None), console=console, refresh_per_second=10, transient=True)

    def show(self, state: ViewState) -> None:
        """Show this moment."""
        for name in self._left:
            waiting = state.left[name]
            total = self._left[name] = max(self._left[name], waiting)
            self._bars.update(self._tasks[name], completed=total - waiting, total=total)
        self._bars.update(self._tasks[SINK], completed=state.sunk)
        self.live.update(self._render(state))

    def _render(self, state: ViewState | None) -> RenderableType:
        if state is None:
            return Panel(self._bars, title=self._title)
        numbers = f"{state.deliveries:,} deliveries   {state.duplicates:,} answered as known   "
        kills = f"{state.kills} of {self._kills} kills"
        line = Text.assemble(numbers, (kills, "bold red"), "   ", "  ".join(state.processes))
        return Panel(Group(self._bars, Text(), line), title=self._title)


def miles_table(expected: Mapping[str, int], counted: Mapping[str, Mapping[str, int]]) -> Table:
    """Compare each airline's miles with the sum from the file."""
    table = Table(title="Miles by airline", title_justify="left")
    table.add_column("airline")
    for name in ("from the file", LEDGER, LOYALTY):
        table.add_column(name, justify="right")
    table.add_column("")
    names = airlines()
    wrong = {carrier for name in (LEDGER, LOYALTY) for carrier in differences(expected, counted[name])}
    for carrier in sorted({*expected, *wrong}):
        miles = [expected.get(carrier, 0), *(counted[name].get(carrier, 0) for name in (LEDGER, LOYALTY))]
        mark = Text("differs", "bold red") if carrier in wrong else Text("equal", "green")
        table.add_row(names.get(carrier, carrier), *(f"{number:,}" for number in miles), mark)
    return table


def findings_table(result: Mapping[str, int | float | str], options: DemoOptions) -> Table:
    """Show the numbers of a run; those that must be zero when it deduplicates are marked."""
    table = Table(title="What happened", title_justify="left", show_header=False)
    for name, meaning in _meanings(options).items():
        value = result[name]
        style = "" if name not in MUST_BE_ZERO or not options.deduplicates else "bold red" if value else "green"
        table.add_row(
            name.replace("_", " "), Text(value if isinstance(value, str) else f"{value:,}", style, justify="right"), meaning
        )
    cause = f"seconds that a message waited for its next step: {result['longest_wait_cause']}"
    table.add_row("longest wait", Text(f"{result['longest_wait']:,}", justify="right"), cause)
    return table


def _meanings(options: DemoOptions) -> Mapping[str, str]:
    chosen = options.deduplication
    tokens = {"prepared": "of these: tokens that are not live yet", "live": "of these: live tokens"}
    blobs = {
        "blobs": "receipts of flights",
        "missing_blobs": "announced, but not there",
        "unannounced_blobs": "there, but never announced",
        "swept_attempts": "open attempts, or entries of closed ones, that the sweeper removed",
    }
    marks = {
        Deduplication.HISTORY: {"marks": "handled messages that the store remembers"},
        Deduplication.DEDUP_STORE: {"marks": "handled messages that the dedup store remembers"},
        Deduplication.TOKENS: {"swept_tokens": "prepared tokens that kills had left, and the sweeper removed", **tokens},
    }
    return {
        "messages": "distinct flights sent",
        "deliveries": "received by workers",
        "duplicates": "deliveries answered as known",
        "kills": "processes killed while they held messages",
        "effects": "distinct messages on the wire",
        "lost": "neither handled nor a dead letter",
        "duplicated": "handled again",
        "ghosts": "announced, but never committed",
        "phantoms": "committed, but never announced",
        "dead_letters": "given up",
        **(blobs if options.blobs else {}),
        **({"half_batches": "documents of the application that disagree with their entity"} if options.documents else {}),
        "leftovers": "records, queue rows, claims, tokens and open attempts that are left",
        **marks.get(chosen, {}),
        "wrong_totals": "airlines whose miles differ",
        "seconds": "from the first message to the last",
    }


MUST_BE_ZERO = (
    "lost",
    "duplicated",
    "ghosts",
    "phantoms",
    "dead_letters",
    "missing_blobs",
    "unannounced_blobs",
    "half_batches",
    "leftovers",
    "prepared",
    "live",
    "wrong_totals",
)
