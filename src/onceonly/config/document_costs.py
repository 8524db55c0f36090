"""What deduplication costs on documents: operations on documents, space and price for a rate. Arithmetic only."""

import math
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from onceonly.config.estimates import A_YEAR
from onceonly.config.prices import OperationPrice, ServicePrices
from onceonly.model.wording import FOREVER

MONTH_SECONDS = 30 * 86_400
MILLION = 1_000_000
GIGABYTE = 10**9


class Algorithm(Enum):
    """How an endpoint recognizes copies, by the names of its settings."""

    HISTORY = "History"
    DEDUP_STORE = "DedupStore"
    TOKENS = "Tokens"
    OFF = "Off"


class DocumentOperations(Struct, frozen=True, kw_only=True):
    """Documents that are read, written and deleted for one new message. A service charges for each, also in one request."""

    reads: int = 0
    writes: int = 0
    deletes: int = 0

    @property
    def total(self) -> int:
        return self.reads + self.writes + self.deletes


class MessageOperations(Struct, frozen=True, kw_only=True):
    """Operations for one new message, from its delivery to its acknowledgement.

    `unit` are those on the document that its unit is: that of its entity, or of the message. `elsewhere` are those on marks or
    tokens.
    """

    unit: DocumentOperations
    elsewhere: DocumentOperations = DocumentOperations()


def operations(algorithm: Algorithm, sends: int) -> MessageOperations:
    """Return the operations for a message that comes alone, for the first time, and whose handler sends `sends` messages.

    tests/config/test_document_costs.py counts the same on the shipping code.
    """
    twice = DocumentOperations(reads=1, writes=2)
    match algorithm:
        case Algorithm.HISTORY:
            return MessageOperations(unit=twice if sends else DocumentOperations(reads=1, writes=1))
        case Algorithm.DEDUP_STORE:
            return MessageOperations(unit=twice, elsewhere=DocumentOperations(reads=1, writes=1))
        case Algorithm.TOKENS:
            return MessageOperations(unit=twice, elsewhere=DocumentOperations(reads=1, writes=2 * sends, deletes=1))
        case Algorithm.OFF:
            return MessageOperations(unit=twice)


class DocumentSizes(Struct, frozen=True, kw_only=True):
    """Bytes of what is stored, keys of documents included, measured on encoded samples.

    `document` is one without a state and without records, `done` and `pending` are records in it. `message` is the document of
    a message without an entity, once it is done.
    """

    document: int
    done: int
    pending: int
    message: int
    mark: int
    token: int


class DocumentWorkload(Struct, frozen=True, kw_only=True):
    """What an endpoint handles. `entities` is 0 if messages work on none; `entity_bytes` is the size of their state.

    `margin` is how much longer than the retention data is kept. What is kept forever is that of the first `years`.
    """

    rate: float
    sends: int
    retention: timedelta
    margin: timedelta
    in_flight: timedelta
    entities: int
    entity_bytes: int
    years: int = 1

    @property
    def is_forever(self) -> bool:
        return self.retention >= FOREVER

    @property
    def kept(self) -> float:
        """The number of messages within the retention, or within the first years where all are kept."""
        kept = self.years * A_YEAR if self.is_forever else self.retention + self.margin
        return self.rate * kept.total_seconds()


class ServiceUse(Struct, frozen=True, kw_only=True):
    """Units of a service in a month, by their names."""

    service: str
    units: Mapping[str, float]


class YearlyGrowth(Struct, frozen=True, kw_only=True):
    """What each further year adds where nothing is deleted, in the units of `AlgorithmCost`."""

    documents: int
    bytes: int
    largest: int
    price: float


class AlgorithmCost(Struct, frozen=True, kw_only=True):
    """What one algorithm costs. `operations` are for one message; `documents` and `bytes` are what it keeps at the most.

    `largest` is the size of the document of an entity, with its state, and `fits` whether the service stores it. The price is
    for a month. With an unlimited retention all of them are those after the first year, and `each_year` is what each further
    year adds. It is None where data is deleted.
    """

    algorithm: str
    operations: int
    documents: int
    bytes: int
    largest: int
    fits: bool
    uses: list[ServiceUse]
    price: float
    each_year: YearlyGrowth | None = None


class PricedService(NamedTuple):
    """A service, its prices, and the size of the largest document that a commit may write, None if it is not known."""

    name: str
    prices: ServicePrices
    most_bytes: int | None


class PricedServices(NamedTuple):
    """Where the documents of units are, and where marks or tokens are. It may be one service."""

    store: PricedService
    elsewhere: PricedService


class _UnitSizes(NamedTuple):
    """Sizes of the document of a unit: as it is read, committed, and written last."""

    read: int
    committed: int
    last: int


def estimate_cost(
    algorithm: Algorithm, sizes: DocumentSizes, work: DocumentWorkload, services: PricedServices
) -> AlgorithmCost:
    """Compute operations, space and price of an algorithm."""
    cost = _estimate_at_most(algorithm, sizes, work, services)
    if not work.is_forever or algorithm not in (Algorithm.HISTORY, Algorithm.DEDUP_STORE):
        return cost
    later = _estimate_at_most(algorithm, sizes, replace(work, years=work.years + 1), services)
    growth = YearlyGrowth(
        documents=later.documents - cost.documents,
        bytes=later.bytes - cost.bytes,
        largest=later.largest - cost.largest,
        price=later.price - cost.price,
    )
    return replace(cost, each_year=growth)


def _estimate_at_most(
    algorithm: Algorithm, sizes: DocumentSizes, work: DocumentWorkload, services: PricedServices
) -> AlgorithmCost:
    counted = operations(algorithm, work.sends)
    unit, small = _unit_sizes(algorithm, sizes, work), sizes.token if algorithm is Algorithm.TOKENS else sizes.mark
    uses = [(services.store, _unit_units(counted.unit, unit, services.store.prices, sends=work.sends))]
    if counted.elsewhere.total:
        uses.append((services.elsewhere, _small_units(counted.elsewhere, small, services.elsewhere.prices)))
    documents, size, holder = _space(algorithm, sizes, work, services)
    largest = unit.committed if work.entities else 0
    calls = sum(units * price for _, found in uses for units, price in found.values()) / MILLION
    return AlgorithmCost(
        algorithm=algorithm.value,
        operations=counted.unit.total + counted.elsewhere.total,
        documents=documents,
        bytes=size,
        largest=largest,
        fits=services.store.most_bytes is None or largest <= services.store.most_bytes,
        uses=_monthly(uses, work.rate),
        price=calls * work.rate * MONTH_SECONDS + size / GIGABYTE * holder.prices.storage,
    )


def _unit_sizes(algorithm: Algorithm, sizes: DocumentSizes, work: DocumentWorkload) -> _UnitSizes:
    """Return the sizes of a unit's document. Entities are changed in turn, so each has its share of all records."""
    has_history = algorithm is Algorithm.HISTORY
    done = sizes.done if has_history else 0
    pending = sizes.done if has_history and not work.sends else sizes.pending
    if not work.entities:
        if has_history:
            return _UnitSizes(0, sizes.message - sizes.done + pending, sizes.message)
        return _UnitSizes(sizes.document, sizes.document + pending, sizes.document)
    records = math.ceil(work.kept / work.entities) * done
    before = sizes.document + work.entity_bytes + records
    return _UnitSizes(before, before + pending, before + done)


_Units = Mapping[str, tuple[float, float]]
"""Units and the price of a million of them, by the name of the unit."""


def _unit_units(counted: DocumentOperations, sizes: _UnitSizes, prices: ServicePrices, *, sends: int) -> _Units:
    written = prices.write.units(sizes.committed) + (prices.write.units(sizes.last) if counted.writes > 1 else 0.0)
    listed = prices.listing if sends else 0.0
    return _added([(prices.read, counted.reads * prices.read.units(sizes.read)), (prices.write, written + listed)])


def _small_units(counted: DocumentOperations, size: int, prices: ServicePrices) -> _Units:
    return _added(
        [
            (prices.read, counted.reads * prices.read.units(size)),
            (prices.write, counted.writes * prices.write.units(size)),
            (prices.delete, counted.deletes * prices.delete.units(size)),
        ]
    )


def _added(each: list[tuple[OperationPrice, float]]) -> _Units:
    """Add up units of one name and price. Two prices under one name are two kinds of unit."""
    found: dict[str, tuple[float, float]] = {}
    for operation, units in each:
        name = operation.unit
        if name in found and found[name][1] != operation.price:
            name = f"{name} at {operation.price:g}"
        found[name] = (found.get(name, (0.0, 0.0))[0] + units, operation.price)
    return {name: pair for name, pair in found.items() if pair[0]}


def _space(
    algorithm: Algorithm, sizes: DocumentSizes, work: DocumentWorkload, services: PricedServices
) -> tuple[int, int, PricedService]:
    """Return how many documents and bytes are kept for deduplication, and where."""
    store, elsewhere = services
    kept, waiting = math.ceil(work.kept), math.ceil(work.rate * work.in_flight.total_seconds())
    match algorithm:
        case Algorithm.HISTORY if work.entities:
            return 0, kept * sizes.done, store
        case Algorithm.HISTORY:
            return kept, kept * (sizes.message + store.prices.overhead), store
        case Algorithm.DEDUP_STORE:
            return kept, kept * (sizes.mark + elsewhere.prices.overhead), elsewhere
        case Algorithm.TOKENS:
            return waiting, waiting * (sizes.token + elsewhere.prices.overhead), elsewhere
        case Algorithm.OFF:
            return 0, 0, store


def _monthly(uses: list[tuple[PricedService, _Units]], rate: float) -> list[ServiceUse]:
    by_service: dict[str, Counter[str]] = {}
    for service, units in uses:
        here = by_service.setdefault(service.name, Counter())
        for name, (number, _) in units.items():
            here[name] += number * rate * MONTH_SECONDS  # type: ignore[assignment] # a Counter adds any numbers
    return [ServiceUse(service=name, units=dict(units)) for name, units in by_service.items()]
