"""Whole endpoints on documents: entities, a dedup store, tokens and blobs, in every kind of place; and what Off() would do."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from onceonly import DedupStore, Endpoint, History, Off, Tokens
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.relay import relay
from onceonly.algorithms.sweeper import sweep
from onceonly.assembly import open_read_only
from onceonly.assembly.deduplication import with_token
from onceonly.config.deduplication import Deduplication
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.runtime.environment import SystemClock
from onceonly.runtime.maintenance.counts import dropped
from tests.endpoint.chain_harness import KINDS, Chain, Paid, accounts, audit, clean, fresh_place, keys, opened, payments, state

COUNT = 6


@pytest_asyncio.fixture
async def places(tmp_path: Path) -> AsyncIterator["Places"]:
    """Return places, and remove them."""
    made = Places(tmp_path)
    try:
        yield made
    finally:
        for url in made.urls:
            await clean(url)


class Places:
    """Empty places by their kind; those of one test share nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.urls: list[str] = []

    def new(self, kind: str) -> str:
        """Return one."""
        self.urls.append(fresh_place(kind, self.folder))
        return self.urls[-1]


def chain(store: str, deduplication: Deduplication, places: Places, *, blobs: str | None = None) -> tuple[Endpoint, Endpoint]:
    """Make both endpoints on one store and one queue in memory."""
    queue = places.new("memory")
    return accounts(store, deduplication, transport=queue, blobs=blobs), audit(store, deduplication, transport=queue)


async def open_attempts(running: Chain) -> int:
    """Count the attempts of `accounts` that could still be committed."""
    async with open_read_only(running.accounts.settings) as opened:
        assert opened.register is not None
        rows = await opened.register.old(SystemClock().now() + 1, 1000)
        return sum([await opened.register.cancel(row) for row in rows])


async def pay_twice(running: Chain) -> None:
    """Send payments, each in two copies at once, settle all, and send every one again."""
    await running.send(*payments(COUNT), *payments(COUNT))
    await running.settle()
    await running.send(*payments(COUNT))
    await running.settle()


async def book(running: Chain) -> list[int]:
    """Return what the audit wrote down: entries and balance of both accounts."""
    found = [await state(running.audit, "Book", owner) for owner in ("ann", "bob")]
    return [number for each in found for number in (each["entries"], each["balance"])]


@pytest.mark.parametrize("kind", KINDS)
async def test_copies_change_nothing_where_entities_know_them(kind: str, places: Places) -> None:
    """Each payment is booked once, at both endpoints."""
    async with opened(*chain(places.new(kind), History(), places)) as running:
        await pay_twice(running)
        assert await book(running) == [3, 3, 3, 3]


@pytest.mark.parametrize("kind", KINDS)
async def test_without_deduplication_copies_count(kind: str, places: Places) -> None:
    """The control: the same messages, and every copy that comes in another batch is booked."""
    async with opened(*chain(places.new(kind), Off(), places)) as running:
        await pay_twice(running)
        assert await book(running) == [9, 9, 9, 9]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elsewhere", KINDS)
async def test_copies_change_nothing_where_a_dedup_store_knows_them(kind: str, elsewhere: str, places: Places) -> None:
    """The store of the endpoints forgets them, whatever it is; only the dedup store has marks, one for each message."""
    store, done = places.new(kind), places.new(elsewhere)
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(opened(*chain(store, DedupStore(done), places)))
        await pay_twice(running)
        assert await book(running) == [3, 3, 3, 3]
        assert len([key for key in await keys(done) if key.startswith("done/")]) == 2 * COUNT
        for owner in ("ann", "bob"):
            assert len(str(await state(running.accounts, "Account", owner))) < 60


async def test_what_a_transaction_sends_is_noted_as_done_elsewhere(places: Places) -> None:
    """Where a dedup store knows what is done, a transaction's record goes altogether once it is sent."""
    queue, done, store = places.new("memory"), places.new("memory"), places.new("sqlite")
    shop = accounts(store, DedupStore(done), transport=queue)
    async with opened(shop, audit(places.new("memory"), DedupStore(done), transport=queue)) as running:
        engine = create_async_engine(store.replace("sqlite:", "sqlite+aiosqlite:"))
        async with AsyncSession(engine) as session, session.begin():
            shop.enlist(session).send(Paid("ann", 5), to="audit")
        await engine.dispose()
        pending = running.accounts_ports.pending
        assert pending is not None
        (record,) = await pending.undispatched(SystemClock().now() + 1, 10)
        assert (await relay([record], running.accounts_ports)).finished == (record,)
        await running.settle()
        assert (await state(running.audit, "Book", "ann"))["entries"] == 1
        assert await pending.find([record.identity]) == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elsewhere", KINDS)
async def test_tokens_are_handed_on_and_leave_nothing(kind: str, elsewhere: str, places: Places) -> None:
    """From outside to `accounts`, from there to `audit`: each message is handled once, and no token is left at the end."""
    store, tokens = places.new(kind), places.new(elsewhere)
    async with opened(*chain(store, Tokens(tokens), places)) as running:
        sent = await running.send_with_tokens(*payments(COUNT))
        await running.send(*sent)
        await running.settle()
        await running.send(*sent)
        report = await running.settle()
        assert await book(running) == [3, 3, 3, 3]
        assert report.known == COUNT
        assert not [key for key in await keys(tokens) if key.startswith("token/")]


async def test_tokens_in_the_stores_own_database_leave_nothing(places: Places) -> None:
    """One commit consumes the token of a message and makes those of its own messages live."""
    async with opened(*chain(places.new("sqlite"), Tokens(), places)) as running:
        sent = await running.send_with_tokens(*payments(COUNT))
        await running.send(*sent)
        await running.settle()
        await running.send(*sent)
        assert (await running.settle()).known == COUNT
        assert await book(running) == [3, 3, 3, 3]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_whose_token_is_lost_is_not_handled(kind: str, places: Places) -> None:
    """It is acknowledged and counted: nobody knows whether it was handled."""
    async with opened(*chain(places.new(kind), Tokens(places.new(kind)), places)) as running:
        await running.send(*[with_token(message) for message in payments(COUNT)])
        assert (await running.settle()).known == COUNT
        assert await state(running.accounts, "Account", "ann") is None


@pytest.mark.parametrize(("kind", "in_store"), [("sqlite", True), *((kind, False) for kind in KINDS)])
async def test_what_came_without_a_live_token_counts_as_dropped_once(kind: str, in_store: bool, places: Places) -> None:  # noqa: FBT001 - a parameter of the test
    """A copy that came with its message does not count, and two later ones that come together are one message."""
    tokens = "" if in_store else places.new(kind)
    async with opened(*chain(places.new(kind), Tokens(tokens), places)) as running:
        sent = await running.send_with_tokens(*payments(1))
        await running.send(*sent)
        together = await running.settle()
        await running.send(*sent, *sent)
        later = await running.settle()
        assert (together.handled, together.known, dropped(together, in_store=in_store)) == (2, 1, 0)
        assert (later.handled, later.known, dropped(later, in_store=in_store)) == (0, 2, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deduplication", ["history", "dedup", "tokens"])
async def test_each_message_has_one_blob_however_often_it_came(kind: str, deduplication: str, places: Places) -> None:
    """Those of attempts that lost are gone, and copies that were dropped leave no attempts open."""
    rule: Deduplication = History()
    if deduplication != "history":
        rule = DedupStore(places.new(kind)) if deduplication == "dedup" else Tokens(places.new(kind))
    folder = places.folder / "blobs of the accounts"
    folder.mkdir()
    made = chain(places.new(kind), rule, places, blobs=f"folder://{quote(str(folder))}")
    async with opened(*made) as running:
        sent = await running.send_with_tokens(*payments(COUNT)) if deduplication == "tokens" else payments(COUNT)
        await running.send(*sent, *([] if deduplication == "tokens" else sent))
        batches = [await running.accounts_ports.transport.receive(4, 0) for _ in range(2)]
        await deliver(batches[1], running.accounts_ports)
        await deliver(batches[0], running.accounts_ports)
        await running.send(*sent)
        await running.settle()
        assert await book(running) == [3, 3, 3, 3]
        assert await open_attempts(running) == 0
    receipts = sorted(path.read_text() for path in folder.rglob("receipt.txt"))
    assert receipts == ["1", "1", "2", "2", "3", "3"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_dead_attempt_left_is_swept(kind: str, places: Places) -> None:
    """Its prepared tokens and its register row; and that attempt can never be committed after it."""
    tokens, folder = places.new(kind), places.folder / "blobs"
    folder.mkdir()
    made = chain(places.new(kind), Tokens(tokens), places, blobs=f"folder://{quote(str(folder))}")
    async with opened(*made) as running:
        ports, (order, *_) = running.accounts_ports, payments(1)
        unit = ports.store.unit_key(order)
        attempts = await ports.effects.register([order])
        effect = Send(message=Message(id="o1", source="accounts", type="paid", body=b"{}"), to="audit")
        await ports.admission.prepare([Record(order.identity, (effect,), unit=unit)])
        (folder / attempts[order.identity]).mkdir()
        (folder / attempts[order.identity] / "receipt.txt").write_text("1")
        later, maintenance = SystemClock().now() + 1, ports.maintenance
        assert maintenance.tokens is not None
        assert maintenance.artifacts is not None
        assert await sweep(maintenance.tokens, later, 10, ports) == 1
        assert await maintenance.artifacts.sweep(later, 10) == 1
        assert not [key for key in await keys(tokens) if key.startswith(("token/", "register/"))]
        assert not list(folder.rglob("receipt.txt"))
