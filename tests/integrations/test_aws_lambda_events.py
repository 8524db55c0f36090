"""Functions in AWS Lambda: events that are no batch of a queue, streams, and schedules."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec import Struct

from onceonly import Context, Endpoint, Reject, Retry, SetupError
from onceonly.errors import RetryableError
from onceonly.integrations.aws_lambda import (
    dynamodb_stream_handler,
    eventbridge_handler,
    kinesis_handler,
    maintenance_handler,
    relay_handler,
    sns_handler,
)
from tests.endpoint.hosted_harness import Base, Placed, declare_listener, pending, received, sql_shop
from tests.integrations.lambda_harness import (
    STREAM,
    TABLE,
    TOPIC,
    InvocationContext,
    bus_event,
    function,
    kinesis_record,
    sns_event,
    sqs_event,
    sqs_record,
    table_record,
)

__all__ = ["function"]
pytestmark = pytest.mark.usefixtures("function")
RETRY = Retry(immediate=1, delayed=3, jitter=0)


class PlaceOrder(Struct):
    """A command, with what a handler is to do."""

    order_id: str
    fails: int = 0


class Desk:
    """An endpoint in memory, and what its handlers have got: the id, the source, the type, the headers and the body."""

    def __init__(self) -> None:
        self.endpoint = Endpoint("desk", store=f"memory://{uuid4().hex}", retry=RETRY)
        self.is_well = False
        self.runs = list[str]()
        self.got = list[tuple[str, str, str]]()
        self.headers = dict[str, str]()
        self.bodies = list[Any]()

        @self.endpoint.handler(type="PlaceOrder")
        def place(order: PlaceOrder, context: Context) -> None:
            self.runs.append(order.order_id)
            if order.fails < 0:
                raise Reject("never")
            if not self.is_well and self.runs.count(order.order_id) <= order.fails:
                raise ValueError("not yet")
            self._note(context)

        @self.endpoint.handler(type="Changed")
        def change(body: dict[str, Any], context: Context) -> None:
            self.bodies.append(body)
            self._note(context)

    def _note(self, context: Context) -> None:
        message = context.message
        self.got.append((message.id, message.source, message.type))
        self.headers = dict(message.headers)


@pytest.fixture
def desk() -> Desk:
    """Make an endpoint."""
    return Desk()


# Asynchronous invocations


def test_a_notification_has_the_id_of_its_message_and_the_source_of_its_topic(desk: Desk) -> None:
    """Lambda repeats an invocation with the same id. Attributes are headers."""
    handler = sns_handler(desk.endpoint, type="PlaceOrder")
    for _ in range(2):
        assert handler(sns_event("m-1", {"order_id": "a"}, tenant="red"), InvocationContext()) is None
    assert desk.got == [("m-1", TOPIC, "PlaceOrder")]
    assert desk.headers["tenant"] == "red"


def test_an_event_of_a_bus_has_its_own_id_source_and_type(desk: Desk) -> None:
    """Its body is `detail`."""
    handler = eventbridge_handler(desk.endpoint)
    for _ in range(2):
        handler(bus_event("e-1", {"order_id": "a"}), InvocationContext())
    handler(bus_event("e-2", {"x": [1.5]}, "Changed"), InvocationContext())
    assert desk.got == [("e-1", "com.example.web", "PlaceOrder"), ("e-2", "com.example.web", "Changed")]
    assert desk.bodies == [{"x": [1.5]}]
    assert desk.headers["aws-region"] == "eu-central-1"


def test_a_type_can_replace_the_detail_type(desk: Desk) -> None:
    """Such as for a schedule, whose type is `Scheduled Event`."""
    eventbridge_handler(desk.endpoint, type="Changed")(bus_event("e", {}, "Scheduled Event"), InvocationContext())
    assert desk.got == [("e", "com.example.web", "Changed")]


def test_the_detail_of_a_scheduler_is_json_in_a_text(desk: Desk) -> None:
    """EventBridge Scheduler writes it so if the schedule has no input. A text that is no JSON is a dead letter."""
    handler = eventbridge_handler(desk.endpoint, type="Changed")
    event = bus_event("e-1", "{}", "Scheduled Event") | {"source": "aws.scheduler"}
    handler(event, InvocationContext())
    handler(event | {"id": "e-2", "detail": "\ud800"}, InvocationContext())
    assert desk.got == [("e-1", "aws.scheduler", "Changed")]
    assert desk.bodies == [{}]


def test_what_is_due_at_once_is_repeated_in_the_invocation(desk: Desk) -> None:
    """Lambda would wait a minute."""
    eventbridge_handler(desk.endpoint)(bus_event("e", {"order_id": "a", "fails": 1}), InvocationContext())
    assert desk.runs == ["a", "a"]


def test_an_event_that_must_come_again_raises(desk: Desk) -> None:
    """So Lambda repeats the invocation, and sends it to the failure destination in the end."""
    handler = eventbridge_handler(desk.endpoint)
    event = bus_event("e", {"order_id": "a", "fails": 2})
    with pytest.raises(RetryableError, match=r"1 messages must be delivered again: e \(.*not yet"):
        handler(event, InvocationContext())
    handler(event, InvocationContext())
    assert desk.runs == ["a"] * 3


def test_a_dead_letter_is_done(desk: Desk) -> None:
    """It is stored, and no failure of the function."""
    eventbridge_handler(desk.endpoint)(bus_event("e", {"order_id": "a", "fails": -1}), InvocationContext())
    sns_handler(desk.endpoint)(sns_event("m", "no JSON", **{"ce-type": "PlaceOrder"}), InvocationContext())
    assert desk.runs == ["a"]


# Streams


def orders(*fails: int) -> dict[str, Any]:
    """Return a batch of a shard with an order for each."""
    return {"Records": [kinesis_record(n, {"order_id": f"{n}", "fails": each}) for n, each in enumerate(fails, 100)]}


def test_a_shard_stops_at_the_first_record_that_must_come_again(desk: Desk) -> None:
    """Those behind it are not handled. Lambda begins there again."""
    handler = kinesis_handler(desk.endpoint, type="PlaceOrder")
    assert handler(orders(0, 3, 0), InvocationContext()) == {"batchItemFailures": [{"itemIdentifier": "101"}]}
    assert desk.runs == ["100", "101", "101"]
    event = {"Records": orders(0, 3, 0)["Records"][1:]}
    assert handler(event, InvocationContext()) == {"batchItemFailures": [{"itemIdentifier": "101"}]}
    assert handler(event, InvocationContext()) == {"batchItemFailures": []}
    ids = [f"shardId-000000000006:{number}" for number in (100, 101, 102)]
    assert desk.got == [(id_, STREAM, "PlaceOrder") for id_ in ids]


def test_without_order_the_others_are_handled(desk: Desk) -> None:
    """They are known when they come again."""
    handler = kinesis_handler(desk.endpoint, type="PlaceOrder", ordered=False)
    assert handler(orders(0, 99, 0), InvocationContext()) == {"batchItemFailures": [{"itemIdentifier": "101"}]}
    assert {id_[-3:] for id_, _, _ in desk.got} == {"100", "102"}
    desk.is_well, desk.got = True, []
    assert handler(orders(0, 99, 0), InvocationContext()) == {"batchItemFailures": []}
    assert [id_[-3:] for id_, _, _ in desk.got] == ["101"]


def test_data_that_cannot_be_read_is_a_dead_letter(desk: Desk) -> None:
    """It would block its shard."""
    broken = kinesis_record(1, {}) | {"kinesis": {"sequenceNumber": "1", "data": "?", "partitionKey": "1"}}
    event = {"Records": [broken, kinesis_record(2, b"\xff"), kinesis_record(3, {"order_id": "a"})]}
    assert kinesis_handler(desk.endpoint, type="PlaceOrder")(event, InvocationContext()) == {"batchItemFailures": []}
    assert desk.runs == ["a"]


def test_a_change_of_a_table_is_plain_json(desk: Desk) -> None:
    """Numbers keep their digits, as far as the type of the body does."""
    image = {
        "order_id": {"S": "a"},
        "total": {"N": "12345678901234567890123"},
        "rate": {"N": "0.5"},
        "paid": {"BOOL": True},
        "note": {"NULL": True},
        "tags": {"SS": ["x", "y"]},
        "sizes": {"NS": ["1", "2"]},
        "lines": {"L": [{"M": {"sku": {"S": "s"}, "raw": {"B": "AAEC"}}}]},
    }
    handler = dynamodb_stream_handler(desk.endpoint, type="Changed")
    assert handler({"Records": [table_record(7, image)]}, InvocationContext()) == {"batchItemFailures": []}
    assert desk.got == [("event-7", TABLE, "Changed")]
    new = {
        "order_id": "a",
        "total": 12345678901234567890123,
        "rate": 0.5,
        "paid": True,
        "note": None,
        "tags": ["x", "y"],
        "sizes": [1, 2],
        "lines": [{"sku": "s", "raw": "AAEC"}],
    }
    assert desk.bodies[0]["eventName"] == "INSERT"
    assert desk.bodies[0]["Keys"] == {"order_id": "a"}
    assert {**desk.bodies[0]["NewImage"], "total": int(desk.bodies[0]["NewImage"]["total"])}.keys() == new.keys()
    assert {name: value for name, value in desk.bodies[0]["NewImage"].items() if name != "total"} == {
        name: value for name, value in new.items() if name != "total"
    }


@pytest.mark.parametrize("value", [{"X": "?"}, {"N": "many"}, {"N": '"1"'}, {}, {"S": "a", "N": "1"}, "text", None])
def test_an_image_that_cannot_be_read_is_a_dead_letter(desk: Desk, value: Any) -> None:
    """With the record as its body."""
    event = {"Records": [table_record(1, {"order_id": {"S": "a"}, "odd": value}), table_record(2, {"order_id": {"S": "b"}})]}
    assert dynamodb_stream_handler(desk.endpoint, type="Changed")(event, InvocationContext()) == {"batchItemFailures": []}
    assert [body["Keys"] for body in desk.bodies] == [{"order_id": "b"}]


def test_a_stream_with_another_event(desk: Desk) -> None:
    """The error names the handler for it."""
    with pytest.raises(SetupError, match="kinesis_handler received an event of aws:dynamodb: use dynamodb_stream_handler"):
        kinesis_handler(desk.endpoint)({"Records": [table_record(1, {"order_id": {"S": "a"}})]}, InvocationContext())
    with pytest.raises(SetupError, match="eventbridge_handler received an event of aws:sqs: use sqs_handler"):
        eventbridge_handler(desk.endpoint)(sqs_event(sqs_record("1", {})), InvocationContext())
    with pytest.raises(SetupError, match="eventbridge_handler received a record without `id`"):
        eventbridge_handler(desk.endpoint)({"detail-type": "x", "source": "y", "detail": {}}, InvocationContext())


# Schedules


def left_over(folder: Path, count: int, **settings: Any) -> Endpoint:
    """Return an endpoint for which another process has committed messages and died."""
    store, queue = f"sqlite:///{folder}/store.db", f"sqlite:///{folder}/queue.db"
    shop = sql_shop(store, queue, relay_after=0.001, **settings)

    async def commit() -> None:
        await declare_listener(queue)
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine  # noqa: PLC0415 - only here

        async with shop.opened():
            pass  # the tables
        engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/store.db")
        async with AsyncSession(engine) as session, session.begin():
            for number in range(count):
                shop.enlist(session).publish(Placed(str(number)))
        await engine.dispose()

    asyncio.run(commit())
    return shop


def test_a_relay_sends_what_is_left_over_and_tells_what_is_left(tmp_path: Path) -> None:
    """And maintains the store, once in each interval."""
    shop = left_over(tmp_path, 30)
    answer = relay_handler(shop)({}, InvocationContext())
    assert (answer["sent"], answer["left"], answer["reason"], answer["not_searched"]) == (30, 0, "", "")
    assert answer["tasks"]
    assert answer["troubles"] == []
    assert len(asyncio.run(received(f"sqlite:///{tmp_path}/queue.db"))) == 30
    assert relay_handler(shop)({}, InvocationContext())["sent"] == 0


def test_a_relay_without_time_leaves_it(tmp_path: Path) -> None:
    """Nothing is lost, and the next one sends it."""
    shop = left_over(tmp_path, 3, janitor=False)
    with pytest.raises(RetryableError, match="before the time of the invocation was over"):
        relay_handler(shop)({}, InvocationContext(0.9))
    assert asyncio.run(pending(shop)) == 3
    answer = relay_handler(shop)({}, InvocationContext())
    assert (answer["sent"], answer["left"], answer["tasks"]) == (3, 0, {})


def test_a_relay_does_not_search_objects(caplog: pytest.LogCaptureFixture) -> None:
    """S3 lists no documents with unsent messages. The answer says so, and nothing is opened."""
    shop = Endpoint("shop", store="s3://bucket/shop", transport="sqs://eu-central-1", janitor=False)
    answer = relay_handler(shop)({}, InvocationContext())
    assert "does not list documents with unsent messages" in answer["not_searched"]
    assert (answer["sent"], answer["left"], answer["tasks"]) == (0, 0, {})
    assert "relay function searches nothing" in caplog.text


def test_maintenance_tells_what_it_has_done(tmp_path: Path) -> None:
    """What is not due is not done again. Without time, nothing is begun."""
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/store.db", metadata=Base.metadata)
    handler = maintenance_handler(shop)
    assert handler({}, InvocationContext(1.0)) == {"tasks": {}, "troubles": ["its time was over before it began"]}
    answer = handler({}, InvocationContext())
    assert answer["troubles"] == []
    assert answer["tasks"]
    assert handler({}, None) == {"tasks": {}, "troubles": []}
