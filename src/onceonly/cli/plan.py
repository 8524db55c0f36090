"""`onceonly plan`: what deduplication data will take on this database, measured on it."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from time import perf_counter
from typing import Annotated, Any

import typer
from msgspec import Struct, structs

from onceonly.assembly import look_at_ring, measure, refuse_ring, shown
from onceonly.cli.hints import pasteable
from onceonly.cli.loading import load
from onceonly.cli.output import say, show_json, show_table
from onceonly.cli.places import CommandTarget, StoreOption, UrlOverrides, is_url, looked_at, place_of
from onceonly.cli.reaching import ANY_TIME, answering
from onceonly.config.deduplication import History
from onceonly.config.location import locate
from onceonly.config.measured import Estimate, estimate
from onceonly.endpoint.host import host_of
from onceonly.model.durations import in_words, parse_duration
from onceonly.model.errors import SetupError
from onceonly.model.ring import TIME_BUCKETS, Bucketing, bucketing_for
from onceonly.runtime.environment import LIVE

LARGEST_RATE = 10_000_000.0
OTHERS = (
    "tables of its own: another ?prefix= in the URL of its store, `onceonly schema create module:endpoint` then, and a start "
    "when the queue is empty, for copies of what these tables know are not known there"
)


class PlanRequest(Struct, frozen=True, kw_only=True):
    """What is asked: messages a second, rows to measure with, how long a token lives, and a retention if there is one."""

    rate: float
    sample: int
    in_flight: timedelta
    retention: timedelta | None


class TableSettings(Struct, frozen=True, kw_only=True):
    """How the tables that are there keep claims: durations are in seconds.

    Messages of before `since`, in milliseconds since 1970, are kept beside the slices whatever instant they have.
    """

    retention: float
    slice: float
    since: int


class CapacityPlan(Struct, frozen=True, kw_only=True):
    """What a rate takes: durations are in seconds, the sample in rows. `tables` are those there are, if they are in use.

    `advice` says what follows from these for the retention that is planned with.
    """

    database: str
    rate: float
    retention: float
    slice: float
    in_flight: float
    sample: int
    tables: TableSettings | None
    advice: str
    kinds: list[Estimate]


def plan(  # noqa: PLR0913 - one parameter for each option
    place: Annotated[str, typer.Argument(metavar="PLACE", help="module:endpoint, or the URL of a SQL store.")],
    *,
    rate: Annotated[float, typer.Option("--rate", metavar="N", help="Messages a second, over the day.")],
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="7d",
            help="How long claims are kept; unless given as long as the tables there do, or as the endpoint asks for.",
        ),
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
    tables. Sizes are what they come to; a table that was larger once keeps its space. Nothing is decided by it. What a start
    would refuse is refused here too.
    """
    if not 0 < rate <= LARGEST_RATE:
        raise SetupError(f"--rate {rate:g}: messages a second, more than 0")
    found = place_of(place, UrlOverrides(store))
    if not locate(found.store, "store").is_sql:
        raise SetupError(f"{shown(found.store)} has no tables to measure: plan is about claims in a SQL database")
    asked = _duration("--retention", retention) if retention is not None else None
    wanted = PlanRequest(rate=rate, sample=sample, in_flight=_duration("--in-flight", in_flight), retention=asked)
    _refuse_what_a_start_would(place, found, asked)
    planned = asyncio.run(_plan(found, wanted))
    planned = structs.replace(planned, advice=pasteable(planned.advice, () if is_url(place) else (place,)))
    if as_json:
        show_json(planned)
    else:
        _show(planned)


def _show(planned: CapacityPlan) -> None:
    rows = [(each.kind, each.rows, each.row_bytes, _size(each.bytes), _how(each), _cost(each)) for each in planned.kinds]
    cut = f"kept for {in_words(planned.retention)} in slices of {in_words(planned.slice)}"
    show_table(
        f"{planned.rate:g} messages a second, {cut}, on {planned.database}",
        ("at the most", "rows", "bytes a row", "together", "go", "which takes"),
        rows,
    )
    say(planned.advice)
    say(
        f"measured with {planned.sample:,} rows on this database, indexes included. Messages that endpoints send are claimed "
        "with an instant; foreign ones without. A token lives while its message is under way, "
        f"{in_words(planned.in_flight)} here (--in-flight)"
    )


def _refuse_what_a_start_would(place: str, found: CommandTarget, asked: timedelta | None) -> None:
    """Check the endpoint's settings, with the retention that is asked for. Raises SetupError, in the words of a start."""
    if found.settings is None:
        return
    own: Any = found.settings.deduplication
    settings = found.settings
    if asked is not None and settings.plan.retention is not None:
        settings = replace(settings, deduplication=replace(own, retention=asked))
    endpoint = load(place)
    if not host_of(endpoint).only_sends:
        host_of(endpoint).handlers(settings=settings)


async def _plan(found: CommandTarget, wanted: PlanRequest) -> CapacityPlan:
    setting, asked = looked_at(found.store), wanted.retention
    async with answering("store", setting, ANY_TIME):
        cut = await look_at_ring(setting, found.settings)
        if asked is None and cut is not None and found.settings is not None:
            refuse_ring(found.settings, cut)
        sampled = await measure(setting, wanted.sample, wanted.rate, name=LIVE.ids.new_id()[:8], seconds=perf_counter)
    bucketing = cut.bucketing if cut is not None else None
    own = found.settings.retention if found.settings is not None else None
    kept = asked or (_kept(bucketing) if bucketing is not None else own or History().retention)
    uses_tables = found.settings is not None and found.settings.plan.history is not None
    return CapacityPlan(
        database=shown(setting),
        rate=wanted.rate,
        retention=kept.total_seconds(),
        slice=kept.total_seconds() / TIME_BUCKETS,
        in_flight=wanted.in_flight.total_seconds(),
        sample=wanted.sample,
        tables=_tables(bucketing) if bucketing is not None else None,
        advice=_advice(bucketing, asked or (own if uses_tables else None)),
        kinds=estimate(sampled.measurements, rate=wanted.rate, retention=kept, in_flight=wanted.in_flight, whole=sampled.whole),
    )


def _kept(bucketing: Bucketing) -> timedelta:
    return timedelta(milliseconds=bucketing.retention)


def _tables(bucketing: Bucketing) -> TableSettings:
    return TableSettings(retention=bucketing.retention / 1000, slice=bucketing.width / 1000, since=bucketing.since)


def _advice(bucketing: Bucketing | None, wanted: timedelta | None) -> str:
    """Say how long the tables there keep claims, and what it means to want something else."""
    if bucketing is None:
        return (
            "nobody has used tables of a store here yet: the endpoint that is first decides how long they keep claims, and "
            "that cannot be changed later"
        )
    kept = f"the tables there were cut for {in_words(_kept(bucketing))} when they were first used, and that cannot be changed"
    if wanted is None or bucketing_for(wanted // timedelta(milliseconds=1)).width == bucketing.width:
        return kept
    asked = in_words(wanted)
    if wanted > _kept(bucketing):
        return f"{kept}: an endpoint that asks for {asked} is refused there. It needs {OTHERS}"
    return f"{kept}: an endpoint that asks for {asked} gets {in_words(_kept(bucketing))} there. To keep less it needs {OTHERS}"


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
    share, took = each.share, _took(each.seconds)
    return f"{took}, {share:.2%} of a connection" if share >= 0.0001 else took  # noqa: PLR2004 - a hundredth of a percent


def _took(seconds: float) -> str:
    for unit, size in (("ms", 0.001), ("µs", 0.000_001)):
        if size <= seconds < size * 1000:
            return f"{seconds / size:.3g} {unit}"
    return in_words(seconds)
