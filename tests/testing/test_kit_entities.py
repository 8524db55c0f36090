"""The kit with entities, dedup stores, tokens and blobs: fresh places in memory, and no crash changes what comes of it."""

from dataclasses import dataclass

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, DedupStore, Deleted, Endpoint, Retry, SetupError, Tokens, testing
from onceonly.config.deduplication import Deduplication, History
from onceonly.testing import CRASH_POINTS
from tests.testing.crash_points import UNREACHED

DEDUPLICATIONS = (
    History(),
    DedupStore("dynamodb://eu-west-1/done"),
    Tokens("dynamodb://eu-west-1/tokens", subscribers={"Moved": ["audit"]}),
)
STORES = ("memory://never-opened", "dynamodb://eu-west-1/bank", "sqlite:///never-opened.db")


@dataclass
class Deposit:
    """A message about one account; 0 closes it."""

    account_id: str
    amount: int


@dataclass
class Moved:
    """An event."""

    account_id: str
    balance: int
    receipt: str = ""


@dataclass
class Account:
    """An entity that counts every time it is worked on."""

    account_id: str
    balance: int = 0


def bank(store: str = STORES[0], deduplication: Deduplication = DEDUPLICATIONS[0], blobs: str | None = None) -> Endpoint:
    """Make an endpoint that works on accounts, and writes receipts where it has a place for them."""
    made = Endpoint(
        "bank",
        store=store,
        transport="sqlite:///never-opened.db",
        deduplication=deduplication,
        blobs=blobs,
        retry=Retry(immediate=0, delayed=0),
    )

    @made.handler(entity=Account, key="account_id")
    async def deposit(order: Deposit, account: Account, context: Context) -> Deleted | None:
        if order.amount == 0:
            return Deleted()
        account.balance += order.amount
        receipt = await context.blobs.create("receipt.txt", b"%d" % account.balance) if blobs else ""
        context.publish(Moved(order.account_id, account.balance, receipt))
        return None

    return made


@pytest.mark.parametrize("store", [STORES[0], *(pytest.param(store, marks=pytest.mark.slow) for store in STORES[1:])])
@pytest.mark.parametrize("deduplication", DEDUPLICATIONS, ids=lambda each: type(each).__name__)
async def test_an_entity_is_changed_once_whatever_crashes(store: str, deduplication: Deduplication) -> None:
    """On every kind of store, with every kind of deduplication, at every crash point; copies included."""
    for point in CRASH_POINTS:
        async with testing.run(bank(store, deduplication)) as t:
            await t.deliver(Deposit("a", 5), copies=2, crash_at=point, must_crash=point not in UNREACHED)
            await t.deliver(Deposit("a", 2), copies=2, together=True)
            assert t.dead_letters == ()
            assert await t.entity(Account, "a") == Account("a", 7), point
            assert t.sent == [Moved("a", 5), Moved("a", 7)], point


async def test_an_entity_that_does_not_exist_is_none() -> None:
    """Never made, or deleted."""
    async with testing.run(bank()) as t:
        assert await t.entity(Account, "a") is None
        await t.deliver(Deposit("a", 5))
        await t.deliver(Deposit("a", 0))
        assert await t.entity(Account, "a") is None


async def test_looking_at_an_entity_changes_nothing() -> None:
    """Not even with tokens, which are consumed where messages are begun."""
    for store in STORES:
        async with testing.run(bank(store, DEDUPLICATIONS[2])) as t:
            await t.deliver(Deposit("a", 5))
            for _ in range(2):
                assert await t.entity(Account, "a") == Account("a", 5)
            await t.deliver(Deposit("a", 1))
            assert await t.entity(Account, "a") == Account("a", 6)


async def test_a_whole_message_delivered_again_is_a_copy_also_with_tokens() -> None:
    """Its token was consumed."""
    async with testing.run(bank(deduplication=DEDUPLICATIONS[2])) as t:
        message = t.message(Deposit("a", 5))
        for _ in range(2):
            await t.deliver(message)
        assert await t.entity(Account, "a") == Account("a", 5)


@dataclass
class Open:
    """A command that has the endpoint send itself another one."""

    account_id: str


def opening(deduplication: Tokens, store: str = STORES[0]) -> Endpoint:
    """Make an endpoint that sends itself commands, and counts what it handled of them."""
    made = Endpoint("bank", store=store, transport="sqlite:///never-opened.db", deduplication=deduplication)

    @made.handler(entity=Account, key="account_id")
    async def open_account(order: Open, account: Account, context: Context) -> None:  # noqa: ARG001 - it works on one
        context.send(Deposit(order.account_id, 5), to="bank")

    @made.handler(entity=Account, key="account_id")
    async def deposit(order: Deposit, account: Account) -> None:
        account.balance += order.amount

    return made


@pytest.mark.parametrize(
    ("store", "url"),
    [(STORES[0], "dynamodb://eu-west-1/tokens"), (STORES[2], "dynamodb://eu-west-1/tokens"), (STORES[2], "")],
    ids=["documents", "sql", "in-the-store"],
)
async def test_a_copy_of_the_endpoints_own_message_finds_its_token_consumed(store: str, url: str) -> None:
    """The endpoint issued that token, and consumed it when it handled the message: the kit makes no other one live."""
    async with testing.run(opening(Tokens(url, subscribers={}), store)) as t:
        await t.deliver(Open("a"))
        assert await t.entity(Account, "a") == Account("a", 5)
        (sent,) = t.raw
        report = await t.deliver(sent.message)
        await t.deliver_batch([sent.message])
        assert await t.entity(Account, "a") == Account("a", 5)
        assert (report.known, report.handled) == (1, 0)


async def test_a_message_of_another_run_has_a_live_token() -> None:
    """What one endpoint sent in its own test can be delivered in the test of its receiver."""
    async with testing.run(opening(Tokens("dynamodb://eu-west-1/tokens", subscribers={}))) as t:
        await t.deliver(Open("a"))
        (sent,) = t.raw
    async with testing.run(opening(Tokens("dynamodb://eu-west-1/tokens", subscribers={}))) as t:
        for _ in range(2):
            await t.deliver(sent.message)
        assert await t.entity(Account, "a") == Account("a", 5)


async def test_tokens_in_the_stores_own_database_stay_there() -> None:
    """One commit writes both."""
    async with testing.run(bank(STORES[2], Tokens(subscribers={"Moved": []}))) as t:
        await t.deliver(Deposit("a", 5), copies=2, crash_at="after-commit")
        assert (await t.entity(Account, "a"), t.crashes) == (Account("a", 5), 1)


@pytest.mark.parametrize("store", STORES)
async def test_the_one_receipt_that_was_announced_is_there(store: str) -> None:
    """Whatever crashed: the receipt of the attempt that was not committed is gone when its message is finished."""
    for point in CRASH_POINTS:
        async with testing.run(bank(store, blobs="s3://bucket/receipts")) as t:
            await t.deliver(Deposit("a", 5), crash_at=point, must_crash=point not in UNREACHED)
            (moved,) = t.sent
            assert await t.blobs() == {moved.read(Moved).receipt: b"5"}, point


async def test_an_endpoint_without_a_place_has_no_blobs() -> None:
    """None, and no error."""
    async with testing.run(bank()) as t:
        assert await t.blobs() == {}


async def test_a_store_of_documents_has_no_session() -> None:
    """Told what there is instead."""
    async with testing.run(bank()) as t:
        with pytest.raises(SetupError, match=r"t\.entity"):
            async with t.session(AsyncSession):
                raise AssertionError


@pytest.mark.parametrize("store", STORES)
async def test_a_transaction_changes_an_entity_and_leaves_its_control_message_out_of_what_was_sent(store: str) -> None:
    """On documents it is followed when its time comes, and then nothing is left."""
    made = bank(store)
    async with testing.run(made) as t:
        async with made.transaction(idempotency_key="k") as tx:
            (await tx.entity(Account, "a")).balance += 5
            tx.publish(Moved("a", 5))
        t.clock.advance(3_600_000)
        report = await t.settle()
        assert t.sent == [Moved("a", 5)]
        assert (await t.entity(Account, "a"), report.dead, report.unknown) == (Account("a", 5), 0, 0)
        assert report.known == (0 if store.startswith("sqlite") else 1)
