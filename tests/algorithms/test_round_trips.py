"""How often a message goes to its stores, counted and compared with the table in docs/explanation/guarantees.md."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from msgspec.structs import replace
from sqlalchemy import event

from onceonly.adapters.memory.artifacts import MemoryArtifacts
from onceonly.algorithms.admission import DedupStoreAdmission, StoreAdmission, TokenAdmission, TokensInStore
from onceonly.algorithms.effects import NoArtifacts, RegisteredEffects
from onceonly.algorithms.outbox import UnitResult, finish, process
from onceonly.documents.dedup import DocumentMarkStore
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.entities import Entities
from onceonly.model.errors import OutcomeUnknown
from onceonly.model.message import Delivery, Message, Send
from onceonly.model.record import Answer, Decision
from onceonly.model.token import TOKEN, Owner, Token
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.handlers import Handlers
from onceonly.ports.store import Resources
from onceonly.ports.transport import Transport
from onceonly.runtime.environment import SystemIdGenerator
from onceonly.sql.database import Database, open_database
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA, ClaimMode, SqlStore, SqlTokens
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import effects
from onceonly_conformance.suite import ENDPOINT, OTHER
from tests import ROOT
from tests.documents.harness import WEEK, StoreHarness, about
from tests.one_by_one import OneByOne

PAGE = ROOT / "docs" / "explanation" / "guarantees.md"
SITUATIONS = ("first, sends one message", "first, sends nothing", "a copy of it later", "again after a crash before dispatch")
EXPECTED: Mapping[str, tuple[int, int, int, int]] = {
    "History, SQL": (7, 3, 3, 6),
    "History, documents": (3, 2, 1, 2),
    "History, documents, with `blobs=`": (7, 6, 3, 4),
    "DedupStore, documents": (5, 5, 2, 4),
    "Tokens, documents": (7, 5, 2, 5),
    "Tokens, in the SQL store's own database": (8, 3, 3, 6),
}
"""One line for each variant, in the order of SITUATIONS. A new variant is a line here, one in VARIANTS and one on the page."""


class Variant(NamedTuple):
    """The ports of an endpoint, a message that it admits, and how often its stores were called so far."""

    ports: Ports
    message: Message
    calls: Callable[[], int]


class Shop(OneByOne):
    """A handler that changes its entity, where there is one, and sends what it is told to."""

    def __init__(self, *sends: Send) -> None:
        self._sends = sends

    async def handle(self, message: Message, resources: Resources, attempt: str = "", response: object = None) -> Decision:
        """Handle."""
        if message.unit:
            cast("Entities", resources.get(Entities)).write(message.unit, b'{"total":17}')
        return Decision(self._sends)


class Broker:
    """Takes everything, unless it is away."""

    is_away = False

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Take."""
        if self.is_away:
            raise OutcomeUnknown("away")
        return tuple(Answer.TAKEN for _ in sends)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Take note."""


def bundle(store: object, admission: object, artifacts: object = None) -> Ports:
    """Put ports together; what is never asked is not there."""
    nothing = cast("DeadLetters", None)
    parts = (cast("Handlers", Shop()), admission, artifacts or NoArtifacts(), cast("Transport", Broker()), nothing)
    return Ports(ENDPOINT, store, store, None, *parts)  # type: ignore[arg-type] # only parts of the ports are needed


@asynccontextmanager
async def history_in_sql(folder: Path) -> AsyncIterator[Variant]:
    """Claims and records in the database of the business data."""
    async with heard_database(folder) as (database, heard):
        variant = Variant(bundle(SqlStore(database, ENDPOINT), StoreAdmission()), about(unit=""), heard.total)
        await deliver(variant._replace(message=replace(variant.message, id="first")))  # the first message decides the retention
        yield variant


@asynccontextmanager
async def history_in_documents(_: Path) -> AsyncIterator[Variant]:
    """Records in the entity's document."""
    harness = StoreHarness()
    yield Variant(bundle(harness.store(WEEK), StoreAdmission()), about(), lambda: len(harness.documents.calls))


@asynccontextmanager
async def history_with_blobs(_: Path) -> AsyncIterator[Variant]:
    """The same, with register rows."""
    harness = StoreHarness()
    artifacts = {"blob": MemoryArtifacts(harness.documents.inner._driver)}
    registered = RegisteredEffects(harness.store(), harness.register(), artifacts, ids=SystemIdGenerator(), clock=harness.clock)
    yield Variant(bundle(harness.store(WEEK), StoreAdmission(), registered), about(), lambda: len(harness.documents.calls))


@asynccontextmanager
async def dedup_store(_: Path) -> AsyncIterator[Variant]:
    """A small entity, and a mark elsewhere."""
    harness = StoreHarness()
    done = DocumentMarkStore(harness.documents, retention=WEEK, clock=harness.clock)
    yield Variant(
        bundle(harness.store(None), DedupStoreAdmission(ENDPOINT, done)), about(), lambda: len(harness.documents.calls)
    )


@asynccontextmanager
async def tokens(_: Path) -> AsyncIterator[Variant]:
    """A token that came with the message, and one for each that is sent."""
    harness = StoreHarness()
    store = DocumentTokens(harness.documents, clock=harness.clock)
    mine = Token("mine", ENDPOINT)
    await store.prepare(dict.fromkeys([mine], Owner(OTHER, "", about().identity)))
    await DocumentTokens(harness.documents, clock=harness.clock).activate([mine])
    harness.documents.calls.clear()
    admission = TokenAdmission(ENDPOINT, DocumentTokens(harness.documents, clock=harness.clock), {}, SystemIdGenerator())
    message = about(extensions=((TOKEN, mine.id),))
    yield Variant(bundle(harness.store(None), admission), message, lambda: len(harness.documents.calls))


@asynccontextmanager
async def tokens_in_sql(folder: Path) -> AsyncIterator[Variant]:
    """Tokens in the database of the business data: one transaction consumes one and makes others live."""
    mine = Token("mine", ENDPOINT)
    async with heard_database(folder) as (database, heard):
        await SqlTokens(database).add([mine])
        heard.clear()
        store = SqlStore(database, ENDPOINT, claim_mode=ClaimMode.TOKENS)
        message = about(unit="", extensions=((TOKEN, mine.id),))
        yield Variant(bundle(store, TokensInStore({}, SystemIdGenerator())), message, heard.total)


@asynccontextmanager
async def heard_database(folder: Path) -> AsyncIterator[tuple[Database, Counter[str]]]:
    """Open a database with the store's tables; counts the statements from here on."""
    database = await open_database(f"sqlite:///{folder}/shop.db", clock=ManualClock())
    heard: Counter[str] = Counter()
    try:
        await create(database, SCHEMA)
        engine = database.engine.sync_engine
        event.listen(engine, "before_cursor_execute", lambda _c, _k, said, *_: heard.update([said.split()[0]]))
        event.listen(engine, "commit", lambda _: heard.update(["COMMIT"]))
        yield database, heard
    finally:
        await database.close()


VARIANTS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Variant]]] = {
    "History, SQL": history_in_sql,
    "History, documents": history_in_documents,
    "History, documents, with `blobs=`": history_with_blobs,
    "DedupStore, documents": dedup_store,
    "Tokens, documents": tokens,
    "Tokens, in the SQL store's own database": tokens_in_sql,
}


async def deliver(variant: Variant, *sends: Send) -> int:
    """Take the message through once; gives how often its stores were called."""
    before = variant.calls()
    ports = variant.ports._replace(handlers=cast("Handlers", Shop(*sends)))
    processed: UnitResult = await process([variant.message], ports)
    if processed.finished:
        await finish(processed.finished, [], ports)
    return variant.calls() - before


async def after_a_crash(variant: Variant) -> int:
    """Take it through up to its commit, then once more."""
    broker = cast("Broker", variant.ports.transport)
    broker.is_away = True
    with pytest.raises(OutcomeUnknown):
        await deliver(variant, SEND)
    broker.is_away = False
    return await deliver(variant, SEND)


SEND = effects()[0]


@pytest.mark.parametrize("name", VARIANTS)
async def test_a_message_goes_to_its_stores_this_often(name: str, tmp_path: Path) -> None:
    """Every number of the table."""
    counted: list[int] = []
    for number, sends in enumerate(((SEND,), ())):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with VARIANTS[name](folder) as variant:
            counted.append(await deliver(variant, *sends))
            copies = {await deliver(variant, *sends) for _ in range(2)}
            assert len(copies) == 1
    async with VARIANTS[name](tmp_path) as variant:
        crashed = await after_a_crash(variant)
    assert (*counted, *copies, crashed) == EXPECTED[name]


def test_the_page_has_these_numbers() -> None:
    """So that the table cannot lie."""
    assert list(EXPECTED) == list(VARIANTS)
    head = f"| | {' | '.join(SITUATIONS)} |\n|---|{'---|' * len(SITUATIONS)}\n"
    rows = "".join(f"| {name} | {' | '.join(map(str, counted))} |\n" for name, counted in EXPECTED.items())
    assert head + rows in PAGE.read_text(encoding="utf-8")
