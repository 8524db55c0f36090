"""Batch handlers: one run for several messages, and each message has its own effects, failures and dead letter."""

# ruff: noqa: ARG001 - functions under test need not use what they ask for

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceonly import BatchContext, Context, Endpoint, Reject, Retry, RetryLater, testing
from onceonly.adapters.memory.store import MemoryStore
from onceonly.adapters.memory.world import Live
from onceonly.endpoint.batch import group
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidHandler
from onceonly.model.errors import HandlerFailed
from onceonly.types import CallNext
from tests.endpoint.harness import STILL, incoming


@dataclass
class Order:
    """What comes."""

    id: str


@dataclass
class Placed:
    """What is sent."""

    id: str


@dataclass
class Note:
    """What another handler takes."""

    id: str


class Base(DeclarativeBase):
    """The user's tables."""


class Line(Base):
    """A row."""

    __tablename__ = "lines"
    id: Mapped[str] = mapped_column(primary_key=True)


def shop(**settings: Any) -> Endpoint:
    """Make an endpoint whose run has a new SQLite file."""
    defaults = {"store": "sqlite:///shop.db", "transport": "memory://batch", "metadata": Base.metadata}
    return Endpoint("shop", **defaults | {"retry": Retry(immediate=0, delayed=0)} | settings)


class Runs:
    """An endpoint with a batch handler that places orders, and which orders each of its runs was given."""

    def __init__(self, then: Callable[[Order, BatchContext], None] | None = None, **settings: Any) -> None:
        self.shop = shop(**settings)
        self.given: list[str] = []

        @self.shop.handler(batch=True)
        async def place(orders: list[Order], session: AsyncSession, batch: BatchContext) -> None:
            self.given.append("".join(order.id for order in orders))
            await session.execute(insert(Line), [{"id": order.id} for order in orders])
            for order, context in zip(orders, batch, strict=True):
                context.publish(Placed(order.id))
            for order in orders:
                if then is not None:
                    then(order, batch)


async def lines(t: testing.EndpointRun) -> list[str]:
    """Return the rows that are committed."""
    async with t.session() as session:
        return sorted(await session.scalars(select(Line.id)))


def orders(names: str) -> list[Order]:
    """Make an order of each letter."""
    return [Order(name) for name in names]


async def test_one_run_for_all_and_effects_for_each() -> None:
    """One multi-row insert; what a context sends comes from its own message."""
    runs = Runs()
    async with testing.run(runs.shop) as t:
        report = await t.deliver_batch([t.message(Order(name), id=name) for name in "abcde"])
        assert (runs.given, report.handled) == (["abcde"], 5)
        assert await lines(t) == [*"abcde"]
        assert t.sent == [Placed(name) for name in "abcde"]
        assert [send.message.extension("causationid") for send in t.raw] == [*"abcde"]


async def test_an_order_is_placed_once_wherever_the_process_dies(onceonly_crash_point: str) -> None:
    """Also when the batch comes twice."""
    runs = Runs()
    async with testing.run(runs.shop) as t:
        batch = [t.message(Order(name), id=name) for name in "abc"]
        await t.deliver_batch(batch, crash_at=onceonly_crash_point)
        await t.deliver_batch(batch)
        assert await lines(t) == [*"abc"]
        assert t.sent == [Placed(name) for name in "abc"]


def fails(*names: str) -> Callable[[Order, BatchContext], None]:
    """Fail as a whole because of these."""

    def then(order: Order, batch: BatchContext) -> None:
        if order.id in names:
            raise ValueError(f"{order.id} is not wanted")

    return then


async def test_one_that_fails_costs_only_itself() -> None:
    """All run again in the same unit, by halves. Nothing of the one that fails is kept, and only its failure counts."""
    runs = Runs(fails("d"))
    async with testing.run(runs.shop, raise_failures=False) as t:
        await t.deliver_batch(orders("abcdefgh"))
        assert [letter.reason for letter in t.dead_letters] == ["ValueError: d is not wanted"]
        assert [len(letter.history) for letter in t.dead_letters] == [1]
        assert await lines(t) == [*"abcefgh"]
        assert t.sent == [Placed(name) for name in "abcefgh"]
        assert runs.given == ["abcdefgh", "abcdefgh", "abcd", "ab", "cd", "c", "d", "efgh"]
        assert [failure.message.body for failure in t.failures] == [b'{"id":"d"}']


async def test_all_that_fail_are_found() -> None:
    """Each in its own dead letter."""
    runs = Runs(fails("a", "c", "d"))
    async with testing.run(runs.shop, raise_failures=False) as t:
        await t.deliver_batch(orders("abcde"))
        assert sorted(letter.reason for letter in t.dead_letters) == [f"ValueError: {name} is not wanted" for name in "acd"]
        assert await lines(t) == [*"be"]
        assert sorted(sent.read(Placed).id for sent in t.sent) == [*"be"]


async def test_messages_that_are_set_aside_are_undone_and_the_others_run_again() -> None:
    """A rejected one is a dead letter at once, one for later comes again without a count."""

    def then(order: Order, batch: BatchContext) -> None:
        if order.id == "b":
            batch.reject(order, "unknown article")
        if order.id == "d" and batch[0].message.id != "d":
            batch.retry_later(batch[3], 60, "no stock")

    runs = Runs(then, retry=Retry(immediate=2))
    async with testing.run(runs.shop) as t:
        await t.deliver_batch([t.message(Order(name), id=name) for name in "abcd"])
        assert runs.given == ["abcd", "abcd", "ac"]  # the second run is isolated
        assert [letter.reason for letter in t.dead_letters] == ["unknown article"]
        assert await lines(t) == [*"ac"]
        t.clock.advance(61)
        await t.settle()
        assert runs.given[3:] == ["d"]
        assert await lines(t) == [*"acd"]
        assert t.sent == [Placed(name) for name in "acd"]


async def test_a_batch_of_one_is_judged_like_any_message() -> None:
    """`reject` and the exceptions `Reject` and `RetryLater` are the same there."""

    def then(order: Order, batch: BatchContext) -> None:
        if order.id == "a":
            batch.reject(order, "first")
        if order.id == "b":
            raise Reject("second")
        if order.id == "c" and not t.dead_letters[2:]:
            raise RetryLater(60)

    runs = Runs(then)
    async with testing.run(runs.shop) as t:
        for name in "abc":
            await t.deliver(Order(name))
        assert [letter.reason for letter in t.dead_letters] == ["first", "second"]
        assert await lines(t) == []
        assert len(runs.given) == 3


async def test_what_no_handler_may_get_is_not_in_a_batch() -> None:
    """One that cannot be decoded and one that has expired are dead letters. The handler never sees them."""
    runs = Runs()
    async with testing.run(runs.shop) as t:
        bad = t.message({"other": 1}, type="Order")
        old = t.message(Order("c"), expirytime="2020-01-01T00:00:00Z")
        await t.deliver_batch([Order("a"), bad, old, Order("d")])
        assert sorted(letter.reason[:20] for letter in t.dead_letters) == ["expired at 2020-01-0", "the body is not a va"]
        assert await lines(t) == [*"ad"]
        assert runs.given == ["ad"]


async def test_a_conflict_of_the_commit_is_found_by_halves() -> None:
    """A row that exists ends the unit of its batch."""
    runs = Runs()
    async with testing.run(runs.shop, raise_failures=False) as t:
        await t.deliver(Order("b"))
        await t.deliver_batch(orders("abc"))
        assert [letter.message.body for letter in t.dead_letters if letter.message] == [b'{"id":"b"}']
        assert await lines(t) == [*"abc"]
        assert sorted(sent.read(Placed).id for sent in t.sent) == [*"abc"]


async def test_other_handlers_of_the_unit_run_in_their_place() -> None:
    """Single messages and a batch are in one unit."""
    runs = Runs()
    seen: list[str] = []

    @runs.shop.handler
    async def take(note: Note) -> None:
        seen.append(f"{note.id} after {len(runs.given)} batches")

    async with testing.run(runs.shop) as t:
        report = await t.deliver_batch([Note("1"), Order("a"), Note("2"), Order("b")])
        assert report.handled == 4
    assert (runs.given, seen) == (["ab"], ["1 after 0 batches", "2 after 1 batches"])


async def test_a_def_handler_takes_batches_too() -> None:
    """With the unit's synchronous session."""
    made = shop()

    @made.handler(batch=True)
    def place(orders: Sequence[Order], session: Session, batch: BatchContext) -> None:
        session.add_all(Line(id=order.id) for order in orders)
        batch[-1].publish(Placed("all"))

    async with testing.run(made) as t:
        await t.deliver_batch(orders("ab"))
        assert (await lines(t), t.sent) == ([*"ab"], [Placed("all")])


async def test_a_connection_and_a_provider_are_for_the_batch() -> None:
    """A provider for one message runs once for a batch."""
    made, opened = shop(), []

    class Desk:
        pass

    @made.provide(scope="message")
    async def desk() -> Desk:
        opened.append(1)
        return Desk()

    @made.handler(batch=True)
    async def place(orders: list[Order], connection: AsyncConnection, desk: Desk) -> None:
        await connection.execute(insert(Line), [{"id": order.id} for order in orders])

    async with testing.run(made) as t:
        await t.deliver_batch(orders("abc"))
        assert (await lines(t), opened) == ([*"abc"], [1])


async def test_middleware_runs_once_for_a_batch() -> None:
    """Where it says that it takes batches."""
    runs, seen = Runs(), []

    @runs.shop.middleware
    async def count(context: Context | BatchContext, call_next: CallNext) -> None:
        seen.append(len(context) if isinstance(context, BatchContext) else 0)
        await call_next()

    @runs.shop.handler
    async def take(note: Note) -> None: ...

    async with testing.run(runs.shop) as t:
        await t.deliver_batch([*orders("abc"), Note("1")])
    assert seen == [3, 0]


async def test_contexts_end_with_the_handler() -> None:
    """All of them."""
    made, kept = shop(), []

    @made.handler(batch=True)
    async def place(orders: list[Order], batch: BatchContext) -> None:
        kept.append(batch)

    async with testing.run(made) as t:
        await t.deliver_batch(orders("ab"))
    for context in kept[0]:
        with pytest.raises(Exception, match="after its handler ended"):
            context.publish(Placed("late"))


async def test_what_is_set_aside_must_be_in_the_batch() -> None:
    """An item by identity, or a context."""
    context, other = object(), object()
    batch = BatchContext([], [context, other, other])
    with pytest.raises(ValueError, match="is not a message of this batch"):
        batch.reject(object(), "no")
    with pytest.raises(ValueError, match="is 2 messages of the batch"):
        batch.retry_later(other, 1)


def test_messages_are_grouped_in_the_order_of_the_first() -> None:
    """Others stay alone and in place."""
    messages = [incoming(type_=type_, id=str(number)) for number, type_ in enumerate("xayaxby")]
    grouped = group(messages, frozenset("xy"))
    assert [[message.id for message in each] for each in grouped] == [["0", "4"], ["1"], ["2", "6"], ["3"], ["5"]]


async def test_attempts_and_failures_belong_to_their_messages() -> None:
    """The port takes them in the order of the messages."""
    made = shop()

    @made.handler(batch=True)
    async def place(orders: list[Order], batch: BatchContext) -> None:
        for order, context in zip(orders, batch, strict=True):
            context.publish(Placed(f"{order.id} in {context._attempt}"))
        if len(orders) == 3:
            batch.reject(batch[2], "third")
            batch.reject(orders[0], "first")

    unit = await MemoryStore(Live(), "shop").begin([])
    handlers = host_of(made).handlers(STILL)
    three = [incoming({"id": name}, id=name) for name in "abc"]
    with pytest.raises(HandlerFailed) as raised:
        await handlers.handle_batch(three, unit.resources, ["A", "B", "C"], [None] * 3)
    assert {each.id: failure.reason for each, failure in raised.value.by_message.items()} == {"a": "first", "c": "third"}
    decisions = await handlers.handle_batch(three[:2], unit.resources, ["A", "B"], [None] * 2)
    assert [decision.effects[0].message.body for decision in decisions] == [b'{"id":"a in A"}', b'{"id":"b in B"}']


def refused(made: Endpoint) -> str:
    """Say why an endpoint cannot start."""
    with pytest.raises(InvalidHandler) as error:
        made.topology()
    return str(error.value)


def test_what_is_wrong_with_a_batch_handler_is_reported_at_start() -> None:
    """All of it at once, with what to write instead."""
    made = shop()

    class Desk:
        pass

    @made.provide(scope="message")
    def desk(context: Context) -> Desk:
        return Desk()

    @made.middleware
    async def log(context: Context, call_next: CallNext) -> None: ...

    @made.handler(batch=True)
    async def one(order: Order) -> None: ...

    @made.handler(batch=True)
    async def two(order: list[Placed], context: Context) -> None: ...

    @made.handler(batch=True)
    async def three(order: list[Note], desk: Desk) -> None: ...

    @made.handler(batch=True, type="Four")
    async def four(order: list[Note]) -> None: ...

    said = refused(made)
    assert "receives the messages of a batch and must be a list of their class, such as list[PlaceOrder], not Order" in said
    assert "two: context: the handler takes several messages, with batch=True: ask for BatchContext, not Context" in said
    assert (
        "three: provider test_what_is_wrong_with_a_batch_handler_is_reported_at_start.desk asks for the Context of one" in said
    )
    assert "four takes batches. Annotate the first parameter with Context | BatchContext" in said


def test_a_list_of_contexts_is_no_annotation_of_a_middleware() -> None:
    """Only a union says that both are expected."""
    made = shop()

    @made.middleware
    async def listed(contexts: list[Context], call_next: CallNext) -> None: ...

    @made.handler
    async def take(note: Note) -> None: ...

    assert "its first two parameters must be the Context and call_next" in refused(made)


def test_all_that_is_wrong_with_a_handler_is_told_at_once() -> None:
    """Its settings and its first parameter, with batches and without."""
    made = shop()

    @made.handler(timeout=-1)
    async def one(order: complex) -> None: ...

    @made.handler(timeout=-1, batch=True)
    async def several(order: list[complex]) -> None: ...

    said = refused(made)
    assert said.count("timeout must be a number of seconds above 0, not -1") == 2
    assert said.count("receives the message and must be") == 2


def test_batches_need_a_sql_store_and_no_entity() -> None:
    """Elsewhere a unit has one message."""
    made = Endpoint("shop", store="memory://batch", transport="memory://batch")

    @made.handler(batch=True, entity=Note, key="id")  # type: ignore[call-overload]
    async def place(orders: list[Order], note: Note) -> None: ...

    said = refused(made)
    assert "batch=True and entity= exclude each other" in said
    assert "batch=True needs a SQL store: on this one, a unit has one message" in said
