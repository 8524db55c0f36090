"""A function whose store is DynamoDB and whose transport is SQS, with real clients on the emulator."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from botocore.session import get_session  # type: ignore[import-untyped]
from msgspec import Struct

from onceonly import Context, Endpoint, IdentityField, Queue, Retry
from onceonly.adapters.aws.dynamodb.documents import create
from onceonly.integrations.aws_lambda import relay_handler, sqs_handler
from tests.endpoint.relay_program import RECEIVER, bank_at
from tests.endpoint.test_relay_on_documents import Place, die_after_commit, receiving
from tests.integrations.lambda_harness import InvocationContext, function, sqs_event, sqs_record

__all__ = ["function"]
pytestmark = pytest.mark.usefixtures("function")
REGION = "eu-central-1"


class Deposit(Struct):
    """A command."""

    id: str
    account: str
    fails: bool = False


class Deposited(Struct):
    """An event."""

    id: str
    balance: int


class Account(Struct):
    """An entity."""

    account: str = ""
    balance: int = 0


@contextmanager
def queues(endpoint: str, *names: str) -> Iterator[Any]:
    """Make queues, and remove them. Gives a client."""
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    sqs = get_session().create_client("sqs", region_name=REGION, endpoint_url=endpoint, **keys)
    urls = [sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "20"})["QueueUrl"] for name in names]
    try:
        yield sqs
    finally:
        for url in urls:
            sqs.delete_queue(QueueUrl=url)
        sqs.close()


def take(sqs: Any, name: str) -> list[dict[str, Any]]:
    """Receive what is in a queue."""
    url, found = sqs.get_queue_url(QueueName=name)["QueueUrl"], list[dict[str, Any]]()
    while came := sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
    ).get("Messages"):
        found += came
    return found


def test_entities_and_events_once_and_a_failed_message_is_hidden_until_it_is_due(
    ministack_endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing but the function runs. The client of the transport hides the message, and finds that the time-out is short."""
    run = uuid4().hex[:8]
    orders, placed = f"deposits-{run}", f"deposited-{run}"
    store = f"dynamodb://test:test@{REGION}/t{run}?endpoint={ministack_endpoint}"
    asyncio.run(create(store))
    bank = Endpoint(
        "bank",
        store=store,
        transport=f"sqs://test:test@{REGION}?endpoint={ministack_endpoint}",
        identity=IdentityField("id"),
        events={"Deposited": Queue(placed)},
        retry=Retry(immediate=0, delayed=2, first_delay=1.0, jitter=0),
    )
    seen = dict[str, int]()

    @bank.handler(entity=Account, key="account")
    async def deposit(order: Deposit, account: Account, context: Context) -> None:
        account.balance += 1
        seen[order.account] = account.balance
        context.publish(Deposited(order.id, account.balance))
        if order.fails:
            raise ValueError("not today")

    handler = sqs_handler(bank)
    with queues(ministack_endpoint, orders, placed) as sqs:
        url = sqs.get_queue_url(QueueName=orders)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        bodies = [{"id": f"{account}-{number}", "account": account} for account in "ab" for number in range(4)]
        records = [sqs_record(uuid4().hex, body, eventSourceARN=arn) for body in [*bodies, *bodies[:3]]]
        assert handler(sqs_event(*records), InvocationContext()) == {"batchItemFailures": []}
        again = [record | {"attributes": {"ApproximateReceiveCount": "2"}} for record in records[:2]]
        assert handler(sqs_event(*again), InvocationContext()) == {"batchItemFailures": []}
        assert seen == {"a": 4, "b": 4}
        ids = {message["MessageAttributes"]["onceonly-headers"]["StringValue"] for message in take(sqs, placed)}
        assert len(ids) == len(bodies)
        assert "visibility time-out shorter than the function's time-out" in caplog.text
        sqs.send_message(QueueUrl=url, MessageBody='{"id":"c","account":"c","fails":true}')
        (came,) = take(sqs, orders)
        failed = sqs_record(came["MessageId"], came["Body"], eventSourceARN=arn, receiptHandle=came["ReceiptHandle"])
        answer = handler(sqs_event(failed), InvocationContext())
        assert answer == {"batchItemFailures": [{"itemIdentifier": came["MessageId"]}]}
        found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=15, AttributeNames=["All"])["Messages"]  # not after 20 s
        assert [each["MessageId"] for each in found] == [came["MessageId"]]


def test_a_relay_function_sends_what_a_dead_process_committed_to_entities(ministack_endpoint: str, tmp_path: Path) -> None:
    """And reports what is left. Nothing is delivered again."""
    place = Place(
        f"dynamodb://test:test@{REGION}/t{uuid4().hex[:12]}?endpoint={ministack_endpoint}", f"sqlite:///{tmp_path}/queue.db"
    )

    async def die() -> None:
        await create(place.store)
        async with receiving(place):
            await die_after_commit(place, "message=d1")

    async def waiting() -> int:
        async with receiving(place) as ledger:
            return (await ledger.depth(RECEIVER, ())).waiting

    asyncio.run(die())
    assert asyncio.run(waiting()) == 0
    answer = relay_handler(bank_at(*place, relay_after=3600.0))({}, InvocationContext())
    assert (answer["sent"], answer["left"], answer["not_searched"]) == (0, 1, "")
    answer = relay_handler(bank_at(*place, relay_after=0.001))({}, InvocationContext())
    assert (answer["sent"], answer["left"], answer["reason"], answer["not_searched"]) == (1, 0, "", "")
    assert asyncio.run(waiting()) == 1
    assert relay_handler(bank_at(*place, relay_after=0.001))({}, InvocationContext())["sent"] == 0
