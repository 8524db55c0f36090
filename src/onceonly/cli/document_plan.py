"""`onceonly plan` for document stores: operations, space and price of each algorithm, from a table of prices."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from onceonly.cli.output import say, show_table, size_text
from onceonly.model.errors import SetupError
from onceonly.systems import Family

if TYPE_CHECKING:
    from onceonly.cli.targets import CommandTarget
    from onceonly.config.document_costs import AlgorithmCost, PricedService
    from onceonly.config.location import Location
    from onceonly.config.prices import PriceTable

EXAMPLE = "the built-in example prices"
LARGEST_FILE = 1_000_000
SAMPLE_ENDPOINT = "endpoint"
"""The name in keys where a URL is planned and no endpoint."""


class DocumentPlanOptions(Struct, frozen=True, kw_only=True):
    """What was asked. `prices` is a file."""

    rate: float
    retention: timedelta | None
    in_flight: timedelta
    sends: int
    message_bytes: int
    entities: int
    entity_bytes: int
    prices: str | None


class DocumentPlan(Struct, frozen=True, kw_only=True):
    """Costs of each algorithm in a month of 30 days. Durations are in seconds, sizes in bytes. A retention of None is forever.

    `prices_date` and `prices_from` name the price table. `chosen` is the endpoint's algorithm, empty for a URL.
    """

    store: str
    chosen: str
    rate: float
    retention: float | None
    in_flight: float
    sends: int
    message_bytes: int
    entities: int
    entity_bytes: int
    currency: str
    prices_from: str
    prices_date: str
    algorithms: "list[AlgorithmCost]"
    warnings: list[str]


def plan_documents(target: "CommandTarget", asked: DocumentPlanOptions) -> DocumentPlan:
    """Compute the plan. Raises SetupError for a price file that cannot be used."""
    from onceonly.assembly.document_sizes import MARGIN, measure_sizes, service_of
    from onceonly.config.deduplication import History
    from onceonly.config.document_costs import Algorithm, DocumentWorkload, PricedServices, estimate_cost
    from onceonly.config.location import locate

    table, source = _read_table(asked.prices)
    store = locate(target.store, "store")
    settings = target.settings
    own = settings.retention if settings is not None else None
    work = DocumentWorkload(
        rate=asked.rate,
        sends=asked.sends,
        retention=asked.retention or own or History().retention,
        margin=MARGIN,
        in_flight=asked.in_flight,
        entities=asked.entities,
        entity_bytes=asked.entity_bytes,
    )
    sizes = measure_sizes(target.name or SAMPLE_ENDPOINT, sends=asked.sends, message_bytes=asked.message_bytes)
    holder = _priced(service_of(store), table, source)
    marks, tokens = (None, None) if settings is None else (settings.plan.marks, settings.plan.tokens)
    places = {Algorithm.DEDUP_STORE: marks, Algorithm.TOKENS: tokens}
    costs: list[AlgorithmCost] = []
    for algorithm in Algorithm:
        services = PricedServices(holder, _elsewhere(places.get(algorithm), holder, table, source))
        costs.append(estimate_cost(algorithm, sizes, work, services))
    return DocumentPlan(
        store=str(store),
        chosen=type(settings.deduplication).__name__ if settings is not None else "",
        rate=asked.rate,
        retention=None if work.is_forever else work.retention.total_seconds(),
        in_flight=asked.in_flight.total_seconds(),
        sends=asked.sends,
        message_bytes=asked.message_bytes,
        entities=asked.entities,
        entity_bytes=asked.entity_bytes,
        currency=table.currency,
        prices_from=source,
        prices_date=table.date.isoformat(),
        algorithms=costs,
        warnings=_warnings(costs, store),
    )


def show_documents(planned: DocumentPlan) -> None:
    from onceonly.model.wording import counted, in_words

    rows = [
        (
            f"{each.algorithm} (set)" if each.algorithm == planned.chosen else each.algorithm,
            each.operations,
            f"{each.documents:,}, and each year" if each.each_year and each.documents else each.documents,
            f"{size_text(each.bytes)}, and each year" if each.each_year else size_text(each.bytes),
            "\n".join(f"{use.service}: {_in_units(use.units)}" for use in each.uses),
            _price_text(each),
        )
        for each in planned.algorithms
    ]
    is_forever = planned.retention is None
    kept = "kept forever" if planned.retention is None else f"kept for {in_words(planned.retention)}"
    show_table(
        f"{planned.rate:g} messages per second, {kept}, on {planned.store}",
        ("algorithm", "operations per message", "max documents", "max size", "a month", f"{planned.currency} a month"),
        rows,
    )
    for warning in planned.warnings:
        say(f"warning: {warning}")
    if is_forever:
        say(
            "nothing is deleted: the numbers of History and DedupStore are those after the first year, and each further year "
            "adds to them"
        )
    worked_on = f"{planned.entities:,} entities of {planned.entity_bytes:,} bytes" if planned.entities else "no entities"
    say(
        f"computed for messages that come once and alone and work on {worked_on}, with {counted(planned.sends, 'message')} of "
        f"{planned.message_bytes:,} bytes sent for each. Copies, retries, dead letters, relays and failed writes cost more"
    )
    say(
        f"prices: {planned.prices_from}, dated {planned.prices_date}. Operations and storage only, and not an offer: print the "
        "table with `onceonly plan --print-prices`, edit it, and name it with --prices"
    )


def _read_table(file: str | None) -> "tuple[PriceTable, str]":
    from onceonly.config.prices import example_prices, read_prices

    if file is None:
        return read_prices(example_prices(), EXAMPLE), EXAMPLE
    path = Path(file)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SetupError(f"--prices: {file} has more than {LARGEST_FILE:,} bytes: name a price table")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"--prices: {file} cannot be read ({error.strerror}): name an existing file") from error
    except UnicodeDecodeError as error:
        raise SetupError(f"--prices: {file} is not a text in UTF-8: name a TOML file") from error
    return read_prices(text, file), file


def _priced(service: str, table: "PriceTable", source: str) -> "PricedService":
    from onceonly.assembly.document_sizes import most_bytes
    from onceonly.config.document_costs import PricedService
    from onceonly.config.prices import prices_of

    return PricedService(service, prices_of(table, service, source), most_bytes(service))


def _elsewhere(place: "Location | None", store: "PricedService", table: "PriceTable", source: str) -> "PricedService":
    """Return the service of marks or tokens: the endpoint's own, else that of the store. SQL databases have no prices."""
    from onceonly.assembly.document_sizes import service_of

    if place is None or place.family is not Family.DOCUMENTS:
        return store
    return _priced(service_of(place), table, source)


def _warnings(costs: "list[AlgorithmCost]", store: "Location") -> list[str]:
    return [
        f"{each.algorithm} does not fit: the document of an entity would have {each.largest:,} bytes"
        f"{' after a year' if each.each_year else ''}, which is more than {store} stores. Use a shorter retention, or a dedup "
        "store"
        for each in costs
        if not each.fits
    ] + [
        f"{each.algorithm}: the document of an entity grows by {each.each_year.largest:,} bytes each year, until it does not "
        "fit. Use a dedup store, or a retention that ends"
        for each in costs
        if each.fits and each.each_year is not None and each.each_year.largest
    ]


def _price_text(cost: "AlgorithmCost") -> str:
    if not cost.fits:
        return "does not fit"
    added = "" if cost.each_year is None else f", {cost.each_year.price:,.2f} more each year"
    return f"{cost.price:,.2f}{added}"


def _in_units(units: Mapping[str, float]) -> str:
    return ", ".join(f"{_short(number)} {name}" for name, number in units.items())


def _short(number: float) -> str:
    for word, size in (("trillion", 10**12), ("billion", 10**9), ("million", 10**6), ("thousand", 10**3)):
        if number >= size:
            return f"{number / size:,.3g} {word}"
    return f"{number:,.0f}"
