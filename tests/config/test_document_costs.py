"""What deduplication costs on documents: operations counted on the shipping code, and arithmetic done by hand."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import pytest
from msgspec.structs import replace

from onceonly.algorithms.admission import DedupStoreAdmission, StoreAdmission, TokenAdmission
from onceonly.algorithms.outbox import finish, process
from onceonly.assembly.document_sizes import measure_sizes, most_bytes, service_of
from onceonly.config.document_costs import (
    MONTH_SECONDS,
    Algorithm,
    DocumentOperations,
    DocumentSizes,
    DocumentWorkload,
    MessageOperations,
    PricedService,
    PricedServices,
    estimate_cost,
    operations,
)
from onceonly.config.location import locate
from onceonly.config.prices import OperationPrice, ServicePrices
from onceonly.documents.dedup import DocumentMarkStore
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.message import Message
from onceonly.model.token import TOKEN, Owner, Token
from onceonly.model.wording import FOREVER
from onceonly.ports.bundle import Ports
from onceonly.ports.handlers import Handlers
from onceonly.runtime.environment import SystemIdGenerator
from onceonly_conformance.samples import effects
from onceonly_conformance.suite import ENDPOINT, OTHER
from tests.algorithms.test_round_trips import Shop, bundle
from tests.documents.harness import WEEK, StoreHarness, about

MINE = Token("mine", ENDPOINT)


def history(harness: StoreHarness) -> Ports:
    """Records in the documents."""
    return bundle(harness.store(WEEK), StoreAdmission())


def dedup_store(harness: StoreHarness) -> Ports:
    """Marks elsewhere."""
    done = DocumentMarkStore(harness.documents, retention=WEEK, clock=harness.clock)
    return bundle(harness.store(None), DedupStoreAdmission(ENDPOINT, done))


def tokens(harness: StoreHarness) -> Ports:
    """Tokens elsewhere."""
    own = DocumentTokens(harness.documents, clock=harness.clock)
    return bundle(harness.store(None), TokenAdmission(ENDPOINT, own, {}, SystemIdGenerator()))


def off(harness: StoreHarness) -> Ports:
    """Nothing is remembered."""
    return bundle(harness.store(None), StoreAdmission())


PORTS: dict[Algorithm, Callable[[StoreHarness], Ports]] = {
    Algorithm.HISTORY: history,
    Algorithm.DEDUP_STORE: dedup_store,
    Algorithm.TOKENS: tokens,
    Algorithm.OFF: off,
}
UNITS = ("entity/", "message/", "bucket/")


def counted(harness: StoreHarness, *, elsewhere: bool) -> DocumentOperations:
    """Count the documents that were read, written and deleted; of units, or all others."""

    def wanted(key: str) -> bool:
        return key.startswith(UNITS) is not elsewhere

    kinds = Counter(change.body is None for change in harness.documents.written if wanted(change.key))
    return DocumentOperations(reads=sum(map(wanted, harness.documents.loaded)), writes=kinds[False], deletes=kinds[True])


async def with_a_live_token(harness: StoreHarness) -> None:
    """Another process has sent the message."""
    sender = DocumentTokens(harness.documents, clock=harness.clock)
    await sender.prepare({MINE: Owner(OTHER, "", about().identity)})
    await sender.activate([MINE])
    harness.documents.loaded.clear()
    harness.documents.written.clear()


@pytest.mark.parametrize("unit", ["order/17", ""])
@pytest.mark.parametrize("sends", [0, 1, 2, 5])
@pytest.mark.parametrize("algorithm", Algorithm)
async def test_a_message_takes_the_operations_that_the_plan_counts(algorithm: Algorithm, sends: int, unit: str) -> None:
    """Each document that the shipping code reads, writes or deletes, with an entity and without."""
    harness = StoreHarness()
    message: Message = about(unit=unit, extensions=((TOKEN, MINE.id),))
    if algorithm is Algorithm.TOKENS:
        await with_a_live_token(harness)
    (effect,) = effects()[:1]
    sent = [replace(effect, message=replace(effect.message, id=f"sent-{number}")) for number in range(sends)]
    ports = PORTS[algorithm](harness)._replace(handlers=cast("Handlers", Shop(*sent)))
    processed = await process([message], ports)
    await finish(processed.finished, [], ports)
    found = MessageOperations(unit=counted(harness, elsewhere=False), elsewhere=counted(harness, elsewhere=True))
    assert found == operations(algorithm, sends)


async def test_the_sizes_are_those_of_what_is_stored() -> None:
    """Of marks, tokens, documents of messages, and records in an entity."""
    harness = StoreHarness()
    sizes = measure_sizes(ENDPOINT, sends=0, message_bytes=0)
    await DocumentMarkStore(harness.documents, retention=WEEK, clock=harness.clock).add([bytes(16)], {bytes(16): bytes(8)})
    store = harness.store(WEEK)
    for message in (about("m1", unit=""), about("m2"), about("m3")):
        processed = await process([message], bundle(store, StoreAdmission()))
        await finish(processed.finished, [], bundle(store, StoreAdmission()))
    mark, message_document, one, two = (len(each.key) + len(each.body or b"") for each in harness.documents.written)
    assert (sizes.mark, sizes.message, sizes.done) == (mark, message_document, two - one)
    with_a_message = measure_sizes(ENDPOINT, sends=2, message_bytes=900)
    assert 2 * 1200 < with_a_message.pending - sizes.pending < 2 * 1600  # Base64 adds a third
    assert replace(with_a_message, pending=sizes.pending) == sizes


SIZES = DocumentSizes(document=100, done=80, pending=1500, message=200, mark=90, token=70)
PRICES = ServicePrices(
    read=OperationPrice(unit="reads", price=1.0, bytes=1000),
    write=OperationPrice(unit="writes", price=10.0, bytes=1000, first=5, next=2),
    delete=OperationPrice(unit="deletes", price=0.0, bytes=0),
    storage=2.0,
    overhead=10,
    listing=1,
)
OTHERS = ServicePrices(
    read=OperationPrice(unit="calls", price=3.0, bytes=0),
    write=OperationPrice(unit="calls", price=3.0, bytes=0),
    delete=OperationPrice(unit="calls", price=3.0, bytes=0),
    storage=0.0,
)
WORK = DocumentWorkload(
    rate=10.0,
    sends=1,
    retention=timedelta(seconds=990),
    margin=timedelta(seconds=10),
    in_flight=timedelta(seconds=60),
    entities=0,
    entity_bytes=300,
)
ONE, OTHER_PLACE = PricedService("one", PRICES, 3000), PricedService("other", OTHERS, None)
HERE, APART = PricedServices(ONE, ONE), PricedServices(ONE, OTHER_PLACE)
A_MONTH = 10 * MONTH_SECONDS


def test_a_document_counts_in_started_blocks() -> None:
    """One that is not there counts as the smallest one."""
    assert [PRICES.write.units(size) for size in (0, 1, 1000, 1001, 3001)] == [5, 5, 5, 7, 11]
    assert [OTHERS.write.units(size) for size in (0, 10**9)] == [1, 1]


def test_history_without_entities() -> None:
    """A read of nothing, a commit of 1,620 bytes, a last write of 200, and the list."""
    cost = estimate_cost(Algorithm.HISTORY, SIZES, WORK, HERE)
    assert (cost.operations, cost.documents, cost.bytes) == (3, 10_000, 10_000 * 210)
    assert [(use.service, use.units) for use in cost.uses] == [("one", {"reads": A_MONTH, "writes": A_MONTH * (7 + 5 + 1)})]
    assert cost.price == pytest.approx(A_MONTH * (1 + 130) / 1e6 + 10_000 * 210 / 1e9 * 2.0)
    quiet = estimate_cost(Algorithm.HISTORY, SIZES, replace(WORK, sends=0), HERE)
    assert quiet.operations == 2
    assert quiet.uses[0].units == {"reads": A_MONTH, "writes": A_MONTH * 5}


def test_history_makes_entities_larger() -> None:
    """100 entities have 100 records each: 8,000 bytes, which each read and each write pays for."""
    cost = estimate_cost(Algorithm.HISTORY, SIZES, replace(WORK, entities=100), HERE)
    assert (cost.documents, cost.bytes, cost.largest, cost.fits) == (0, 10_000 * 80, 100 + 300 + 8000 + 1500, False)
    assert cost.uses[0].units == {"reads": A_MONTH * 9, "writes": A_MONTH * (5 + 2 * 9 + 5 + 2 * 8 + 1)}
    assert estimate_cost(Algorithm.HISTORY, SIZES, replace(WORK, entities=10_000), HERE).fits
    assert estimate_cost(Algorithm.DEDUP_STORE, SIZES, replace(WORK, entities=100), HERE).fits


def test_marks_and_tokens_are_paid_where_they_are() -> None:
    """With their own units and prices; space is what they hold."""
    marks = estimate_cost(Algorithm.DEDUP_STORE, SIZES, WORK, APART)
    assert (marks.operations, marks.documents, marks.bytes) == (5, 10_000, 10_000 * 90)
    assert [(use.service, use.units) for use in marks.uses] == [
        ("one", {"reads": A_MONTH, "writes": A_MONTH * (7 + 5 + 1)}),
        ("other", {"calls": A_MONTH * 2}),
    ]
    assert marks.price == pytest.approx(A_MONTH * (1 + 130 + 6) / 1e6)
    own = estimate_cost(Algorithm.TOKENS, SIZES, WORK, APART)
    assert (own.operations, own.documents, own.bytes) == (7, 600, 600 * 70)
    assert own.uses[1].units == {"calls": A_MONTH * 4}
    together = estimate_cost(Algorithm.TOKENS, SIZES, WORK, HERE)
    assert together.uses[0].units == {"reads": A_MONTH * 2, "writes": A_MONTH * (13 + 10), "deletes": A_MONTH}


A_YEAR = 365 * 86_400 * 10


def test_what_is_kept_forever_grows_each_year() -> None:
    """The first year's marks, and as many with each further one; only storage gets dearer."""
    forever = replace(WORK, retention=FOREVER)
    marks = estimate_cost(Algorithm.DEDUP_STORE, SIZES, forever, HERE)
    assert (marks.documents, marks.bytes, marks.fits) == (A_YEAR, A_YEAR * 100, True)
    assert marks.each_year is not None
    assert (marks.each_year.documents, marks.each_year.bytes, marks.each_year.largest) == (A_YEAR, A_YEAR * 100, 0)
    assert marks.each_year.price == pytest.approx(A_YEAR * 100 / 1e9 * 2.0)
    assert estimate_cost(Algorithm.DEDUP_STORE, SIZES, replace(forever, years=2), HERE).documents == 2 * A_YEAR
    for algorithm in (Algorithm.TOKENS, Algorithm.OFF):
        assert estimate_cost(algorithm, SIZES, forever, HERE) == estimate_cost(algorithm, SIZES, WORK, HERE)


def test_an_entity_that_keeps_all_records_grows_until_it_does_not_fit() -> None:
    """A record a year in each: its operations get dearer too, once it has another block."""
    forever = replace(WORK, retention=FOREVER, entities=A_YEAR)
    history = estimate_cost(Algorithm.HISTORY, SIZES, forever, HERE)
    assert (history.documents, history.bytes, history.largest, history.fits) == (0, A_YEAR * 80, 100 + 300 + 80 + 1500, True)
    assert history.each_year is not None
    assert (history.each_year.documents, history.each_year.bytes, history.each_year.largest) == (0, A_YEAR * 80, 80)
    assert history.each_year.price == pytest.approx(A_MONTH * 10 * 2 / 1e6 + A_YEAR * 80 / 1e9 * 2.0)  # 2,060 bytes
    assert not estimate_cost(Algorithm.HISTORY, SIZES, replace(forever, years=20), HERE).fits


def test_off_keeps_nothing() -> None:
    """It stores what is pending all the same."""
    cost = estimate_cost(Algorithm.OFF, SIZES, WORK, HERE)
    assert (cost.operations, cost.documents, cost.bytes) == (3, 0, 0)


def test_units_of_two_prices_are_told_apart() -> None:
    """A service may charge for writes and for deletes in a unit of one name."""
    prices = replace(PRICES, delete=OperationPrice(unit="writes", price=4.0, bytes=0))
    services = PricedServices(ONE._replace(prices=prices), ONE._replace(prices=prices))
    assert set(estimate_cost(Algorithm.TOKENS, SIZES, WORK, services).uses[0].units) == {"reads", "writes", "writes at 4"}


@pytest.mark.parametrize(
    ("url", "service", "most"),
    [
        ("dynamodb://eu-central-1/orders", "dynamodb", 396 * 1024 - 16 * 1024),
        ("rediss://cache/0", "redis", 16 * 1024 * 1024 - 16 * 1024),
        ("cosmos://account/db/orders", "cosmos", 1_450_000 - 16 * 1024),
    ],
)
def test_a_service_has_a_name_and_a_limit(url: str, service: str, most: int) -> None:
    """The scheme of its URL, and what a commit leaves free."""
    assert service_of(locate(url, "store")) == service
    assert most_bytes(service) == most
    assert most_bytes("toy") is None
