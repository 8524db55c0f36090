"""`onceonly plan`: what deduplication data costs. In a SQL database it is measured, for documents it is computed."""

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct, structs

from onceonly.cli.commands import StoreOption
from onceonly.cli.output import say, show_json, show_table, size_text, write
from onceonly.model.errors import SetupError
from onceonly.systems import Family

if TYPE_CHECKING:
    from onceonly.cli.targets import CommandTarget
    from onceonly.config.estimates import Estimate

LARGEST_RATE = 10_000_000.0
MOST_SENDS, LARGEST_BODY = 1000, 64 * 1024 * 1024


class TableSettings(Struct, frozen=True, kw_only=True):
    """How the existing tables keep claims: durations are in seconds, None forever."""

    retention: float | None
    bucket: float | None


class CapacityPlan(Struct, frozen=True, kw_only=True):
    """Sizes for a rate. Durations are in seconds, None forever, the sample in rows. `tables`: the existing ones, if in use.

    `advice`: whether the existing tables can serve the planned retention. `bucket`: the width of a time bucket.
    """

    database: str
    rate: float
    retention: float | None
    bucket: float | None
    in_flight: float
    sample: int
    tables: TableSettings | None
    advice: str
    kinds: "list[Estimate]"


def _print_prices(*, asked: bool) -> None:
    from onceonly.config.prices import example_prices

    if asked:
        write(example_prices())
        raise typer.Exit


def plan(  # noqa: PLR0913 - one parameter for each option
    place: Annotated[str, typer.Argument(metavar="ENDPOINT_OR_URL", help="module:endpoint, or the URL of a store.")],
    *,
    rate: Annotated[float, typer.Option("--rate", metavar="N", help="Messages per second, averaged over a day.")],
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="7d",
            help="How long claims are kept, or `forever` [default: what is stored, else the endpoint's].",
        ),
    ] = None,
    in_flight: Annotated[
        str, typer.Option("--in-flight", metavar="1min", help="How long a message waits until it is handled; used for tokens.")
    ] = "1min",
    sample: Annotated[
        int, typer.Option("--sample", min=1000, max=1_000_000, help="Number of rows in the measured sample.")
    ] = 50_000,
    sends: Annotated[int, typer.Option("--sends", min=0, max=MOST_SENDS, help="Documents: messages that a handler sends.")] = 1,
    message_size: Annotated[
        int, typer.Option("--message-size", min=0, max=LARGEST_BODY, metavar="BYTES", help="Documents: size of a sent message.")
    ] = 1000,
    entities: Annotated[
        int,
        typer.Option(
            "--entities", min=0, metavar="N", help="Documents: number of entities that messages work on [default: none]."
        ),
    ] = 0,
    entity_size: Annotated[
        int,
        typer.Option("--entity-size", min=0, max=LARGEST_BODY, metavar="BYTES", help="Documents: size of an entity's state."),
    ] = 1000,
    prices: Annotated[
        str | None,
        typer.Option("--prices", metavar="FILE", help="Documents: TOML file with prices [default: the built-in examples]."),
    ] = None,
    print_prices: Annotated[  # noqa: ARG001 - its callback ends the command
        bool,
        typer.Option("--print-prices", callback=_print_prices, is_eager=True, help="Print the example prices as a TOML file."),
    ] = False,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Estimate the size of deduplication data, and the cost of deleting it, or of storing it on documents.

    SQL: inserts a sample into temporary tables, measures them and deletes them. The database user needs the right to create
    tables. Existing tables and settings are not changed.

    Documents: computes operations, space and price of each algorithm, from a table of prices. Does not connect to the service.

    Settings that `onceonly run` would refuse are refused here too.
    """
    import asyncio

    from onceonly.assembly import shown
    from onceonly.cli.hints import pasteable
    from onceonly.cli.targets import is_url, target_of
    from onceonly.config.location import locate

    if not 0 < rate <= LARGEST_RATE:
        raise SetupError(f"--rate is {rate:g}; set it to a number of messages per second above 0, at most {LARGEST_RATE:,.0f}")
    target = target_of(place, store)
    family = locate(target.store, "store").family
    if family not in (Family.SQL, Family.DOCUMENTS):
        raise SetupError(
            f"{shown(target.store)} is not a database: name a SQL store or a document store, `onceonly plan` computes what "
            "they keep"
        )
    asked = _retention_of(retention) if retention is not None else None
    waiting = _duration("--in-flight", in_flight)
    _refuse_as_a_start(place, target, asked)
    if family is Family.DOCUMENTS:
        from onceonly.cli.document_plan import DocumentPlanOptions, plan_documents, show_documents

        options = DocumentPlanOptions(
            rate=rate,
            retention=asked,
            in_flight=waiting,
            sends=sends,
            message_bytes=message_size,
            entities=entities,
            entity_bytes=entity_size,
            prices=prices,
        )
        computed = plan_documents(target, options)
        show_json(computed) if as_json else show_documents(computed)
        return
    if prices is not None:
        raise SetupError(f"--prices has no effect: {shown(target.store)} is a SQL database, whose statements have no price")
    planned = asyncio.run(_measure(target, rate=rate, sample=sample, in_flight=waiting, retention=asked))
    planned = structs.replace(planned, advice=pasteable(planned.advice, () if is_url(place) else (place,)))
    if as_json:
        show_json(planned)
    else:
        _show(planned)


def _show(planned: CapacityPlan) -> None:
    from onceonly.model.wording import in_words

    rows = [
        (each.kind, each.rows, each.row_bytes, size_text(each.bytes), _how_evicted(each), _eviction_cost(each))
        for each in planned.kinds
    ]
    kept = (
        "kept forever"
        if planned.retention is None or planned.bucket is None
        else f"kept for {in_words(planned.retention)} in time buckets of {in_words(planned.bucket)}"
    )
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
    from onceonly.model.changed_retention import as_duration
    from onceonly.model.ring import TIME_BUCKETS
    from onceonly.model.wording import FOREVER
    from onceonly.runtime.environment import LIVE

    setting = read_only(target.store)
    async with connection_errors("store", setting, ANY_TIME):
        clock = await read_bucket_clock(setting, target.settings)
        if retention is None and clock is not None and target.settings is not None:
            check_bucketing(target.settings, clock)
        sampled = await measure(setting, sample, rate, name=LIVE.ids.new_id()[:8], seconds=perf_counter)
    kept_there = as_duration(clock.latest.retention) if clock is not None else None
    own = target.settings.retention if target.settings is not None else None
    kept = retention or kept_there or own or History().retention
    uses_tables = target.settings is not None and target.settings.plan.history is not None
    return CapacityPlan(
        database=shown(setting),
        rate=rate,
        retention=None if kept >= FOREVER else kept.total_seconds(),
        bucket=None if kept >= FOREVER else kept.total_seconds() / TIME_BUCKETS,
        in_flight=in_flight.total_seconds(),
        sample=sample,
        tables=_tables(kept_there) if kept_there is not None else None,
        advice=_advice(kept_there, retention or (own if uses_tables else None)),
        kinds=estimate(sampled.measurements, rate=rate, retention=kept, in_flight=in_flight, whole=sampled.whole),
    )


def _tables(kept: timedelta) -> TableSettings:
    from onceonly.model.ring import TIME_BUCKETS
    from onceonly.model.wording import FOREVER

    seconds = None if kept >= FOREVER else kept.total_seconds()
    return TableSettings(retention=seconds, bucket=None if seconds is None else seconds / TIME_BUCKETS)


def _advice(stored: timedelta | None, wanted: timedelta | None) -> str:
    from onceonly.model.wording import NEVER_ENDS, in_words

    if stored is None:
        return "the store tables are unused: the first endpoint that starts sets their retention"
    kept = f"claims are kept for {in_words(stored)}"
    if wanted is None or in_words(wanted) == in_words(stored):
        return kept
    asked = in_words(wanted)
    change = f"`onceonly retention set module:endpoint {asked.replace(' ', '')}`"
    if wanted > stored:
        costs = "never deletes one" if asked == NEVER_ENDS else f"keeps them for {asked}"
        return f"{kept}. An endpoint that asks for {asked} does not start: {change} {costs}"
    return f"{kept}, also of an endpoint that asks for {asked}, until {change}"


def _retention_of(text: str) -> timedelta:
    from onceonly.model.wording import parse_retention

    try:
        return parse_retention(text)
    except ValueError as error:
        raise SetupError(f"--retention: {error}") from error


def _duration(option: str, text: str) -> timedelta:
    from onceonly.model.wording import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise SetupError(f"{option}: {error}") from error


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
