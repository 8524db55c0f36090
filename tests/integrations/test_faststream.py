"""The middleware for FastStream, with its TestBroker: what is committed, captured, refused and settled."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from uuid import uuid4

import pytest
from fast_depends.pydantic import PydanticSerializer
from faststream import AckPolicy, BaseMiddleware, Context, Depends, ExceptionMiddleware, FastStream
from faststream._internal.parser import DefaultCodec
from faststream.confluent.response import KafkaPublishCommand as ConfluentPublishCommand
from faststream.exceptions import AckMessage, NackMessage
from faststream.kafka import KafkaBroker, KafkaPublishMessage, TopicPartition
from faststream.kafka.response import KafkaPublishCommand
from faststream.message import decode_message
from faststream.nats import JStream, NatsBroker, PullSub, TestNatsBroker
from faststream.nats.response import NatsPublishCommand
from faststream.rabbit import RabbitBroker, RabbitExchange, RabbitQueue, RabbitResponse, RabbitRouter, TestRabbitBroker
from faststream.rabbit.parser import AioPikaParser
from faststream.rabbit.response import RabbitPublishCommand
from faststream.redis import ListSub, RedisBroker, StreamSub
from faststream.redis.parser import BinaryMessageFormatV1
from faststream.redis.response import RedisPublishCommand
from faststream.response.publish_type import PublishType
from pydantic import BaseModel
from sqlalchemy import MetaData, String, func, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly import Endpoint, IdentityField, IdentityHeader, SetupError
from onceonly.endpoint import other_writes
from onceonly.errors import CommitRefused, InvalidEffect, InvalidKey, KeyReused, PermanentFailure, TransactionMisused
from onceonly.integrations.faststream import ExactlyOnceMiddleware, Session, Tx, lifespan, session, transaction
from onceonly.integrations.faststream_messages import capture, reply_of, stored_reply
from onceonly.integrations.faststream_subscribers import key_of, problems_of, scope_of, set_problems
from onceonly.model.destination import Exchange, Queue, Stream, Subject, Topic
from tests.fuzzing import TEXTS, Inputs
from tests.log_events import event_in, events

NACK = AckPolicy.NACK_ON_ERROR
OTHER_WRITE = "handler writes outside of its transaction"
SERIALIZER: Any = PydanticSerializer()
PRODUCER = SimpleNamespace(codec=DefaultCodec(), serializer=SERIALIZER)


class Base(DeclarativeBase):
    """The application's tables."""

    metadata = MetaData()


class Order(Base):
    """One row for each time an order was placed."""

    __tablename__ = "faststream_orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(String(80))


class PlaceOrder(BaseModel):
    """What a client sends."""

    order_id: str


class OrderPlaced(BaseModel):
    """What is announced."""

    order_id: str


class Settled(BaseMiddleware[Any, Any]):
    """Notes how messages were settled: it is outside of the middleware under test, and its exit comes after."""

    statuses: list[str | None] = []  # noqa: RUF012 - emptied for each test

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        self.message = msg
        return await call_next(msg)

    async def after_processed(self, *_: object) -> bool | None:
        if hasattr(self, "message"):
            self.statuses.append(self.message.committed)
        return False


@pytest.fixture(autouse=True)
def _unsettled() -> None:
    Settled.statuses.clear()


@pytest.fixture
def shop(tmp_path: Path) -> Endpoint:
    """Return an endpoint without handlers in files."""
    url = f"sqlite:///{tmp_path}"
    return Endpoint("shop", store=f"{url}/shop.db", transport=f"{url}/queue.db", metadata=Base.metadata)


@dataclass
class Application:
    """A broker with one subscriber and its publisher."""

    shop: Endpoint
    broker: RabbitBroker
    placed: Any
    handled: list[str] = field(default_factory=list)
    then: Callable[[], Any] = lambda: None

    async def rows(self) -> int:
        """Count the orders."""
        async with self.shop.transaction() as tx:
            return int((await tx.sql.execute(select(func.count()).select_from(Order))).scalar_one())


def application(shop: Endpoint, *, outside: tuple[Any, ...] = (), **options: Any) -> Application:
    """Return the application that most tests use."""
    options = {"key": IdentityField("order_id"), "retry_delay": 0} | options
    broker = RabbitBroker(middlewares=[*outside, Settled, ExactlyOnceMiddleware(shop, **options)])
    app = Application(shop, broker, broker.publisher("order-placed"))

    @broker.subscriber("orders", ack_policy=NACK)
    @app.placed
    async def place_order(order: PlaceOrder, session: Session) -> OrderPlaced:
        session.add(Order(order_id=order.order_id))
        app.handled.append(order.order_id)
        result = app.then()
        if result is not None:
            await result
        return OrderPlaced(order_id=order.order_id)

    return app


async def test_a_subscriber_that_writes_through_an_engine_of_its_own_is_named_once(
    shop: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The usual mistake when an application adopts the middleware. Reads are not named, nor is what others write."""
    other_writes._logged.clear()
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/other.db")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    app = application(shop)

    async def read() -> None:
        async with AsyncSession(engine) as own:
            await own.execute(select(Order))

    async def write() -> None:
        async with AsyncSession(engine) as own:
            own.add(Order(order_id="own"))
            await own.commit()

    async with TestRabbitBroker(app.broker):
        app.then = read
        await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        await write()
        assert OTHER_WRITE not in events(caplog.records)
        app.then = write
        await app.broker.publish(PlaceOrder(order_id="b"), "orders")
        await app.broker.publish(PlaceOrder(order_id="c"), "orders")
    await engine.dispose()
    (found,) = [vars(record) for record in caplog.records if event_in(record) == OTHER_WRITE]
    assert (found["endpoint"], found["used"]) == ("shop", f"SQLAlchemy connection to sqlite:///{tmp_path}/other.db")
    assert found["handler"].endswith("application.<locals>.place_order")


async def test_rows_and_messages_are_committed_together_and_the_message_is_acknowledged(shop: Endpoint) -> None:
    """The publisher's mock is called, as FastStream's own tests expect."""
    app = application(shop)
    async with TestRabbitBroker(app.broker):
        await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        app.placed.mock.assert_called_once_with({"order_id": "a"})
    assert await app.rows() == 1


async def test_a_copy_is_acknowledged_and_neither_handled_nor_published(shop: Endpoint) -> None:
    """A publisher would otherwise publish the None of a handler that did not run."""
    app = application(shop)
    async with TestRabbitBroker(app.broker):
        for _ in range(3):
            await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        app.placed.mock.assert_called_once_with({"order_id": "a"})
    assert (await app.rows(), app.handled) == (1, ["a"])
    assert "NACKED" not in Settled.statuses


async def test_a_failed_handler_changes_nothing_and_sends_nothing_until_it_succeeds(shop: Endpoint) -> None:
    """Its row is rolled back and its own publish is not sent."""
    app = application(shop)

    async def fail() -> None:
        await app.broker.publish({"order_id": "a"}, "order-placed")
        raise ValueError("not today")

    app.then = fail
    async with TestRabbitBroker(app.broker):
        with pytest.raises(ValueError, match="not today"):
            await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        app.placed.mock.assert_not_called()
        assert await app.rows() == 0
        app.then = lambda: None
        await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        app.placed.mock.assert_called_once_with({"order_id": "a"})
    assert await app.rows() == 1


async def test_session_and_transaction_are_injected_by_context_and_by_depends(shop: Endpoint) -> None:
    """All ways give the same objects, also in dependencies."""
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop, key=IdentityField("order_id"))])
    seen: list[Any] = []

    async def repository(own: Annotated[AsyncSession, Depends(session)]) -> AsyncSession:
        return own

    @broker.subscriber("orders", ack_policy=NACK)
    async def place_order(  # noqa: PLR0917 - all ways
        _: PlaceOrder,
        tx: Tx,
        own: Session,
        session: AsyncSession = Context(),  # noqa: B008 - as FastStream documents it
        transaction: Any = Context(),  # noqa: B008
        found: AsyncSession = Depends(repository),  # noqa: B008
    ) -> None:
        seen.append((own is session is found is tx.sql, transaction is tx))

    async with TestRabbitBroker(broker):
        await broker.publish(PlaceOrder(order_id="a"), "orders")
    assert seen == [(True, True)]


async def test_no_transaction_is_there_outside_of_a_subscriber() -> None:
    """The dependencies say where they belong."""
    with pytest.raises(TransactionMisused, match="subscriber of a broker"):
        await transaction()
    with pytest.raises(TransactionMisused, match="subscriber of a broker"):
        await session()


async def test_what_a_handler_publishes_by_the_broker_is_sent_after_the_commit(shop: Endpoint) -> None:
    """`broker.publish` makes an instance of the middleware of its own, which finds the transaction."""
    app = application(shop)
    order: list[str] = []

    async def audit() -> None:
        await app.broker.publish({"order_id": "x"}, "audit")
        order.append("handler ends")

    app.then = audit

    @app.broker.subscriber("audit", ack_policy=NACK)
    async def note(_: dict[str, str], session: Session) -> None:
        rows = (await session.execute(select(func.count()).select_from(Order))).scalar_one()
        order.append(f"audited with {rows} row")

    async with TestRabbitBroker(app.broker):
        await app.broker.publish(PlaceOrder(order_id="a"), "orders")
    assert order == ["handler ends", "audited with 1 row"]


async def test_a_publish_of_another_task_fails_the_message_whoever_caught_the_error(shop: Endpoint) -> None:
    """Nobody may look at the task's result: the message would be committed without what the task publishes."""
    app = application(shop)

    async def publish() -> None:
        await asyncio.gather(app.broker.publish({"order_id": "x"}, "order-placed"), return_exceptions=True)

    app.then = publish
    async with TestRabbitBroker(app.broker):
        with pytest.raises(TransactionMisused, match="only in the task that opened it"):
            await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        app.placed.mock.assert_not_called()
    assert await app.rows() == 0


@pytest.mark.parametrize("waits", [False, True])
async def test_a_task_that_a_handler_left_publishes_after_the_commit(shop: Endpoint, *, waits: bool) -> None:
    """Such a task inherits the handler's context. Without waiting, it would publish while the transaction is committed."""
    app = application(shop)
    tasks: list[asyncio.Task[Any]] = []
    is_over = asyncio.Event()

    async def publish_later() -> None:
        if waits:
            await is_over.wait()
        await app.broker.publish({"order_id": "late"}, "order-placed")

    app.then = lambda: tasks.append(asyncio.create_task(publish_later()))
    async with TestRabbitBroker(app.broker):
        await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        is_over.set()
        await tasks[0]
        assert [call.args for call in app.placed.mock.call_args_list] == [({"order_id": "a"},), ({"order_id": "late"},)]


async def test_a_task_that_a_failed_handler_left_publishes_nothing_while_it_is_undone(shop: Endpoint) -> None:
    """The message comes again, and so does the task."""
    app = application(shop)
    tasks: list[asyncio.Task[Any]] = []

    def leave() -> None:
        tasks.append(asyncio.create_task(app.broker.publish({"order_id": "late"}, "order-placed")))
        raise ValueError("not today")

    app.then = leave
    async with TestRabbitBroker(app.broker):
        with pytest.raises(ValueError, match="not today"):
            await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        with pytest.raises(TransactionMisused, match="was undone"):
            await tasks[0]
        app.placed.mock.assert_not_called()


class InAnotherTask(BaseMiddleware[Any, Any]):
    """What `asyncio.wait_for` does on Python 3.11."""

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        return await asyncio.create_task(call_next(msg))


async def test_a_middleware_that_runs_the_handler_in_another_task_is_refused(shop: Endpoint) -> None:
    """Its publishers would publish before the commit, and the transaction would stay open."""
    app = application(shop, outside=(InAnotherTask,))
    async with TestRabbitBroker(app.broker):
        with pytest.raises(TransactionMisused, match=r"asyncio.timeout instead of asyncio.wait_for"):
            await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        app.placed.mock.assert_not_called()
    assert (app.handled, Settled.statuses) == ([], ["NACKED"])


async def test_a_subscriber_with_two_of_it_is_refused(shop: Endpoint) -> None:
    """The second transaction would wait for the first one's key."""
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop)])
    router = RabbitRouter(middlewares=[ExactlyOnceMiddleware(shop, key=IdentityHeader("x-order"), retry_delay=0)])

    @router.subscriber("orders", ack_policy=NACK)
    async def place_order(_: PlaceOrder) -> None: ...

    broker.include_router(router)
    with pytest.raises(SetupError, match="place_order has 2 ExactlyOnceMiddlewares"):
        async with FastStream(broker, lifespan=lifespan(shop)).lifespan_context():
            pass


async def test_what_cannot_be_captured_is_refused_under_the_test_broker_as_well(shop: Endpoint) -> None:
    """Otherwise an application's own tests would pass, and its messages fail."""
    app = application(shop)
    app.then = lambda: app.broker.publish({"order_id": "a"}, "order-placed", priority=3)
    async with TestRabbitBroker(app.broker):
        with pytest.raises(InvalidEffect, match="priority"):
            await app.broker.publish(PlaceOrder(order_id="a"), "orders")


async def held(monkeypatch: pytest.MonkeyPatch, do: Callable[[], Any]) -> list[float]:
    """Return for how long messages were held."""
    naps: list[float] = []
    sleep = asyncio.sleep

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        await sleep(0)

    with monkeypatch.context() as patch, suppress(Exception):
        patch.setattr("onceonly.integrations.faststream.asyncio.sleep", nap)
        await do()
    return [each for each in naps if each]


async def test_a_message_that_reaches_no_handler_is_held_before_it_is_returned(
    shop: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No filter is for it, or it cannot be parsed. RabbitMQ would deliver it hundreds of times a second."""
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop, retry_delay=7)])

    @broker.subscriber("orders", ack_policy=NACK)(filter=lambda message: message.headers["kind"] == "order")
    async def place_order(_: PlaceOrder) -> None: ...

    async with TestRabbitBroker(broker):
        assert await held(monkeypatch, lambda: broker.publish({}, "orders", headers={"kind": "other"})) == [7]
        assert await held(monkeypatch, lambda: broker.publish({}, "orders")) == [7]


@pytest.mark.parametrize(("ending", "naps"), [(NackMessage(), [7]), (NackMessage(requeue=False), []), (AckMessage(), [])])
async def test_a_message_that_a_handler_returns_is_held_unless_it_says_how(
    shop: Endpoint, monkeypatch: pytest.MonkeyPatch, ending: Exception, naps: list[float]
) -> None:
    """NackMessage without options is a failure like any other."""
    app = application(shop, retry_delay=7)

    async def end() -> None:
        raise ending

    app.then = end
    async with TestRabbitBroker(app.broker):
        assert await held(monkeypatch, lambda: app.broker.publish(PlaceOrder(order_id="a"), "orders")) == naps


@pytest.mark.parametrize("body", [{"order_id": "a"}, {}])
async def test_a_message_that_can_never_be_handled_is_a_dead_letter_if_that_is_the_policy(
    shop: Endpoint, body: dict[str, str]
) -> None:
    """A store that refuses its rows, or a key that is missing: it would be delivered without end."""
    broker = RabbitBroker(middlewares=[Settled, ExactlyOnceMiddleware(shop, key=IdentityField("order_id"), retry_delay=0)])
    dead = RabbitQueue("orders", arguments={"x-dead-letter-exchange": "dead"})

    @broker.subscriber(dead)
    async def place_order(_: dict[str, str], session: Session) -> None:
        session.add(Order(order_id=None))

    async with TestRabbitBroker(broker):
        with suppress(InvalidKey, CommitRefused):
            await broker.publish(body, dead)
    assert Settled.statuses == ["REJECTED"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("place", ["router", "application"])
async def test_it_works_with_a_router_of_fastapi(shop: Endpoint, place: str) -> None:
    """FastAPI calls a lifespan with an application that has no brokers, and injects by its own `Depends`."""
    fastapi: Any = import_module("fastapi")
    kind: Any = import_module("faststream.rabbit.fastapi").RabbitRouter
    ends: dict[str, Any] = {"lifespan": lifespan(shop)}
    router = kind(
        middlewares=[ExactlyOnceMiddleware(shop, key=IdentityField("order_id"))], **(ends if place == "router" else {})
    )
    app = fastapi.FastAPI(**(ends if place == "application" else {}))
    placed = router.publisher("order-placed")

    @router.subscriber("orders", ack_policy=NACK)  # type: ignore[untyped-decorator]
    @placed  # type: ignore[untyped-decorator]
    async def place_order(order: PlaceOrder, own: AsyncSession = fastapi.Depends(session)) -> OrderPlaced:  # noqa: B008
        own.add(Order(order_id=order.order_id))
        return OrderPlaced(order_id=order.order_id)

    app.include_router(router)
    async with TestRabbitBroker(router.broker), app.router.lifespan_context(app):
        for _ in range(2):
            await router.broker.publish(PlaceOrder(order_id="a"), "orders")
        placed.mock.assert_called_once_with({"order_id": "a"})
    assert await Application(shop, router.broker, placed).rows() == 1


async def test_two_subscribers_with_one_key_both_handle_their_message(shop: Endpoint) -> None:
    """Keys are those of a queue: the same order is one message for each."""
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop, key=IdentityField("order_id"))])
    handled: list[str] = []

    @broker.subscriber("billing", ack_policy=NACK)
    async def bill(_: PlaceOrder) -> None:
        handled.append("bill")

    @broker.subscriber("shipping", ack_policy=NACK)
    async def ship(_: PlaceOrder) -> None:
        handled.append("ship")

    async with TestRabbitBroker(broker):
        for queue in ("billing", "shipping", "billing"):
            await broker.publish(PlaceOrder(order_id="a"), queue)
    assert handled == ["bill", "ship"]


async def test_messages_with_one_key_that_filters_give_to_two_handlers_are_both_handled(shop: Endpoint) -> None:
    """To place an order and to cancel it have the same body here: the second would be lost as a copy of the first."""
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop, key=IdentityField("order_id"))])
    orders = broker.subscriber("orders", ack_policy=NACK)
    handled: list[str] = []

    @orders(filter=lambda message: message.headers["kind"] == "place")
    async def place_order(_: PlaceOrder) -> None:
        handled.append("place")

    @orders
    async def cancel_order(_: PlaceOrder) -> None:
        handled.append("cancel")

    async with TestRabbitBroker(broker):
        for kind in ("place", "cancel", "place", "cancel"):
            await broker.publish(PlaceOrder(order_id="a"), "orders", headers={"kind": kind})
    assert handled == ["place", "cancel"]


def test_handlers_of_one_subscriber_need_names_of_their_own() -> None:
    """Their keys would be the same."""
    orders = RabbitBroker().subscriber("orders", ack_policy=NACK)
    for kind in ("place", "cancel"):

        @orders(filter=lambda message, kind=kind: message.headers["kind"] == kind)
        async def handle(_: PlaceOrder) -> None: ...

    assert "Give each its own name" in next(problems_of(orders))


async def test_a_router_has_its_own_rule_and_its_prefix_is_part_of_the_keys_scope(shop: Endpoint) -> None:
    """A middleware of a router is for its subscribers only."""
    broker = RabbitBroker()
    router = RabbitRouter(prefix="eu-", middlewares=[ExactlyOnceMiddleware(shop, key=IdentityHeader("x-order"))])
    handled: list[str] = []

    @router.subscriber("orders", ack_policy=NACK)
    async def place_order(order: PlaceOrder) -> None:
        handled.append(order.order_id)

    broker.include_router(router)
    assert [scope_of(each) for each in broker.subscribers] == ["rabbit:eu-orders"]
    async with TestRabbitBroker(broker):
        for _ in range(2):
            await broker.publish(PlaceOrder(order_id="a"), "eu-orders", headers={"X-Order": "1"})
    assert handled == ["a"]


async def test_a_reply_is_sent_after_the_commit_and_again_for_a_copy(shop: Endpoint) -> None:
    """The stored reply answers a request that is repeated."""
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop)])
    handled: list[str] = []
    replies: list[dict[str, int]] = []

    @broker.subscriber("orders", ack_policy=NACK)
    async def place_order(order: PlaceOrder) -> dict[str, int]:
        handled.append(order.order_id)
        return {"number": len(handled)}

    @broker.subscriber("replies", ack_policy=NACK)
    async def note(reply: dict[str, int]) -> None:
        replies.append(reply)

    async with TestRabbitBroker(broker):
        for _ in range(2):
            await broker.publish(PlaceOrder(order_id="a"), "orders", reply_to="replies", message_id="1")
    assert (handled, replies) == (["a"], [{"number": 1}, {"number": 1}])


class Packed:
    """A codec of an application: bodies that are neither JSON nor text."""

    async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
        """Put a byte before it that is not UTF-8."""
        if isinstance(msg, bytes):
            return msg, None
        return b"\xff" + repr(msg).encode(), "application/x-packed"

    async def decode(self, msg: Any) -> Any:
        """Return it as it came."""
        return msg.body


async def test_a_copy_is_replied_to_with_the_same_bytes_and_content_type(shop: Endpoint) -> None:
    """Of a codec that is neither JSON nor text, and of a response that names its type."""
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop, retry_delay=0)], codec=Packed())
    replies: list[tuple[bytes, str | None]] = []

    @broker.subscriber("orders", ack_policy=NACK)
    async def place_order(body: bytes) -> Any:
        return {"number": 1} if b"packed" in body else RabbitResponse(b"a,b", content_type="text/csv")

    @broker.subscriber("replies", ack_policy=NACK)
    async def note(_: bytes, message: Any = Context()) -> None:  # noqa: B008 - as FastStream documents it
        replies.append((message.body, message.content_type))

    async with TestRabbitBroker(broker):
        for body in ("packed", "csv", "packed", "csv"):
            await broker.publish(body, "orders", reply_to="replies", message_id=body, correlation_id=str(uuid4()))
    assert replies == [(b"\xff{'number': 1}", "application/x-packed"), (b"a,b", "text/csv")] * 2


async def test_a_handler_cannot_settle_its_message_before_the_commit(shop: Endpoint) -> None:
    """An ack inside the handler would lose the message if the commit fails."""
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop, key=IdentityField("order_id"), retry_delay=0)])

    @broker.subscriber("orders", ack_policy=NACK)
    async def place_order(_: PlaceOrder, message: Any = Context()) -> None:  # noqa: B008
        await message.ack()

    async with TestRabbitBroker(broker):
        with pytest.raises(TransactionMisused, match="after its transaction is committed"):
            await broker.publish(PlaceOrder(order_id="a"), "orders")


@pytest.mark.parametrize("ending", [NackMessage, AckMessage])
async def test_what_a_handler_decides_about_its_message_undoes_its_work(shop: Endpoint, ending: type[Exception]) -> None:
    """The exceptions of FastStream settle the message, and nothing is committed."""
    app = application(shop)

    async def end() -> None:
        raise ending

    app.then = end
    async with TestRabbitBroker(app.broker):
        await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        app.placed.mock.assert_not_called()
    assert await app.rows() == 0


async def test_an_error_that_an_outer_middleware_catches_commits_and_publishes_nothing(shop: Endpoint) -> None:
    """What it would publish instead is not sent: the transaction was undone."""
    outside = ExceptionMiddleware(publish_handlers={ValueError: lambda _: {"order_id": "instead"}})
    app = application(shop, outside=(outside,))

    async def fail() -> None:
        raise ValueError("not today")

    app.then = fail
    async with TestRabbitBroker(app.broker):
        with pytest.raises(ValueError, match="not today"):
            await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        app.placed.mock.assert_not_called()
    assert await app.rows() == 0


async def test_a_key_with_another_body_is_returned_to_the_broker_whatever_catches_the_error(shop: Endpoint) -> None:
    """A message that this library could not decide about is never acknowledged."""
    outside = ExceptionMiddleware(handlers={Exception: lambda _: None})
    app = application(shop, outside=(outside,), key=lambda _: "always")
    async with TestRabbitBroker(app.broker):
        await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        Settled.statuses.clear()
        await app.broker.publish(PlaceOrder(order_id="b"), "orders")
    assert (app.handled, Settled.statuses) == (["a"], ["NACKED"])


async def test_a_fingerprint_replaces_the_body(shop: Endpoint) -> None:
    """Copies may differ in what it leaves out."""
    app = application(shop, key=lambda _: "always", fingerprint=lambda _: "equal")
    async with TestRabbitBroker(app.broker):
        await app.broker.publish(PlaceOrder(order_id="a"), "orders")
        await app.broker.publish(PlaceOrder(order_id="b"), "orders")
    assert app.handled == ["a"]


async def test_without_a_key_it_is_reused_only_with_the_same_id(shop: Endpoint) -> None:
    """The default key is the message's id."""
    app = application(shop, key=None)
    async with TestRabbitBroker(app.broker):
        for id_ in ("1", "2", "1"):
            await app.broker.publish(PlaceOrder(order_id="a"), "orders", message_id=id_)
        with pytest.raises(KeyReused):
            await app.broker.publish(PlaceOrder(order_id="b"), "orders", message_id="1")
    assert app.handled == ["a", "a"]


async def test_it_works_with_nats(shop: Endpoint) -> None:
    """Another broker of FastStream."""
    broker = NatsBroker(middlewares=[ExactlyOnceMiddleware(shop, key=IdentityField("order_id"))])
    placed = broker.publisher("placed")
    handled: list[str] = []

    @broker.subscriber("orders", stream=JStream("shop"), durable="orders", pull_sub=True, ack_policy=NACK)
    @placed
    async def place_order(order: PlaceOrder) -> OrderPlaced:
        handled.append(order.order_id)
        return OrderPlaced(order_id=order.order_id)

    async with TestNatsBroker(broker):
        for _ in range(2):
            await broker.publish(PlaceOrder(order_id="a"), "orders", stream="shop")
        placed.mock.assert_called_once_with({"order_id": "a"})
    assert handled == ["a"]


async def test_lifespan_refuses_a_subscriber_that_loses_messages_and_names_it(shop: Endpoint) -> None:
    """FastStream's default rejects a message whose handler raises."""
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop)])

    @broker.subscriber("orders")
    async def place_order(order: PlaceOrder) -> None: ...

    app = FastStream(broker, lifespan=lifespan(shop))
    with pytest.raises(
        SetupError, match=r"place_order: AckPolicy.REJECT_ON_ERROR loses .* set ack_policy=AckPolicy.NACK_ON_ERROR"
    ):
        async with app.lifespan_context():
            pass


async def test_the_first_message_of_such_a_subscriber_is_refused_without_lifespan(shop: Endpoint) -> None:
    """It is not handled, and goes back to the broker."""
    broker = RabbitBroker(middlewares=[Settled, ExactlyOnceMiddleware(shop, retry_delay=0)])

    @broker.subscriber("orders")
    async def place_order(_: PlaceOrder) -> None:
        raise AssertionError("it is not called")

    async with TestRabbitBroker(broker):
        with pytest.raises(SetupError, match="REJECT_ON_ERROR"):
            await broker.publish(PlaceOrder(order_id="a"), "orders")
    assert Settled.statuses == ["NACKED"]


async def test_lifespan_sends_in_the_background_of_the_application(shop: Endpoint) -> None:
    """The relay of the endpoint runs while the application does."""
    app = FastStream(application(shop).broker, lifespan=lifespan(shop))
    audit = Endpoint("audit", store="memory://audit", transport=shop.settings.transport)
    heard = asyncio.Event()

    @audit.handler(type="OrderPlaced")
    async def note(placed: OrderPlaced) -> None:
        assert placed.order_id == "a"
        heard.set()

    async with audit.running(), app.lifespan_context(), shop.transaction() as tx:
        tx.send({"order_id": "a"}, to="audit", type="OrderPlaced")
    async with audit.running(), app.lifespan_context():
        await heard.wait()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "rabbit: default": (lambda: RabbitBroker().subscriber("q"), "REJECT_ON_ERROR loses"),
    "rabbit: ack first": (lambda: RabbitBroker().subscriber("q", ack_policy=AckPolicy.ACK_FIRST), "ACK_FIRST loses"),
    "rabbit: ack": (lambda: RabbitBroker().subscriber("q", ack_policy=AckPolicy.ACK), "AckPolicy.ACK loses"),
    "rabbit: manual": (lambda: RabbitBroker().subscriber("q", ack_policy=AckPolicy.MANUAL), "before the commit, or never"),
    "nats: core": (lambda: NatsBroker().subscriber("s"), "Set stream="),
    "nats: default": (lambda: NatsBroker().subscriber("s", stream="t"), "REJECT_ON_ERROR loses"),
    "nats: batch": (
        lambda: NatsBroker().subscriber("s", stream="t", pull_sub=PullSub(batch=True), ack_policy=NACK),
        "takes batches",
    ),
    "nats: key value": (lambda: NatsBroker().subscriber("s", kv_watch="bucket"), "Set stream="),
    "redis: channel": (lambda: RedisBroker().subscriber("c"), "Use a stream"),
    "redis: list": (lambda: RedisBroker().subscriber(list="l"), "Use a stream"),
    "redis: list of batches": (lambda: RedisBroker().subscriber(list=ListSub("l", batch=True)), "takes batches"),
    "redis: no group": (lambda: RedisBroker().subscriber(stream="s"), "Use a stream"),
    "redis: default": (
        lambda: RedisBroker().subscriber(stream=StreamSub("s", group="g", consumer="c")),
        "REJECT_ON_ERROR loses",
    ),
    "kafka: default": (lambda: KafkaBroker().subscriber("t", group_id="g"), "ACK_FIRST loses"),
    "kafka: no group": (lambda: KafkaBroker().subscriber("t", ack_policy=NACK), "Set group_id="),
    "kafka: batch": (lambda: KafkaBroker().subscriber("t", group_id="g", batch=True, ack_policy=NACK), "takes batches"),
}
ACCEPTED: dict[str, Callable[[], Any]] = {
    "rabbit": lambda: RabbitBroker().subscriber("q", ack_policy=NACK),
    "rabbit: policy of the broker": lambda: RabbitBroker(ack_policy=NACK).subscriber("q"),
    "rabbit: dead letters": lambda: RabbitBroker().subscriber(RabbitQueue("q", arguments={"x-dead-letter-exchange": "dead"})),
    "nats": lambda: NatsBroker().subscriber("s", stream="t", ack_policy=NACK),
    "nats: pull": lambda: NatsBroker().subscriber("s", stream="t", durable="d", pull_sub=True, ack_policy=NACK),
    "redis": lambda: RedisBroker().subscriber(stream=StreamSub("s", group="g", consumer="c"), ack_policy=NACK),
    "kafka": lambda: KafkaBroker().subscriber("t", group_id="g", ack_policy=NACK),
}


@pytest.mark.parametrize("subscriber", REFUSED)
@pytest.mark.filterwarnings("ignore")  # FastStream warns of some of them as well
def test_a_subscriber_that_can_lose_messages_is_refused_with_the_reason(subscriber: str) -> None:
    """Each names what to set."""
    make, reason = REFUSED[subscriber]
    found = list(problems_of(make()))
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize("subscriber", ACCEPTED)
def test_a_subscriber_whose_messages_come_again_is_accepted(subscriber: str) -> None:
    """So is one that rejects to a dead letter exchange."""
    assert not [*problems_of(ACCEPTED[subscriber]())]


def test_a_redis_group_needs_a_subscriber_that_claims_what_a_dead_consumer_left() -> None:
    """Redis itself never delivers a pending message to another consumer."""
    broker = RedisBroker()
    first = broker.subscriber(stream=StreamSub("s", group="g", consumer="c"), ack_policy=NACK)
    assert "stay pending" in next(set_problems([first]))
    claiming = broker.subscriber(stream=StreamSub("s", group="g", consumer="c", min_idle_time=5000), ack_policy=NACK)
    assert not [*set_problems([first, claiming])]
    assert scope_of(first) == scope_of(claiming)


def test_two_nats_subscribers_that_each_get_all_messages_need_names() -> None:
    """Otherwise the second to get a message would take it for a copy."""
    broker = NatsBroker()
    unnamed = [broker.subscriber("s", stream="t", ack_policy=NACK) for _ in range(2)]
    assert "durable=" in next(set_problems(unnamed))
    named = [broker.subscriber("s", stream="t", durable=name, pull_sub=True, ack_policy=NACK) for name in ("a", "b")]
    assert not [*set_problems(named)]
    assert scope_of(named[0]) != scope_of(named[1])


def test_kafka_subscribers_of_one_group_have_keys_of_their_own() -> None:
    """The id of a message is its place in a partition, so two topics have the same ids."""
    broker = KafkaBroker()
    topics: tuple[Any, ...] = (("a",), ("a", "b"), ("b",))
    scopes = [scope_of(broker.subscriber(*each, group_id="g", ack_policy=NACK)) for each in topics]
    scopes.append(scope_of(broker.subscriber(pattern="o.*", group_id="g", ack_policy=NACK)))
    scopes.append(scope_of(broker.subscriber(partitions=[TopicPartition("c", 0)], group_id="g", ack_policy=NACK)))
    assert scopes == ["kafka:g:a", "kafka:g:a,b", "kafka:g:b", "kafka:g:o.*", "kafka:g:c"]


def message(headers: dict[str, Any] | None = None, body: bytes = b"{}", **raw: Any) -> Any:
    """Return what a rule reads of a message of RabbitMQ."""
    kind = type("RabbitMessage", (), {"__module__": "faststream.rabbit.message"})
    found: Any = kind()
    found.headers, found.body, found.raw_message = headers or {}, body, SimpleNamespace(**{"message_id": None} | raw)
    return found


def test_a_key_is_a_header_a_field_or_what_a_function_returns() -> None:
    """Headers may be numbers, and their names are case-insensitive."""
    assert key_of(message({"X-Order": 7}), IdentityHeader("x-order"), "q") == "7"
    assert key_of(message(body=b'{"order": {"id": "a"}}'), IdentityField("order.id"), "q") == "a"
    assert key_of(message(body=b"a"), lambda found: found.body.decode(), "q") == "a"


def test_without_a_rule_the_key_is_the_id_of_the_sender_or_of_the_broker() -> None:
    """Messages of this library have a source and an id."""
    assert key_of(message({"ce-id": "1", "ce-source": "shop"}, message_id="2"), None, "q") == "shop 1"
    assert key_of(message(message_id="2"), None, "q") == "2"
    assert key_of(message({"message_id": "3"}), None, "q") == "3"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (None, "has no id"),
        (IdentityHeader("x-order"), "header 'x-order' is missing"),
        (IdentityField("order"), "field 'order' is missing"),
        (lambda _: 7, "returned int"),
    ],
)
def test_a_message_without_its_key_is_refused_with_the_reason(rule: Any, reason: str) -> None:
    """FastStream makes up an id for a message that has none, a new one for each delivery: it is never the key."""
    with pytest.raises(InvalidKey, match=reason):
        key_of(message(), rule, "q")


def test_a_key_that_is_not_a_rule_is_refused(shop: Endpoint) -> None:
    """At once, and not at the first message."""
    wrong: Any = "order_id"
    with pytest.raises(SetupError, match="IdentityHeader"):
        ExactlyOnceMiddleware(shop, key=wrong)


class Sent:
    """A transaction that notes what it is asked to send."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, dict[str, Any]]] = []

    def send(self, body: Any, **options: Any) -> None:
        """Note it."""
        self.sent.append((body, options))


async def captured(cmd: Any) -> tuple[Any, dict[str, Any]]:
    """Return what a transaction is asked to send for a command of FastStream."""
    tx: Any = Sent()
    await capture(tx, PRODUCER, cmd)
    (sent,) = tx.sent
    return sent


def rabbit(body: Any, queue: str = "placed", exchange: RabbitExchange | None = None, **options: Any) -> RabbitPublishCommand:
    """Return a command as a publisher makes it."""
    return RabbitPublishCommand(body, routing_key=queue, exchange=exchange, _publish_type=PublishType.PUBLISH, **options)


def kafka(*bodies: Any, **options: Any) -> KafkaPublishCommand:
    """Return a command for a topic."""
    return KafkaPublishCommand(*bodies, topic="placed", _publish_type=PublishType.PUBLISH, **options)


@pytest.mark.parametrize("body", [{"a": 1}, [1, 2], "text", b"\xff\x00", b'{"a": 1}', None, 7, OrderPlaced(order_id="a")])
async def test_receivers_read_a_captured_message_as_they_read_one_of_faststream(body: Any) -> None:
    """The same body, decoded by FastStream to the same value."""
    sent, options = await captured(rabbit(body))
    own = await AioPikaParser.encode_message(body, serializer=SERIALIZER)
    assert sent == own.body
    decoded = decode_message(SimpleNamespace(body=sent, content_type=options["content_type"]))
    assert decoded == decode_message(SimpleNamespace(body=own.body, content_type=own.content_type))


async def test_a_captured_message_keeps_headers_types_and_ids() -> None:
    """As its publisher gave them."""
    options = {"headers": {"tenant": "t"}, "correlation_id": "c", "message_type": "Placed", "message_id": "1", "persist": True}
    _, sent = await captured(rabbit({"a": 1}, **options))
    assert sent == {
        "key": None,
        "to": Queue("placed"),
        "type": "Placed",
        "headers": {"tenant": "t", "correlation-id": "c"},
        "content_type": "application/json",
        "id": "1",
    }
    _, sent = await captured(rabbit(OrderPlaced(order_id="a"), "eu.placed", RabbitExchange("shop"), content_type="text/json"))
    assert (sent["to"], sent["type"], sent["content_type"]) == (Exchange("shop", "eu.placed"), "OrderPlaced", "text/json")


async def test_an_exchange_is_declared_when_a_message_to_it_is_captured() -> None:
    """FastStream declares it when it publishes. The message would otherwise wait for an exchange that nobody makes."""
    declared: list[RabbitExchange] = []

    async def declare(exchange: RabbitExchange) -> None:
        declared.append(exchange)

    producer = SimpleNamespace(**vars(PRODUCER), declarer=SimpleNamespace(declare_exchange=declare))
    tx: Any = Sent()
    for exchange in (None, RabbitExchange("shop")):
        await capture(tx, producer, rabbit({"a": 1}, exchange=exchange))
    assert declared == [RabbitExchange("shop")]


async def test_a_captured_message_of_nats_keeps_its_subject_and_headers() -> None:
    """The correlation id is a header there."""
    cmd = NatsPublishCommand(
        {"a": 1}, subject="eu.placed", headers={"tenant": "t"}, correlation_id="c", _publish_type=PublishType.PUBLISH
    )
    body, sent = await captured(cmd)
    assert (json.loads(body), sent["to"], sent["type"]) == ({"a": 1}, Subject("eu.placed"), "eu.placed")
    assert sent["headers"] == {"tenant": "t", "correlation_id": "c"}


def redis(body: Any = None, **options: Any) -> RedisPublishCommand:
    """Return a command as a publisher makes it."""
    return RedisPublishCommand({"a": 1} if body is None else body, _publish_type=PublishType.PUBLISH, **options)


@pytest.mark.parametrize("id_", [None, "1"])
async def test_a_captured_message_of_redis_is_in_the_envelope_that_subscribers_read(id_: str | None) -> None:
    """With an id that is the same each time it is sent: FastStream itself gives none."""
    headers = {"tenant": "t"} if id_ is None else {"tenant": "t", "message_id": id_}
    envelope, sent = await captured(redis(stream="placed", headers=headers, correlation_id="c"))
    body, read = BinaryMessageFormatV1.parse(envelope)
    assert (json.loads(body), sent["to"], sent["type"], sent["headers"]) == (
        {"a": 1},
        Stream("placed", "__data__"),
        "placed",
        {},
    )
    assert sent["id"] == (id_ or read["message_id"])
    assert read == {"tenant": "t", "correlation_id": "c", "content-type": "application/json", "message_id": sent["id"]}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"channel": "placed"}, "channel 'placed' of Redis"),
        ({"list": "placed"}, "list 'placed' of Redis"),
        ({"stream": "placed", "maxlen": 10}, "maxlen"),
        ({"stream": "placed", "reply_to": "q"}, "reply_to"),
        ({"stream": "placed", "pipeline": SimpleNamespace()}, "pipeline"),
        ({"stream": "placed", "headers": {"count": 3}}, "header 'count' is int"),
        ({"stream": "placed", "headers": {"message_id": 3}}, "header 'message_id' is int"),
    ],
)
async def test_what_redis_cannot_keep_until_it_is_acknowledged_is_refused(options: dict[str, Any], reason: str) -> None:
    """Lists and channels deliver nothing again."""
    with pytest.raises(InvalidEffect, match=reason):
        await captured(redis(**options))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"priority": 3}, "priority"),
        ({"expiration": 3}, "expiration"),
        ({"reply_to": "q"}, "reply_to"),
        ({"headers": {"count": 3}}, "header 'count' is int"),
    ],
)
async def test_what_a_captured_message_cannot_keep_is_refused(options: dict[str, Any], reason: str) -> None:
    """At the call, so that nothing is committed without it."""
    with pytest.raises(InvalidEffect, match=reason):
        await captured(rabbit({"a": 1}, **options))


async def test_publishing_to_a_broker_without_a_transport_is_refused() -> None:
    """No process of this library could send it after a crash."""
    with pytest.raises(InvalidEffect, match="cannot publish to"):
        await captured(ConfluentPublishCommand({"a": 1}, topic="placed", _publish_type=PublishType.PUBLISH))


async def test_what_is_published_to_kafka_keeps_its_key_and_its_headers() -> None:
    """Each message of a batch has the key of the batch, or its own."""
    _, options = await captured(kafka({"a": 1}, key=b"k", correlation_id="c-1"))
    assert (options["to"], options["key"], options["headers"]["correlation_id"]) == (Topic("placed"), "k", "c-1")
    batch: Any = Sent()
    await capture(batch, PRODUCER, kafka({"a": 1}, KafkaPublishMessage({"a": 2}, key=b"own"), key="k"))
    assert [options["key"] for _, options in batch.sent] == ["k", "own"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partition": 0}, "with partition"),
        ({"timestamp_ms": 1}, "timestamp_ms"),
        ({"reply_to": "q"}, "reply_to"),
        ({"key": b"\xff"}, "is not text in UTF-8"),
    ],
)
async def test_what_a_captured_kafka_message_cannot_keep_is_refused(options: dict[str, Any], reason: str) -> None:
    """At the call."""
    with pytest.raises(InvalidEffect, match=reason):
        await captured(kafka({"a": 1}, **options))


def test_fuzz_keys_of_messages() -> None:
    """Each message has a key that is text, or none: whatever its headers and its body are."""
    inputs = Inputs()
    rules: tuple[Any, ...] = (None, IdentityHeader("x-order"), IdentityField("order.id"))
    for _ in inputs.rounds():
        headers = {
            inputs.choice(("x-order", "X-Order", "ce-id", "ce-source", *TEXTS)): inputs.choice((*TEXTS, 7, b"\xff", None))
        }
        body = inputs.changed(b'{"order": {"id": "a"}}')
        try:
            found = key_of(message(headers, body), inputs.choice(rules), "q")
        except InvalidKey:
            continue
        assert isinstance(found, str)
        assert found


async def test_fuzz_stored_replies() -> None:
    """Each is a reply, or none, or refused."""
    inputs = Inputs()
    plain = json.dumps(await stored_reply(rabbit({"a": 1}), SimpleNamespace(codec=DefaultCodec(), serializer=None))).encode()
    for _ in inputs.rounds():
        try:
            stored = json.loads(inputs.changed(plain))
        except (ValueError, RecursionError):
            continue
        with suppress(PermanentFailure):
            reply_of(stored, lambda value, headers: (value, headers))
