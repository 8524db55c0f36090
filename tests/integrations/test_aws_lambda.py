"""Functions in AWS Lambda: batches of a queue, and what their answers say."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, Endpoint, IdentityField, Reject, Retry, SetupError
from onceonly.errors import RetryableError
from onceonly.integrations.aws_lambda import sqs_handler
from onceonly.integrations.lambda_process import _IN_BACKGROUND, PROCESS, InvocationTimer
from tests.endpoint.hosted_harness import Base, Line, Placed, declare_listener, letters, received, rows
from tests.integrations.lambda_harness import (
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
SOON = Retry(immediate=0, delayed=2, first_delay=5.0, jitter=0)


class PlaceOrder(Struct):
    """A command."""

    order_id: str
    fails: bool = False


def succeed(_order: PlaceOrder) -> None:
    """Let a handler go on."""


class Shop:
    """An endpoint on SQLite, and the orders that its handler has begun."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.store, self.queue = f"sqlite:///{folder}/store.db", f"sqlite:///{folder}/queue.db"
        self.begun = list[str]()
        self.fails: Callable[[PlaceOrder], object] = succeed
        transport = settings.pop("transport", self.queue)
        settings = {"retry": SOON, "metadata": Base.metadata} | settings
        self.endpoint = Endpoint("shop", store=self.store, transport=transport, **settings)

        @self.endpoint.handler
        async def place(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
            self.begun.append(order.order_id)
            if isinstance(failing := self.fails(order), Coroutine):
                await failing
            session.add(Line(what=order.order_id))
            context.publish(Placed(order.order_id))
            if order.fails:
                raise ValueError("not today")

    def rows(self) -> list[str]:
        """Return the orders that were placed."""
        return asyncio.run(rows(self.store))

    def sent(self) -> list[str]:
        """Return the ids of the events that were sent."""
        return asyncio.run(received(self.queue))

    def reasons(self) -> list[str]:
        """Return the reasons of the dead letters."""
        return [letter.reason for letter in asyncio.run(letters(self.endpoint))]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Make an endpoint whose events have a receiver."""
    made = Shop(tmp_path)
    asyncio.run(declare_listener(made.queue))
    return made


def order(name: str, **changes: Any) -> dict[str, Any]:
    """Return a record with an order."""
    return sqs_record(name, {"order_id": name}, **changes)


def failing(name: str, **changes: Any) -> dict[str, Any]:
    """Return a record whose handler fails."""
    return sqs_record(name, {"order_id": name, "fails": True}, **changes)


def names(answer: dict[str, list[dict[str, str]]]) -> list[str]:
    """Return the messages that must be delivered again."""
    assert answer.keys() == {"batchItemFailures"}
    return [each["itemIdentifier"] for each in answer["batchItemFailures"]]


class Boto:
    """A client of boto3 that notes what it is asked."""

    class meta:  # noqa: N801 - as boto3 calls it
        """What a client knows of itself."""

        endpoint_url = "https://sqs.eu-central-1.amazonaws.com"

    def __init__(self, visibility: int = 180, error: Exception | None = None) -> None:
        self.changes = dict[str, int]()
        self.urls = set[str]()
        self.read = 0
        self._visibility, self._error = visibility, error

    def change_message_visibility_batch(self, *, QueueUrl: str, Entries: Sequence[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        """Note the changes."""
        if self._error is not None:
            raise self._error
        assert len(Entries) <= 10
        self.urls.add(QueueUrl)
        self.changes |= {each["ReceiptHandle"]: each["VisibilityTimeout"] for each in Entries}
        return {"Successful": []}

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: list[str]) -> dict[str, Any]:  # noqa: N803
        """Return the time-out."""
        self.urls.add(QueueUrl)
        self.read += 1
        return {"Attributes": dict.fromkeys(AttributeNames, str(self._visibility))}


# Queues


def test_effects_happen_once_however_often_a_batch_is_delivered(shop: Shop) -> None:
    """Also when two copies are in one batch, and one comes in another invocation."""
    handler = sqs_handler(shop.endpoint)
    assert names(handler(sqs_event(order("a"), order("b"), order("a")), InvocationContext())) == []
    assert names(handler(sqs_event(order("b", count=2), order("c")), InvocationContext())) == []
    assert shop.rows() == ["a", "b", "c"]
    sent = shop.sent()
    assert len(sent) == len(set(sent)) == 3


def test_only_what_failed_comes_again(shop: Shop) -> None:
    """The others are deleted by Lambda. Nothing of the failed one is committed."""
    handler = sqs_handler(shop.endpoint)
    assert names(handler(sqs_event(order("a"), failing("b"), order("c")), InvocationContext())) == ["b"]
    assert shop.rows() == ["a", "c"]


def test_attempts_are_counted_by_the_queue(shop: Shop) -> None:
    """Three attempts, of which other processes had two."""
    handler = sqs_handler(shop.endpoint)
    assert names(handler(sqs_event(failing("a", count=2)), InvocationContext())) == ["a"]
    assert names(handler(sqs_event(failing("b", count=3)), InvocationContext())) == []
    assert shop.begun == ["a", "b"]
    assert [reason for reason in shop.reasons() if "not today" in reason]


def test_a_record_that_cannot_be_read_is_a_dead_letter_and_done(shop: Shop) -> None:
    """Delivering it again would not help."""
    handler = sqs_handler(shop.endpoint)
    odd: list[dict[str, Any]] = [
        sqs_record("text", "no JSON"),
        sqs_record("fields", {"other": 1}),
        sqs_record("object", "") | {"body": {"order_id": "x"}},
        sqs_record("none", "") | {"body": None},
        order("headers") | {"messageAttributes": {"onceonly-headers": {"stringValue": "{", "dataType": "String"}}},
        order("base64") | {"messageAttributes": {"onceonly-body": {"stringValue": "base64", "dataType": "String"}}},
        order("lone") | {"body": '{"order_id": "\ud800"}'},
    ]
    assert names(handler(sqs_event(*odd, order("good")), InvocationContext())) == []
    assert shop.rows() == ["good"]
    assert len(shop.reasons()) == len(odd)


@pytest.mark.parametrize(
    "changes",
    [
        {"attributes": None},
        {"attributes": {"ApproximateReceiveCount": "often"}},
        {"attributes": {"ApproximateReceiveCount": 0}},
        {"messageAttributes": None},
        {"messageAttributes": {"a": None, "b": {"binaryValue": "?"}, "c": {"binaryValue": "AAEC"}, "d": {"stringValue": 1}}},
        {"eventSourceARN": None},
        {"receiptHandle": None},
    ],
)
def test_odd_attributes_of_a_record_do_not_matter(shop: Shop, changes: dict[str, Any]) -> None:
    """What is needed is the id and the body."""
    assert names(sqs_handler(shop.endpoint)(sqs_event(order("a") | changes), InvocationContext())) == []
    assert shop.rows() == ["a"]


def test_a_message_of_onceonly_is_read_as_a_worker_reads_it(shop: Shop) -> None:
    """All of its headers are in one attribute, and its own id counts, not that of the queue."""
    headers = '[["ce-id","own"],["ce-source","web"],["ce-type","PlaceOrder"],["ce-specversion","1.0"]]'
    attributes = {"onceonly-headers": {"stringValue": headers, "dataType": "String"}}
    event = sqs_event(order("a") | {"messageAttributes": attributes}, order("b") | {"messageAttributes": attributes})
    event["Records"][1]["body"] = event["Records"][0]["body"]
    assert names(sqs_handler(shop.endpoint)(event, InvocationContext())) == []
    assert shop.rows() == ["a"]


def test_a_message_that_is_not_due_comes_again(shop: Shop) -> None:
    """SQS delays nothing for more than 15 minutes."""
    client = Boto()
    late = order("late") | {"messageAttributes": {"onceonly-due": {"stringValue": "9999999999999", "dataType": "String"}}}
    assert names(sqs_handler(shop.endpoint, client=client)(sqs_event(late), InvocationContext())) == ["late"]
    assert shop.begun == []
    assert client.changes == {"handle-late": 6 * 3600}


def test_copies_of_a_producer_are_known_by_a_field(tmp_path: Path) -> None:
    """SQS gives each of them an id of its own."""
    shop = Shop(tmp_path, transport=None, identity=IdentityField("order_id"))
    shop.endpoint = Endpoint("shop", store=shop.store, metadata=Base.metadata, identity=IdentityField("order_id"))

    @shop.endpoint.handler
    async def place(order: PlaceOrder, session: AsyncSession) -> None:
        session.add(Line(what=order.order_id))

    handler = sqs_handler(shop.endpoint)
    event = sqs_event(sqs_record("1", {"order_id": "a"}), sqs_record("2", {"order_id": "a"}))
    assert names(handler(event, InvocationContext())) == []
    assert shop.rows() == ["a"]


# FIFO queues


def test_a_group_stops_at_its_first_failure(shop: Shop) -> None:
    """The others of the group come again, and are not handled. Other groups go on."""
    handler = sqs_handler(shop.endpoint)
    event = sqs_event(
        order("a1", group="a"),
        failing("a2", group="a"),
        order("b1", group="b"),
        order("a3", group="a"),
        order("b2", group="b"),
        order("a4", group="a"),
    )
    assert names(handler(event, InvocationContext())) == ["a2", "a3", "a4"]
    assert shop.rows() == ["a1", "b1", "b2"]
    assert Counter(shop.begun).keys() == {"a1", "a2", "b1", "b2"}


def test_messages_of_a_group_are_handled_in_their_order(shop: Shop) -> None:
    """Whatever groups are between them."""
    event = sqs_event(*[order(f"{group}{number}", group=group) for number in range(4) for group in "ab"])
    assert names(sqs_handler(shop.endpoint)(event, InvocationContext())) == []
    assert [name for name in shop.begun if name[0] == "a"] == ["a0", "a1", "a2", "a3"]


def test_a_group_goes_on_behind_a_dead_letter(shop: Shop) -> None:
    """It was given up, so it does not come again."""

    def reject(order: PlaceOrder) -> None:
        if order.order_id == "a1":
            raise Reject("never")

    shop.fails = reject
    event = sqs_event(order("a1", group="a"), order("a2", group="a"))
    assert names(sqs_handler(shop.endpoint)(event, InvocationContext())) == []
    assert shop.rows() == ["a2"]
    assert [reason for reason in shop.reasons() if "never" in reason]


def test_a_group_is_due_together(shop: Shop) -> None:
    """A message that stays hidden holds up its group."""
    client = Boto()
    handler = sqs_handler(shop.endpoint, client=client)
    event = sqs_event(failing("a1", group="a"), order("a2", group="a"), order("b1", group="b"))
    assert names(handler(event, InvocationContext())) == ["a1", "a2"]
    assert client.changes == {"handle-a1": 5, "handle-a2": 5}


# Visibility


def test_a_client_puts_off_what_is_due_later(shop: Shop) -> None:
    """By the queue of the record. More than ten take several requests."""
    client = Boto()
    handler = sqs_handler(shop.endpoint, client=client)
    event = sqs_event(*[failing(f"f{number}") for number in range(12)], order("a"))
    assert len(names(handler(event, InvocationContext()))) == 12
    assert client.changes == {f"handle-f{number}": 5 for number in range(12)}
    assert client.urls == {"https://sqs.eu-central-1.amazonaws.com/123456789012/orders"}


def test_a_client_that_fails_changes_no_outcome(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Then the time-out of the queue holds."""
    handler = sqs_handler(shop.endpoint, client=Boto(error=OSError("no network")))
    assert names(handler(sqs_event(failing("a"), order("b")), InvocationContext())) == ["a"]
    assert "visibility time-out not changed" in caplog.text


@pytest.mark.parametrize(("visibility", "warned"), [(29, 1), (30, 0), (180, 0)])
def test_a_time_out_that_is_too_short_is_logged_once(
    shop: Shop, caplog: pytest.LogCaptureFixture, visibility: int, warned: int
) -> None:
    """Looked up when a message has come again, which is when it matters."""
    client = Boto(visibility)
    handler = sqs_handler(shop.endpoint, client=client)
    handler(sqs_event(order("a")), InvocationContext(30.5))
    assert not client.read
    for number in range(2):
        handler(sqs_event(order(f"b{number}", count=2)), InvocationContext(30.5))
    assert client.read == 1
    assert caplog.text.count("visibility time-out shorter than the function's time-out") == warned


def test_without_partial_responses_the_whole_batch_comes_again(shop: Shop) -> None:
    """Lambda would delete it all. What was done is known."""
    handler = sqs_handler(shop.endpoint, partial_response=False)
    with pytest.raises(RetryableError, match=r"1 messages must be delivered again: b \(.*not today"):
        handler(sqs_event(order("a"), failing("b")), InvocationContext())
    assert names(handler(sqs_event(order("a", count=2)), InvocationContext())) == []
    assert shop.rows() == ["a"]


# Time and the process


def test_what_the_time_does_not_suffice_for_is_undone_and_comes_again(shop: Shop) -> None:
    """Before Lambda ends the process."""

    async def wait() -> None:
        await asyncio.sleep(600)

    shop.fails = lambda order: wait() if order.order_id == "slow" else None
    handler = sqs_handler(shop.endpoint, margin=0.5)
    handler(sqs_event(order("first")), InvocationContext())
    assert names(handler(sqs_event(order("slow")), InvocationContext(2.0))) == ["slow"]
    shop.fails = succeed
    assert names(handler(sqs_event(order("slow", count=2)), InvocationContext())) == []
    assert shop.rows() == ["first", "slow"]


def test_no_time_is_left(shop: Shop) -> None:
    """Nothing is begun, and nothing is lost."""
    handler = sqs_handler(shop.endpoint)
    handler(sqs_event(order("first")), InvocationContext())
    assert names(handler(sqs_event(order("a"), order("b")), InvocationContext(0.5))) == ["a", "b"]
    assert shop.begun == ["first"]


def test_an_endpoint_that_cannot_be_opened_in_time(shop: Shop) -> None:
    """The error tells what to check. The next invocation opens it."""
    handler = sqs_handler(shop.endpoint)
    with pytest.raises(RetryableError, match="was not open before the time of the invocation was over"):
        handler(sqs_event(order("a")), InvocationContext(1.0))
    assert names(handler(sqs_event(order("a", count=2)), InvocationContext())) == []
    assert shop.rows() == ["a"]


def test_handlers_of_a_process_share_an_endpoint(shop: Shop) -> None:
    """It is opened once, by the first invocation."""
    opened = []
    one, other = sqs_handler(shop.endpoint), sqs_handler(shop.endpoint)
    for number, handler in enumerate((one, other, one)):
        handler(sqs_event(order(f"{number}")), InvocationContext())
        opened.append(id(PROCESS._hosted[id(shop.endpoint)]))
    assert len(set(opened)) == 1


def test_nothing_is_opened_at_import() -> None:
    """No loop, no connection, and no driver."""
    code = (
        "import sys; from onceonly import Endpoint; from onceonly.integrations.aws_lambda import sqs_handler;"
        "import onceonly.integrations.lambda_process as p;"
        "sqs_handler(Endpoint('shop', store='postgresql://db/shop', transport='sqs://eu-central-1'));"
        "assert p.PROCESS._loop is None; print(*[n for n in ('asyncpg', 'aiobotocore', 'botocore') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


async def test_a_handler_is_not_for_a_running_loop(shop: Shop) -> None:
    """It runs its own."""
    with pytest.raises(SetupError, match="call it from a function that is not async"):
        sqs_handler(shop.endpoint)(sqs_event(order("a")), None)


async def test_a_frozen_process_is_in_the_middle_of_nothing() -> None:
    """Tasks in the background end what they have begun, and begin nothing until the next invocation."""
    timer, steps = InvocationTimer(), list[str]()
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def background() -> None:
        while True:
            await timer.sleep(0)
            steps.append("begin")
            has_begun.set()
            await may_end.wait()
            steps.append("end")

    token = _IN_BACKGROUND.set(True)
    task = asyncio.create_task(background())
    _IN_BACKGROUND.reset(token)
    await asyncio.sleep(0.01)
    assert steps == []
    timer.begin()
    await has_begun.wait()
    ending = asyncio.create_task(timer.end(10))
    await asyncio.sleep(0.01)
    assert not ending.done()
    may_end.set()
    await ending
    assert steps == ["begin", "end"]
    await asyncio.sleep(0.01)
    assert steps == ["begin", "end"]
    task.cancel()


async def test_background_work_that_does_not_end_holds_up_no_answer() -> None:
    """For a second at most."""
    timer = InvocationTimer()

    async def background() -> None:
        await timer.sleep(0)
        await asyncio.Event().wait()

    token = _IN_BACKGROUND.set(True)
    task = asyncio.create_task(background())
    _IN_BACKGROUND.reset(token)
    await asyncio.sleep(0)
    timer.begin()
    await asyncio.sleep(0.01)
    await timer.end(0.02)
    assert not task.done()
    task.cancel()


def test_nothing_of_an_invocation_is_left(shop: Shop) -> None:
    """No task is in work between two invocations, besides those that sleep."""
    handler = sqs_handler(shop.endpoint)
    handler(sqs_event(order("first")), InvocationContext())
    assert PROCESS._loop is not None
    before = len(asyncio.all_tasks(PROCESS._loop))
    handler(sqs_event(order("a"), failing("b")), InvocationContext())
    assert len(asyncio.all_tasks(PROCESS._loop)) == before


# Events of another kind


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (sns_event("1", {}), "sqs_handler received an event of aws:sns: use sns_handler"),
        (bus_event("1", {}), "sqs_handler received an event of EventBridge: use eventbridge_handler"),
        ({"Records": [kinesis_record(1, {})]}, "use kinesis_handler"),
        ({"Records": [table_record(1, {"order_id": {"S": "a"}})]}, "use dynamodb_stream_handler"),
        ({"Records": [{"eventSource": "aws:s3"}]}, "received an event of aws:s3: check the trigger"),
        ({"Records": []}, r"not an event of aws:sqs \(Records\)"),
        ({"httpMethod": "GET", "path": "/"}, r"not an event of aws:sqs \(httpMethod, path\)"),
        ({}, "empty"),
        ([], "list"),
        (None, "NoneType"),
        ({"Records": [{"eventSource": "aws:sqs", "body": "{}"}]}, "a record without `messageId`"),
        ({"Records": [sqs_record("1", {}), 5]}, "a record that is not an object"),
    ],
)
def test_an_event_of_another_kind_names_the_handler_for_it(shop: Shop, event: Any, text: str) -> None:
    """An error, and not an empty answer: Lambda would delete the messages."""
    with pytest.raises(SetupError, match=text):
        sqs_handler(shop.endpoint)(event, InvocationContext())


@pytest.mark.parametrize("margin", [-1, "1", None, True, float("nan")])
def test_a_margin_is_a_number_of_seconds(shop: Shop, margin: Any) -> None:
    """At import, not at the first message."""
    with pytest.raises(ValueError, match="margin must be a number of seconds"):
        sqs_handler(shop.endpoint, margin=margin)
