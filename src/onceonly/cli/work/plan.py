"""What `onceonly plan` does."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from time import perf_counter
from typing import Any

from msgspec import Struct, structs

from onceonly.assembly import look_at_ring, measure, refuse_ring, shown
from onceonly.assembly.looking import looked_at
from onceonly.cli.hints import pasteable
from onceonly.cli.loading import load
from onceonly.cli.output import say, show_json, show_table
from onceonly.cli.places import CommandTarget, UrlOverrides, is_url, place_of
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
    "separate tables: set another ?prefix= in the URL of its store, run `onceonly schema create module:endpoint`, and start it "
    "while the queue is empty, because the new tables do not detect duplicates of earlier messages"
)


class PlanRequest(Struct, frozen=True, kw_only=True):
    """What is asked: messages a second, rows to measure with, how long a token lives, and a retention if there is one."""

    rate: float
    sample: int
    in_flight: timedelta
    retention: timedelta | None


class TableSettings(Struct, frozen=True, kw_only=True):
    """How the existing tables keep claims: durations are in seconds.

    Claims of messages from before `since`, in milliseconds since 1970, are not in time buckets.
    """

    retention: float
    bucket: float
    since: int


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
    kinds: list[Estimate]


def plan(  # noqa: PLR0913 - one parameter for each option
    place: str, *, rate: float, retention: str | None, in_flight: str, sample: int, store: str | None, as_json: bool
) -> None:
    """Estimate the size of claims and tokens in this database, and the cost of deleting them."""
    if not 0 < rate <= LARGEST_RATE:
        raise SetupError(f"--rate is {rate:g}; set it to a number of messages per second above 0, at most {LARGEST_RATE:,.0f}")
    found = place_of(place, UrlOverrides(store))
    if not locate(found.store, "store").is_sql:
        raise SetupError(
            f"{shown(found.store)} has no tables to measure: name a SQL store, `onceonly plan` measures claims in SQL databases"
        )
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
        bucket=kept.total_seconds() / TIME_BUCKETS,
        in_flight=wanted.in_flight.total_seconds(),
        sample=wanted.sample,
        tables=_tables(bucketing) if bucketing is not None else None,
        advice=_advice(bucketing, asked or (own if uses_tables else None)),
        kinds=estimate(sampled.measurements, rate=wanted.rate, retention=kept, in_flight=wanted.in_flight, whole=sampled.whole),
    )


def _kept(bucketing: Bucketing) -> timedelta:
    return timedelta(milliseconds=bucketing.retention)


def _tables(bucketing: Bucketing) -> TableSettings:
    return TableSettings(retention=bucketing.retention / 1000, bucket=bucketing.width / 1000, since=bucketing.since)


def _advice(bucketing: Bucketing | None, wanted: timedelta | None) -> str:
    """Describe the retention of the existing tables, and what another one requires."""
    if bucketing is None:
        return "the store tables are unused: the first endpoint that starts sets their retention, which cannot be changed later"
    kept = f"the existing tables keep claims for {in_words(_kept(bucketing))}, set at their first use, which cannot be changed"
    if wanted is None or bucketing_for(wanted // timedelta(milliseconds=1)).width == bucketing.width:
        return kept
    asked = in_words(wanted)
    if wanted > _kept(bucketing):
        return f"{kept}. An endpoint with a retention of {asked} does not start on them. It needs {OTHERS}"
    return f"{kept}. An endpoint with a retention of {asked} gets {in_words(_kept(bucketing))}. For less it needs {OTHERS}"


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
