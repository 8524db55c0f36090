"""Hosted delivery: a host receives and acknowledges, and the endpoint says what may be acknowledged."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import (
    BatchContext,
    Context,
    ControlMessages,
    Endpoint,
    HostedMessage,
    IdentityField,
    RetryLater,
    SetupError,
    WorkerSettings,
)
from onceonly.adapters.memory.store import Notebook
from onceonly.assembly import open_store, open_transport
from onceonly.endpoint.host import host_of
from onceonly.errors import CommitFailed, InvalidEffect, OutcomeUnknown
from onceonly.hosted.transport import current_call
from onceonly.model.errors import QueueMissing, WrongEventLoop
from onceonly.runtime.observe.observer import Point, PortCall
from tests.endpoint.hosted_harness import (
    FIRST_DELAY,
    ONCE,
    TWICE,
    HostQueue,
    Line,
    Order,
    Placed,
    count,
    declare_listener,
    letters,
    order,
    pending,
    received,
    rows,
    sql_shop,
)


@pytest.fixture
def place() -> str:
    """Name a place in memory that no other test uses."""
    return f"memory://{uuid4().hex}"


@pytest.fixture
def urls(tmp_path: Path) -> tuple[str, str]:
    """Name a store and a queue on SQLite."""
    return f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/queue.db"


def memory_shop(place: str | None, **settings: Any) -> Endpoint:
    """Make an endpoint in memory, without handlers."""
    url = place or f"memory://{uuid4().hex}"
    return Endpoint("shop", store=url, **{"transport": place, "retry": TWICE} | settings)


class Balance(Struct):
    """An entity."""

    id: str = ""
    amount: int = 0


class Failing:
    """Lets one call of a port fail as often as a test wants."""

    def __init__(self, point: Point, error: Exception, times: int = 1, *, after: bool = False) -> None:
        """Fail before the call, or `after` it was made."""
        self.point, self.error, self.left, self.after = point, error, times, after

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Fail if it is this call's turn."""
        fails = call.point is self.point and self.left > 0
        self.left -= fails
        if fails and not self.after:
            raise self.error
        yield
        if fails:
            raise self.error


# Outcomes


async def test_effects_happen_once_however_often_a_host_delivers(urls: tuple[str, str]) -> None:
    """Two copies in one call, and one more later: each may be acknowledged, and nothing is left to do."""
    store, queue = urls
    await declare_listener(queue)
    shop = sql_shop(store, queue)
    async with shop.hosted() as hosted:
        before = asyncio.all_tasks()
        outcomes = await hosted.handle([order("a"), order("b"), order("a")])
        assert not asyncio.all_tasks() - before  # nothing is left that could owe anything
        assert await pending(shop) == 0
        assert [outcome.is_settled for outcome in outcomes] == [True] * 3
        assert {(outcome.retry_after, outcome.is_dead, outcome.reason) for outcome in outcomes} == {(None, False, "")}
        assert (await hosted.handle([order("b", 2)]))[0].is_settled
    assert await rows(store) == ["a", "b"]
    ids = await received(queue)
    assert len(ids) == len(set(ids)) == 2


async def test_no_queue_is_declared(urls: tuple[str, str]) -> None:
    """Nobody would read it, and events would stay there."""
    store, queue = urls
    shop = sql_shop(store, queue)
    async with shop.hosted() as hosted:
        await hosted.handle([order("a")])
        async with open_transport(queue, "shop") as own:
            with pytest.raises(QueueMissing):
                await own.depth("shop")


async def test_failures_are_counted_by_the_hosts_count(place: str) -> None:
    """The second attempt is due at once and the third later, as `Retry` says. Then the dead letter is stored."""
    shop, attempts = memory_shop(place), []

    @shop.handler
    def fail(order: Order) -> None:
        attempts.append(order.id)
        raise ValueError("no stock")

    async with shop.hosted() as hosted:
        first, second, third = [(await hosted.handle([order("a", number)]))[0] for number in (1, 2, 3)]
        assert (first.is_settled, first.retry_after, first.reason) == (False, 0.0, "ValueError: no stock")
        assert not second.is_settled
        assert second.retry_after is not None
        assert FIRST_DELAY - 1 < second.retry_after <= FIRST_DELAY
        assert (third.is_settled, third.is_dead, third.reason) == (True, True, "ValueError: no stock")
        (letter,) = await letters(shop)
        assert (letter.attempts, len(letter.history), len(attempts)) == (3, 3, 3)
        async with open_transport(place, "shop") as own:  # no copy was sent
            with pytest.raises(QueueMissing):
                await own.depth("shop")


async def test_another_process_takes_the_count_from_the_host_alone(place: str) -> None:
    """It remembers nothing, so earlier deliveries are attempts."""
    shop = memory_shop(place)

    @shop.handler
    def fail(_: Order) -> None:
        raise ValueError("no stock")

    async with shop.hosted() as hosted:
        outcome = await hosted.handle_one(b'{"id":"a"}', headers={"ce-type": "Order"}, id="a", deliveries=3)
    assert (outcome.is_settled, outcome.is_dead) == (True, True)


async def test_what_is_not_a_failure_is_not_counted(place: str) -> None:
    """A handler asks for later, twice; the process remembers that these deliveries were no attempts."""
    shop, answers = memory_shop(place), [RetryLater(7), RetryLater(7), ValueError("no stock")]

    @shop.handler
    def later(_: Order) -> None:
        raise answers.pop(0)

    async with shop.hosted() as hosted:
        queue = HostQueue([order("a")])
        for _ in range(3):
            await queue.deliver(hosted)
    assert [round(outcome.retry_after or 0) for outcome in queue.outcomes] == [7, 7, 0]
    assert [outcome.is_dead for outcome in queue.outcomes] == [False] * 3
    assert queue.outcomes[0].reason == "put off, not counted as a failure"
    assert queue.outcomes[2].reason == "ValueError: no stock"


async def test_a_call_that_is_over_keeps_no_message(place: str) -> None:
    """Timers of its handlers keep its context, also after they were cancelled. Bodies may be large."""
    shop, contexts = memory_shop(place), []

    @shop.handler
    async def take(order: Order) -> None:
        contexts.append(copy_context())
        if order.id == "b":
            raise ValueError(order.id)

    async with shop.hosted() as hosted:
        outcomes = await hosted.handle([order("a"), order("b")])
    assert [outcome.is_settled for outcome in outcomes] == [True, False]
    for context in contexts:
        call = context.run(current_call)
        assert not [*call.deliveries, *call.offered, *call.messages, *call.copies]


async def test_what_cannot_be_read_is_a_dead_letter(place: str) -> None:
    """The host acknowledges it; the other message of the call is handled."""
    shop, handled = memory_shop(place), []

    @shop.handler
    def take(order: Order) -> None:
        handled.append(order.id)

    async with shop.hosted() as hosted:
        dead, done = await hosted.handle([HostedMessage(b"{}"), order("a")])
        assert (dead.is_settled, dead.is_dead, dead.reason[:11]) == (True, True, "no identity")
        assert (done.is_settled, done.is_dead, handled) == (True, False, ["a"])
        assert len(await letters(shop)) == 1


async def test_another_body_with_the_same_id_is_a_dead_letter_in_the_same_call(place: str) -> None:
    """It is released, for the store to judge when it comes alone; the call repeats it."""
    shop, handled = memory_shop(place), []

    @shop.handler
    def take(order: Order) -> None:
        handled.append(order.id)

    async with shop.hosted() as hosted:
        done, dead = await hosted.handle([order("a"), order("a", body=b'{"id":"other"}')])
    assert (done.is_settled, done.is_dead, dead.is_settled, dead.is_dead) == (True, False, True, True)
    assert handled == ["a"]


async def test_a_call_repeats_what_a_unit_had_no_time_for(urls: tuple[str, str]) -> None:
    """The budget of a unit is used up by its first message. The host is not asked to deliver the others again."""
    store, queue = urls
    shop = sql_shop(store, queue, worker=WorkerSettings(budget=1e-9))
    async with shop.hosted() as hosted:
        outcomes = await hosted.handle([order(name) for name in "abcde"])
    assert all(outcome.is_settled for outcome in outcomes)
    assert await rows(store) == ["a", "b", "c", "d", "e"]


# Outages and lost answers


@pytest.mark.parametrize("error", [CommitFailed("away"), OutcomeUnknown("away")])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", [Point.BEGIN, Point.COMMIT, Point.DISPATCH, Point.FORGET, Point.DEAD_LETTER])
async def test_nothing_is_settled_before_its_effects_were_taken(
    urls: tuple[str, str], point: Point, error: Exception, *, after: bool
) -> None:
    """Whatever fails, the message comes again, and the redelivery finishes it: a row, a message on the wire, or a letter."""
    store, queue = urls
    await declare_listener(queue)
    shop = sql_shop(store, queue, retry=ONCE)
    bad = order("bad", body=b"{")
    broken = Failing(point, error, after=after)
    host = HostQueue([bad if point is Point.DEAD_LETTER else order("a")])
    async with host_of(shop).hosted(observer=broken) as hosted:
        (first,) = await host.deliver(hosted)
        assert not first.is_settled
        assert first.retry_after is not None
        (second,) = await host.deliver(hosted)
        assert (second.is_settled, second.is_dead) == (True, point is Point.DEAD_LETTER)
        assert await pending(shop) == 0
    assert await rows(store) == ([] if point is Point.DEAD_LETTER else ["a"])
    assert len(set(await received(queue))) == (0 if point is Point.DEAD_LETTER else 1)
    assert len(await letters(shop)) == (1 if point is Point.DEAD_LETTER else 0)


async def test_outages_do_not_count_as_attempts(urls: tuple[str, str]) -> None:
    """Five deliveries while the store was away, then one failure: it is retried, though the host counts six."""
    store, queue = urls
    shop, host = sql_shop(store, queue, retry=TWICE), HostQueue([order("a")])
    async with host_of(shop).hosted(observer=Failing(Point.BEGIN, CommitFailed("away"), 5)) as hosted:
        for _ in range(5):
            await host.deliver(hosted)
        assert host.waiting[0].deliveries == 6
        await host.deliver(hosted)
    assert host.waiting == []
    assert await letters(shop) == []
    assert await rows(store) == ["a"]


# The time of the host


async def test_what_does_not_end_in_time_is_delivered_again(urls: tuple[str, str]) -> None:
    """The handler is cancelled and its work is undone; what was handled before in the call is settled."""
    store, queue = urls
    shop, waiting = Endpoint("shop", store=store, transport=queue, metadata=Line.metadata, retry=ONCE), True
    reached = asyncio.Event()

    @shop.handler
    async def place(order: Order, session: AsyncSession) -> None:
        session.add(Line(what=order.id))
        if waiting and order.id == "slow":
            reached.set()
            await asyncio.Event().wait()

    async with shop.hosted() as hosted:
        done, slow = await hosted.handle([order("fast"), order("slow", 2)], remaining=2.0)
        assert reached.is_set()
        assert (done.is_settled, slow.is_settled, slow.retry_after) == (True, False, 0.0)
        assert slow.reason == "the time of the host was over before it was handled"
        assert await count(store, "onceonly_starts") == 0  # its process did not die of it
        waiting = False
        assert (await hosted.handle([order("slow", 3)], remaining=30.0))[0].is_settled
    assert await rows(store) == ["fast", "slow"]


async def test_a_call_without_time_handles_nothing(place: str) -> None:
    """The host learns at once that it must deliver again."""
    shop, handled = memory_shop(place), []

    @shop.handler
    def take(order: Order) -> None:
        handled.append(order.id)

    async with shop.hosted() as hosted:
        (outcome,) = await hosted.handle([order("a")], remaining=0.0)
    assert (outcome.is_settled, handled) == (False, [])


async def test_a_caller_that_is_cancelled_ends_its_unit(urls: tuple[str, str]) -> None:
    """Its work is undone, no marker of the run is left, and the next delivery handles it."""
    store, queue = urls
    shop, reached, waiting = Endpoint("shop", store=store, transport=queue, metadata=Line.metadata), asyncio.Event(), True

    @shop.handler
    async def place(order: Order, session: AsyncSession) -> None:
        session.add(Line(what=order.id))
        reached.set()
        if waiting:
            await asyncio.Event().wait()

    async with shop.hosted() as hosted:
        call = asyncio.create_task(hosted.handle([order("a", 2)]))
        await reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await rows(store) == []
        assert await count(store, "onceonly_starts") == 0
        waiting = False
        assert (await hosted.handle([order("a", 3)]))[0].is_settled
    assert await rows(store) == ["a"]


async def test_a_handler_that_does_not_end_does_not_hang_the_host(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """It ignores its cancellation. The host learns that the message must come again, and other messages are handled."""
    shop = memory_shop(place, timeout=0.05, worker=WorkerSettings(grace=0.05))
    release, handled = asyncio.Event(), []

    @shop.handler
    async def take(order: Order) -> None:
        while order.id == "stuck" and not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        handled.append(order.id)

    async with shop.hosted() as hosted:
        (stuck,) = await hosted.handle([order("stuck")])
        (done,) = await hosted.handle([order("other")])
        assert (stuck.is_settled, stuck.reason) == (False, "its handler did not end although it was cancelled")
        assert (done.is_settled, handled) == (True, ["other"])
        assert "handler did not end, restart this process" in caplog.text
        release.set()


async def test_the_lease_is_renewed_while_a_handler_works(place: str) -> None:
    """Also by a coroutine function; an error of it ends nothing."""
    shop, renewed, enough = memory_shop(place), [], asyncio.Event()

    @shop.handler
    async def take(_: Order) -> None:
        await enough.wait()

    async def extend(messages: Any) -> None:
        renewed.append([message.receipt for message in messages])
        if len(renewed) == 1:
            raise ConnectionError("the broker is away")
        enough.set()

    async with shop.hosted() as hosted:
        (outcome,) = await hosted.handle([order("a", receipt="r1")], extend=extend, every=0.01)
    assert outcome.is_settled
    assert renewed[:2] == [["r1"], ["r1"]]


async def test_calls_overlap_as_far_as_the_store_allows(urls: tuple[str, str]) -> None:
    """In one event loop: each has its own outcomes."""
    store, queue = urls
    shop = sql_shop(store, queue)
    async with shop.hosted() as hosted:
        outcomes = await asyncio.gather(*[hosted.handle([order(f"{n}-{m}") for m in range(5)]) for n in range(8)])
    assert all(outcome.is_settled for each in outcomes for outcome in each)
    assert len(await rows(store)) == 40


# What opens and closes


async def test_an_endpoint_is_hosted_once_in_a_process(place: str) -> None:
    """A second one is refused, until the first is closed."""
    shop = memory_shop(place)

    @shop.handler
    def take(order: Order) -> None: ...

    async with shop.hosted() as hosted:
        with pytest.raises(SetupError, match="hosted in this process already"):
            async with shop.hosted():
                pass
    with pytest.raises(SetupError, match="is closed"):
        await hosted.handle([order("a")])
    async with shop.hosted() as hosted:
        errors = await asyncio.to_thread(_from_another_loop, hosted)
        assert isinstance(errors, WrongEventLoop)
        assert (await hosted.handle([order("a")]))[0].is_settled


def _from_another_loop(hosted: Any) -> BaseException | None:
    try:
        asyncio.run(hosted.handle([order("a")]))
    except BaseException as error:  # noqa: BLE001 - for the test
        return error
    return None


async def test_the_exit_cuts_off_what_is_in_work(place: str) -> None:
    """A call that is still in work returns that its message must come again."""
    shop, reached = memory_shop(place), asyncio.Event()

    @shop.handler
    async def take(_: Order) -> None:
        reached.set()
        await asyncio.Event().wait()

    async with shop.hosted() as hosted:
        call = asyncio.create_task(hosted.handle([order("a")]))
        await reached.wait()
    assert not (await call)[0].is_settled


async def test_transactions_of_the_process_use_what_is_open(urls: tuple[str, str]) -> None:
    """They open nothing of their own, and send at once: there is no relay here."""
    store, queue = urls
    await declare_listener(queue)
    shop = sql_shop(store, queue)
    async with shop.hosted():
        assert host_of(shop).bound_ports() is not None
        async with shop.transaction(idempotency_key="k") as tx:
            tx.publish(Placed("a"))
        assert await pending(shop) == 0
    assert len(await received(queue)) == 1


async def test_the_process_is_reported(urls: tuple[str, str]) -> None:
    """While it is hosted, with the types that it handles; then its row is gone."""
    store, queue = urls
    shop = sql_shop(store, queue)
    async with shop.hosted(), open_store(shop.settings) as opened:
        assert opened.presence is not None
        async with asyncio.timeout(30):
            while not (found := await opened.presence.read()):  # noqa: ASYNC110 - another task writes it
                await asyncio.sleep(0.01)
        assert [each.report.types for each in found] == [("Order",)]
    async with open_store(shop.settings) as opened:
        assert opened.presence is not None
        assert list(await opened.presence.read()) == []


# What handlers can do


async def test_handlers_run_as_in_a_worker(tmp_path: Path) -> None:
    """A `def` handler in a thread, a batch handler, a provider, and a middleware around them."""
    store = f"sqlite:///{tmp_path}/store.db"
    shop, seen = Endpoint("shop", store=store, metadata=Line.metadata), []

    class Stock:
        """Something that a provider makes."""

    @shop.provide
    def stock() -> Stock:
        return Stock()

    @shop.middleware
    async def around(_: Context | BatchContext, call_next: Any) -> None:
        seen.append("before")
        await call_next()
        seen.append("after")

    @shop.handler(type="Blocking")
    def blocking(_: Order, stock: Stock) -> None:
        assert isinstance(stock, Stock)
        seen.append("main" if threading.current_thread() is threading.main_thread() else "thread")

    @shop.handler(type="Many", batch=True)
    async def many(orders: list[Order], session: AsyncSession) -> None:
        seen.append(len(orders))
        session.add_all([Line(what=each.id) for each in orders])

    def typed(name: str, type_: str) -> HostedMessage:
        return order(name, headers={"ce-id": name, "ce-type": type_})

    async with shop.hosted() as hosted:
        outcomes = await hosted.handle([typed("1", "Blocking")])
        outcomes += await hosted.handle([typed("2", "Many"), typed("3", "Many")])
    assert all(outcome.is_settled for outcome in outcomes)
    assert seen[:3] == ["before", "thread", "after"]
    assert 2 in seen
    assert await rows(store) == ["2", "3"]


async def test_a_failing_thread_is_counted_in_memory(place: str) -> None:
    """The resources of a memory store are injected as well."""
    shop, noted = memory_shop(place), []

    @shop.handler
    async def take(_: Order, notebook: Notebook) -> None:
        noted.append(notebook)

    async with shop.hosted() as hosted:
        assert (await hosted.handle([order("a")]))[0].is_settled
    assert len(noted) == 1


# Reading


async def test_a_message_is_read_as_a_worker_reads_one(place: str) -> None:
    """CloudEvents headers of all prefixes, a structured CloudEvent, the host's id, and headers that are not text."""
    shop, seen = memory_shop(place), []

    @shop.handler
    async def take(_: Order, context: Context) -> None:
        message = context.message
        seen.append((message.source, message.id, message.header("tenant"), message.header("retries"), message.header("gone")))

    structured = b'{"specversion":"1.0","id":"s","source":"web","type":"Order","data":{"id":"1"}}'
    extra = {"tenant": b"t\xc3\xa4", "retries": 3, "gone": None}
    messages = [
        order("1", headers={"ce_id": "kafka", "ce_source": "web", "ce_type": "Order", **extra}),
        order("1", headers=[("cloudEvents:id", "amqp"), ("cloudEvents:source", "web"), ("cloudEvents:type", "Order")]),
        HostedMessage(structured, {"content-type": "application/cloudevents+json"}, id="ignored"),
        HostedMessage(b'{"id":"1"}', id="sqs-id"),
        HostedMessage(b'{"id":"1"}', id="sqs-id", queue="other"),
    ]
    async with shop.hosted() as hosted:
        outcomes = await hosted.handle(messages)
    assert all(outcome.is_settled and not outcome.is_dead for outcome in outcomes), outcomes
    assert seen == [
        ("web", "kafka", "tä", "3", ""),
        ("web", "amqp", "", "", ""),
        ("web", "s", "", "", ""),
        ("shop", "sqs-id", "", "", ""),
        ("other", "sqs-id", "", "", ""),
    ]


async def test_the_identity_rule_of_the_endpoint_comes_before_the_id_of_the_host(place: str) -> None:
    """The host's id changes when a producer repeats a message; the field does not."""
    shop, handled = memory_shop(place, identity=IdentityField("id")), []

    @shop.handler
    def take(order: Order) -> None:
        handled.append(order.id)

    async with shop.hosted() as hosted:
        for number in range(2):
            assert (await hosted.handle_one(b'{"id":"a"}', id=f"host-{number}")).is_settled
    assert handled == ["a"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (HostedMessage("text"), "body must be bytes, not str"),  # type: ignore[arg-type]
        (HostedMessage(b"", {1: "x"}), "name of a header must be text, not int"),  # type: ignore[dict-item]
        (HostedMessage(b"", id=7), "id must be text or None, not int"),  # type: ignore[arg-type]
        (HostedMessage(b"", deliveries=0), "deliveries must be 1 or more, not 0"),
        (HostedMessage(b"", deliveries="2"), "deliveries must be a whole number, not str"),  # type: ignore[arg-type]
        (HostedMessage(b"", queue=7), "queue must be text, not int"),  # type: ignore[arg-type]
        (b"bytes", "handle takes HostedMessage"),
    ],
)
async def test_a_wrong_argument_is_refused_before_anything_is_handled(place: str, wrong: Any, words: str) -> None:
    """The error says what to change, and the other message of the call was not handled."""
    shop, handled = memory_shop(place), []

    @shop.handler
    def take(order: Order) -> None:
        handled.append(order.id)

    async with shop.hosted() as hosted:
        with pytest.raises((TypeError, ValueError), match=words):
            await hosted.handle([order("a"), wrong])
    assert handled == []


async def test_a_message_without_a_type_is_a_dead_letter_that_names_the_header(place: str) -> None:
    """If the endpoint handles several types. The reason says where the type is looked for."""
    shop = memory_shop(place)

    @shop.handler(type="one")
    @shop.handler(type="two")
    def take(_: dict[str, str]) -> None:
        """Do nothing."""

    async with shop.hosted() as hosted:
        outcome = await hosted.handle_one(b"{}", id="a")
    assert outcome.is_dead
    assert outcome.reason == (
        "the message has no type, and endpoint 'shop' takes several: one, two. "
        "Set its type, with CloudEvents in the header ce-type"
    )


async def test_one_message_instead_of_a_list_is_refused_by_name(place: str) -> None:
    """The error names the function that takes one."""
    shop = memory_shop(place)

    @shop.handler
    def take(_: Order) -> None:
        """Do nothing."""

    async with shop.hosted() as hosted:
        with pytest.raises(TypeError, match="use handle_one"):
            await hosted.handle(order("a"))  # type: ignore[arg-type]


# Without a transport


async def test_an_endpoint_without_a_transport_handles_and_cannot_send() -> None:
    """What sends is refused at the call, and a dead letter says what to set."""
    shop, handled = memory_shop(None, retry=ONCE), []

    @shop.handler
    async def take(order: Order, context: Context) -> None:
        handled.append(order.id)
        if order.id == "sends":
            context.publish(Placed("a"))

    async with shop.hosted() as hosted:
        (done,) = await hosted.handle([order("quiet")])
        (dead,) = await hosted.handle([order("sends")])
        async with shop.transaction() as tx:
            with pytest.raises(InvalidEffect, match="has no transport"):
                tx.publish(Placed("a"))
    assert (done.is_settled, dead.is_settled, dead.is_dead, handled) == (True, True, True, ["quiet", "sends"])
    assert "has no transport. Set transport=" in dead.reason


async def test_an_endpoint_without_a_transport_does_not_run() -> None:
    """Nothing could be received, and the error says what to set."""
    shop = memory_shop(None)

    @shop.handler
    def take(order: Order) -> None: ...

    with pytest.raises(SetupError, match=r"no transport: set transport=\S+ to receive"):
        await shop.run(asyncio.Event())
    with pytest.raises(SetupError, match="no transport"):
        async with shop.running():
            pass
    with pytest.raises(SetupError, match="no transport"):
        async with shop.sending():
            pass


# Document stores


async def test_entities_and_transactions_on_documents(place: str) -> None:
    """A transaction needs the endpoint's queue. Its control message is settled as any message if the host receives from it."""
    soon = ControlMessages(delays=(timedelta(seconds=0.2), timedelta(seconds=60)), max_commit=timedelta(seconds=30))
    shop = memory_shop(place, control=soon)

    @shop.handler(entity=Balance, key="id")
    async def deposit(_: Order, balance: Balance) -> None:
        balance.amount += 1

    async with shop.hosted() as hosted:
        outcomes = await hosted.handle([order("1"), order("1"), order("2"), order("3", body=b'{"id":"1"}')])
        assert all(outcome.is_settled for outcome in outcomes)
        with pytest.raises(CommitFailed, match="Check that endpoint 'shop' has a queue"):
            async with shop.transaction() as tx:
                tx.publish(Placed("a"))
        async with open_transport(place, "shop") as queue:
            await queue.declare([shop.topology()])
            async with shop.transaction() as tx:
                tx.publish(Placed("a"))
            (control,) = await queue.receive(10, 30.0)
        (outcome,) = await hosted.handle([HostedMessage(control.body, control.headers)])
        assert (outcome.is_settled, outcome.is_dead) == (True, False)
