"""`onceonly plan`: the size and cleanup cost of deduplication data, measured on this database."""

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct, structs

from onceonly.cli.commands import StoreOption
from onceonly.cli.output import say, show_json, show_table
from onceonly.model.errors import SetupError
from onceonly.systems import Family

if TYPE_CHECKING:
    from onceonly.cli.targets import CommandTarget
    from onceonly.config.estimates import Estimate
    from onceonly.model.ring import Bucketing

LARGEST_RATE = 10_000_000.0
OTHERS = (
    "separate tables: set another ?prefix= in the URL of its store, run `onceonly schema create module:endpoint`, and start it "
    "while the queue is empty, because the new tables do not detect duplicates of earlier messages"
)


class TableSettings(Struct, frozen=True, kw_only=True):
    """How the existing tables keep claims: durations are in seconds."""

    retention: float
    bucket: float


class CapacityPlan(Struct, frozen=True, kw_only=True):
    """Sizes for a rate. Durations are in seconds, the sample in rows. `tables`: the existing tables, if they are in use.

    `advice`: whether the existing tables can serve the planned retention. `bucket`: the width of a time bucket.
    """

    database: str
    rate: float
    retention: float
    bucket: float
    in_flight: float
    sample: int
    tables: TableSettings | None
    advice: str
    kinds: "list[Estimate]"


def plan(  # noqa: PLR0913 - one parameter for each option
    place: Annotated[str, typer.Argument(metavar="ENDPOINT_OR_URL", help="module:endpoint, or the URL of a SQL store.")],
    *,
    rate: Annotated[float, typer.Option("--rate", metavar="N", help="Messages per second, averaged over a day.")],
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="7d",
            help="How long claims are kept [default: the retention of the existing tables, else the endpoint's].",
        ),
    ] = None,
    in_flight: Annotated[
        str, typer.Option("--in-flight", metavar="1min", help="How long a message waits until it is handled; used for tokens.")
    ] = "1min",
    sample: Annotated[
        int, typer.Option("--sample", min=1000, max=1_000_000, help="Number of rows in the measured sample.")
    ] = 50_000,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Estimate the size of claims and tokens in this database, and the cost of deleting them.

    Inserts a sample into temporary tables, measures them and deletes them. The database user needs the right to create tables.
    Existing tables and settings are not changed. Settings that `onceonly run` would refuse are refused here too.
    """
    import asyncio

    from onceonly.assembly import shown
    from onceonly.cli.hints import pasteable
    from onceonly.cli.targets import is_url, target_of
    from onceonly.config.location import locate

    if not 0 < rate <= LARGEST_RATE:
        raise SetupError(f"--rate is {rate:g}; set it to a number of messages per second above 0, at most {LARGEST_RATE:,.0f}")
    target = target_of(place, store)
    if locate(target.store, "store").family is not Family.SQL:
        raise SetupError(
            f"{shown(target.store)} has no tables to measure: name a SQL store, `onceonly plan` measures claims in SQL "
            "databases"
        )
    asked = _duration("--retention", retention) if retention is not None else None
    waiting = _duration("--in-flight", in_flight)
    _refuse_as_a_start(place, target, asked)
    planned = asyncio.run(_measure(target, rate=rate, sample=sample, in_flight=waiting, retention=asked))
    planned = structs.replace(planned, advice=pasteable(planned.advice, () if is_url(place) else (place,)))
    if as_json:
        show_json(planned)
    else:
        _show(planned)


def _show(planned: CapacityPlan) -> None:
    from onceonly.model.wording import in_words

    rows = [
        (each.kind, each.rows, each.row_bytes, _size(each.bytes), _how_evicted(each), _eviction_cost(each))
        for each in planned.kinds
    ]
    kept = f"kept for {in_words(planned.retention)} in time buckets of {in_words(planned.bucket)}"
    show_table(
        f"{planned.rate:g} messages per second, {kept}, on {planned.database}",
        ("data", "max rows", "bytes per row", "max size", "deleted", "each deletion takes"),
        rows,
    )
    say(planned.advice)
    say(
        f"measured with {planned.sample:,} rows on this database, indexes included. A token exists until its message is "
        f"handled, {in_words(planned.in_flight)} here (--in-flight)"
    )


def _refuse_as_a_start(place: str, target: "CommandTarget", asked: timedelta | None) -> None:
    """Check the endpoint's settings, with the retention that is asked for. Raises SetupError, in the words of a start."""
    from onceonly.cli.targets import load
    from onceonly.endpoint.host import host_of

    if target.settings is None:
        return
    own: Any = target.settings.deduplication
    settings = target.settings
    if asked is not None and settings.plan.retention is not None:
        settings = replace(settings, deduplication=replace(own, retention=asked))
    endpoint = load(place)
    if not host_of(endpoint).only_sends:
        host_of(endpoint).handlers(settings=settings)


async def _measure(
    target: "CommandTarget", *, rate: float, sample: int, in_flight: timedelta, retention: timedelta | None
) -> CapacityPlan:
    from time import perf_counter

    from onceonly.assembly import check_bucketing, measure, read_bucket_clock, shown
    from onceonly.assembly.stores import read_only
    from onceonly.cli.targets import ANY_TIME, connection_errors
    from onceonly.config.deduplication import History
    from onceonly.config.estimates import estimate
    from onceonly.model.ring import TIME_BUCKETS
    from onceonly.runtime.environment import LIVE

    setting = read_only(target.store)
    async with connection_errors("store", setting, ANY_TIME):
        clock = await read_bucket_clock(setting, target.settings)
        if retention is None and clock is not None and target.settings is not None:
            check_bucketing(target.settings, clock)
        sampled = await measure(setting, sample, rate, name=LIVE.ids.new_id()[:8], seconds=perf_counter)
    bucketing = clock.bucketing if clock is not None else None
    own = target.settings.retention if target.settings is not None else None
    kept = retention or (_retention(bucketing) if bucketing is not None else own or History().retention)
    uses_tables = target.settings is not None and target.settings.plan.history is not None
    return CapacityPlan(
        database=shown(setting),
        rate=rate,
        retention=kept.total_seconds(),
        bucket=kept.total_seconds() / TIME_BUCKETS,
        in_flight=in_flight.total_seconds(),
        sample=sample,
        tables=_tables(bucketing) if bucketing is not None else None,
        advice=_advice(bucketing, retention or (own if uses_tables else None)),
        kinds=estimate(sampled.measurements, rate=rate, retention=kept, in_flight=in_flight, whole=sampled.whole),
    )


def _retention(bucketing: "Bucketing") -> timedelta:
    return timedelta(milliseconds=bucketing.retention)


def _tables(bucketing: "Bucketing") -> TableSettings:
    return TableSettings(retention=bucketing.retention / 1000, bucket=bucketing.width / 1000)


def _advice(bucketing: "Bucketing | None", wanted: timedelta | None) -> str:
    from onceonly.model.ring import bucketing_for
    from onceonly.model.wording import in_words

    if bucketing is None:
        return "the store tables are unused: the first endpoint that starts sets their retention, which cannot be changed later"
    stored = in_words(_retention(bucketing))
    kept = f"the existing tables keep claims for {stored}, set at their first use, which cannot be changed"
    if wanted is None or bucketing_for(wanted // timedelta(milliseconds=1)).width == bucketing.width:
        return kept
    asked = in_words(wanted)
    if wanted > _retention(bucketing):
        return f"{kept}. An endpoint with a retention of {asked} does not start on them. It needs {OTHERS}"
    return f"{kept}. An endpoint with a retention of {asked} gets {stored}. For less it needs {OTHERS}"


def _duration(option: str, text: str) -> timedelta:
    from onceonly.model.wording import parse_duration

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


def _how_evicted(each: "Estimate") -> str:
    from onceonly.model.wording import in_words

    return f"{each.evicted}, every {in_words(each.every)}" if each.every >= 1 else each.evicted


def _eviction_cost(each: "Estimate") -> str:
    share, took = each.share, _in_units(each.seconds)
    return f"{took}, {share:.2%} of a connection" if share >= 0.0001 else took  # noqa: PLR2004 - a hundredth of a percent


def _in_units(seconds: float) -> str:
    from onceonly.model.wording import in_words

    for unit, size in (("ms", 0.001), ("µs", 0.000_001)):
        if size <= seconds < size * 1000:
            return f"{seconds / size:.3g} {unit}"
    return in_words(seconds)
