"""Projections of an endpoint: what a handler writes is there when its message is finished, and nothing older replaces it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from onceonly import Context, Endpoint, Retry, SetupError, Tokens, testing
from onceonly.config.deduplication import Deduplication, DedupStore, History
from onceonly.documents.projections import ProjectedValue
from onceonly.errors import CommitRefused, InvalidEffect
from onceonly.testing import CRASH_POINTS
from tests.documents.test_projections import Index
from tests.testing.crash_points import UNREACHED

STORES = ("memory://never-opened", "dynamodb://eu-west-1/bank", "sqlite:///never-opened.db")
CACHE = {"cache": "redis://127.0.0.1:1/0?prefix=never-opened:"}
DEDUPLICATIONS = (History(), DedupStore("dynamodb://eu-west-1/done"), Tokens("dynamodb://eu-west-1/tokens", subscribers={}))


@dataclass
class Deposit:
    """A message about one account; 0 closes it."""

    account_id: str
    amount: int


@dataclass
class Account:
    """An entity that counts its changes."""

    account_id: str
    balance: int = 0
    version: int = 0


@dataclass
class Moved:
    """A message that follows."""

    account_id: str


def bank(store: str = STORES[0], deduplication: Deduplication = DEDUPLICATIONS[0], **settings: Any) -> Endpoint:
    """Make an endpoint that keeps balances in a cache."""
    chosen: dict[str, Any] = {"projections": CACHE, "retry": Retry(immediate=0, delayed=0)} | settings
    made = Endpoint("bank", store=store, transport="sqlite:///never-opened.db", deduplication=deduplication, **chosen)

    @made.handler(entity=Account, key="account_id")
    async def deposit(order: Deposit, account: Account, context: Context) -> None:
        account.balance += order.amount
        account.version += 1
        cache = context.projections[next(iter(context.projections))]
        if order.amount:
            cache.put(order.account_id, account.balance, version=account.version)
        else:
            cache.delete(order.account_id, version=account.version)
        context.send(Moved(order.account_id), to="audit")

    return made


@pytest.mark.parametrize("store", [STORES[0], *(pytest.param(store, marks=pytest.mark.slow) for store in STORES[1:])])
@pytest.mark.parametrize("deduplication", DEDUPLICATIONS, ids=lambda each: type(each).__name__)
async def test_a_projection_has_the_newest_state_whatever_crashes(store: str, deduplication: Deduplication) -> None:
    """At every crash point, before and after the write; copies included."""
    for point in (*CRASH_POINTS, "before-call", "after-call"):
        async with testing.run(bank(store, deduplication)) as t:
            await t.deliver(Deposit("a", 5), copies=2, crash_at=point, must_crash=point not in UNREACHED)
            assert await t.projection("cache") == {"a": b"5"}, point
            await t.deliver(Deposit("b", 1))
            await t.deliver(Deposit("a", 2), crash_at=point, must_crash=point not in UNREACHED)
            assert await t.projection("cache") == {"a": b"7", "b": b"1"}, point
            await t.deliver(Deposit("a", 0), copies=2, together=True)
            assert await t.projection("cache") == {"b": b"1"}, point
            assert (t.sent, t.dead_letters) == ([Moved("a"), Moved("b"), Moved("a"), Moved("a")], ()), point


async def test_a_message_waits_for_its_projection() -> None:
    """A projection that is away delays the messages behind it, loses nothing, and is no failure of the message."""
    index = Index()
    index.error = RuntimeError("away")
    async with testing.run(bank("memory://waits", projections={"search": index}), own_store=True) as t:
        await t.deliver(Deposit("a", 5), copies=2)
        assert (t.sent, t.dead_letters, index.values) == ([], (), {})
        assert await t.entity(Account, "a") == Account("a", 5, 1)
        index.error = None
        t.clock.advance(3600)
        await t.settle()
        assert (t.sent, t.dead_letters, index.values) == ([Moved("a")], (), {"a": (1, b"5")})


async def test_what_a_projection_refuses_is_a_dead_letter_that_is_only_to_be_finished() -> None:
    """The state is committed, and the reason says what was refused."""
    index = Index()
    index.error = CommitRefused("no such field")
    async with testing.run(bank("memory://refuses", projections={"search": index}), own_store=True) as t:
        await t.deliver(Deposit("a", 5))
        (letter,) = t.dead_letters
        assert (
            letter.reason == "handled, but a projection or the broker rejected its effects: projection:search, Moved to audit"
        )
        assert await t.entity(Account, "a") == Account("a", 5, 1)
        assert t.sent == []


async def use(work: Callable[[Context], Any], **settings: Any) -> Exception | None:
    """Run a handler that does this with its context, and return what it raised."""
    made = bank(**settings)
    raised: list[Exception] = []

    @made.handler(entity=Account, key="account_id")
    async def move(order: Moved, account: Account, context: Context) -> None:  # noqa: ARG001 - it only writes
        account.version += 1
        try:
            found = work(context)
            if found is not None:
                await found
        except InvalidEffect as error:
            raised.append(error)

    async with testing.run(made) as t:
        await t.deliver(Moved("a"))
    return raised[0] if raised else None


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None, 2**62 + 1])
async def test_a_version_is_a_whole_number_above_zero(version: Any) -> None:
    """Also when a key is deleted."""
    for each in (
        lambda context: context.projections["cache"].put("k", 1, version=version),
        lambda context: context.projections["cache"].delete("k", version=version),
    ):
        assert "version must be a whole number from 1" in str(await use(each))


@pytest.mark.parametrize("key", ["", "k" * 513, "\ud800", 5, "sha256-00"])
async def test_a_key_is_text_that_every_service_can_store(key: Any) -> None:
    """And not one of those that are made from content."""
    for each in (
        lambda context: context.projections["cache"].put(key, 1, version=1),
        lambda context: context.projections["cache"].delete(key, version=1),
    ):
        assert "to projection 'cache': " in str(await use(each))


async def test_what_cannot_be_stored_is_refused_when_it_is_written() -> None:
    """A value, its size, the number of keys, and a projection that does not exist."""
    many = list(map(str, range(101)))
    for work, words in (
        (lambda context: context.projections["cache"].put("k", object(), version=1), "a body must be"),
        (lambda context: context.projections["cache"].put("k", b"x" * 1_048_577, version=1), "the limit is 1,048,576"),
        (lambda context: context.projections["cache"].put("k", b"x" * 1_000_000, version=1), "the limit of memory is"),
        (lambda context: [context.projections["cache"].put(key, 1, version=1) for key in many] and None, "at most 100 keys"),
        (lambda context: context.projections["index"], "this endpoint has no projection 'index', it has cache"),
    ):
        assert words in str(await use(work))
    assert "it has none" in str(await use(lambda context: context.projections["cache"], projections=None))


async def test_a_handler_reads_a_projection_and_stores_content() -> None:
    """The key of content is the same for the same value, and is never written again."""
    made = bank()
    keys: list[str] = []
    seen: list[ProjectedValue | None] = []

    @made.handler(entity=Account, key="account_id")
    async def move(order: Moved, account: Account, context: Context) -> None:
        account.version += 1
        cache = context.projections["cache"]
        keys.append(cache.put_content({"terms": 1}))
        seen.append(await cache.get(order.account_id))

    async with testing.run(made) as t:
        await t.deliver(Deposit("a", 5))
        for name in ("a", "b"):
            await t.deliver(Moved(name))
        assert await t.projection("cache") == {"a": b"5", keys[0]: b'{"terms":1}'}
    assert len(set(keys)) == 1
    assert seen == [ProjectedValue(b"5", 1, "application/json"), None]


async def test_a_projection_is_used_while_its_handler_runs() -> None:
    """Afterwards nothing could be committed."""
    kept: list[Any] = []
    assert await use(lambda context: kept.append(context.projections["cache"])) is None
    with pytest.raises(InvalidEffect, match="after the handler ended"):
        kept[0].put("k", 1, version=1)
    with pytest.raises(InvalidEffect, match="after the handler ended"):
        await kept[0].get("k")


@pytest.mark.parametrize(
    ("projections", "words"),
    [
        (["redis://h/0"], "projections must map names to URLs"),
        ({"Cache": "redis://h/0"}, "projections: 'Cache' is not a name"),
        ({"cache": 5}, "'cache' must be a URL or have the methods of Projection, not an int"),
        ({"cache": "redis://h/x"}, "projections='redis://h/x': 'x' is not the number"),
        ({"cache": "amqp://h"}, "this version of onceonly has no projections for amqp://"),
    ],
)
def test_wrong_projections_are_refused_where_the_endpoint_is_defined(projections: Any, words: str) -> None:
    """With all other problems."""
    with pytest.raises(SetupError) as caught:
        bank(projections=projections)
    assert words in str(caught.value)
