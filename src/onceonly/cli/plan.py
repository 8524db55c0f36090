"""`onceonly plan`: what deduplication data will take on this database, measured on it."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from time import perf_counter
from typing import Annotated, Any

import typer
from msgspec import Struct

from onceonly.cli.output import say, show_json, show_table
from onceonly.cli.places import Instead, StoreOption, looked_at, place_of
from onceonly.cli.reaching import ANY_TIME, answering
from onceonly.model.durations import in_words, parse_duration
from onceonly.model.errors import SetupError
from onceonly.model.measured import Estimate, estimate
from onceonly.model.retention import SLICES
from onceonly.model.settings import History
from onceonly.runtime.surroundings import LIVE
from onceonly.wiring import measure, shown

LARGEST_RATE = 10_000_000.0


class Planned(Struct, frozen=True, kw_only=True):
    """What a rate takes: durations are in seconds, the sample in rows."""

    database: str
    rate: float
    retention: float
    slice: float
    in_flight: float
    sample: int
    kinds: list[Estimate]


def plan(  # noqa: PLR0913 - one parameter for each option
    place: Annotated[str, typer.Argument(metavar="PLACE", help="module:endpoint, or the URL of a SQL store.")],
    *,
    rate: Annotated[float, typer.Option("--rate", metavar="N", help="Messages a second, over the day.")],
    retention: Annotated[
        str | None, typer.Option("--retention", metavar="7d", help="How long claims are kept; the endpoint's own unless given.")
    ] = None,
    in_flight: Annotated[
        str, typer.Option("--in-flight", metavar="1min", help="How long a message waits, for tokens.")
    ] = "1min",
    sample: Annotated[int, typer.Option("--sample", min=1000, max=1_000_000, help="Rows to measure with.")] = 50_000,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Tell how many rows and bytes claims and tokens take on this database, and what it costs that they go again.

    It inserts a sample into tables of its own beside yours, looks, and takes all of it back: that needs a user who may make
    tables. Sizes are what they come to; a table that was larger once keeps its space.
    """
    if not 0 < rate <= LARGEST_RATE:
        raise SetupError(f"--rate {rate:g}: messages a second, more than 0")
    found = place_of(place, Instead(store, None))
    own = found.settings.deduplication if found.settings is not None else History()
    kept = _duration("--retention", retention) if retention is not None else getattr(own, "retention", History().retention)
    flight = _duration("--in-flight", in_flight)
    planned = asyncio.run(_plan(looked_at(found.store), rate, sample, kept=kept, flight=flight))
    if found.settings is not None and isinstance(own, History):  # what it would refuse is no plan
        replace(found.settings, deduplication=History(retention=kept), janitor_interval=None)
    if as_json:
        show_json(planned)
        return
    rows = [(each.kind, each.rows, each.row_bytes, _size(each.bytes), _how(each), _cost(each)) for each in planned.kinds]
    title = (
        f"{rate:g} messages a second, kept for {in_words(kept)} in slices of {in_words(planned.slice)}, on {planned.database}"
    )
    show_table(title, ("at the most", "rows", "bytes a row", "together", "go", "which takes"), rows)
    say(
        f"measured with {sample:,} rows on this database, indexes included. Messages that endpoints send are claimed with an "
        f"instant; foreign ones without. A token lives while its message is under way, {in_words(flight)} here (--in-flight)"
    )


async def _plan(setting: Any, rate: float, sample: int, *, kept: timedelta, flight: timedelta) -> Planned:
    async with answering("store", setting, ANY_TIME):
        found = await measure(setting, sample, rate, name=LIVE.ids.fresh()[:8], seconds=perf_counter)
    return Planned(
        database=shown(setting),
        rate=rate,
        retention=kept.total_seconds(),
        slice=kept.total_seconds() / SLICES,
        in_flight=flight.total_seconds(),
        sample=sample,
        kinds=estimate(found.measurements, rate=rate, retention=kept, in_flight=flight, whole=found.whole),
    )


def _duration(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise SetupError(f"{option}: {error}") from error


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:  # noqa: PLR2004 - of a unit, the next one is better
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def _how(each: Estimate) -> str:
    return f"{each.evicted}, every {in_words(each.every)}" if each.every >= 1 else each.evicted


def _cost(each: Estimate) -> str:
    share = each.share
    return f"{in_words(each.seconds)}, {share:.2%} of a connection" if share >= 0.0001 else in_words(each.seconds)  # noqa: PLR2004 - a hundredth of a percent
