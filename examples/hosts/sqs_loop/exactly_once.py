"""Orders with aiobotocore, exactly once: the row and the event are in one commit, and the message is deleted afterwards."""

import asyncio
from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

from aiobotocore.session import get_session  # type: ignore[import-untyped]
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from examples.hosts.sqs import KEY, REGION, SECRET
from onceonly import Context, Endpoint, Hosted, HostedMessage, IdentityField, Queue, WorkerSettings

LEASE_SECONDS, MOST_SECONDS = 5, 6 * 3600  # SQS hides a message for 12 hours in all
shop = Endpoint(
    "shop",
    store=STORE,
    transport=f"sqs://{KEY}:{SECRET}@{REGION}?endpoint={BROKER}",
    identity=IdentityField("order_id"),
    timeout=2.0,
    worker=WorkerSettings(grace=1.0),
    events={"OrderPlaced": Queue(PLACED)},
)


class PlaceOrder(Struct):
    """A command of a client."""

    order_id: str


class OrderPlaced(Struct):
    """What other services learn."""

    order_id: str


@shop.handler
async def place_order(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    context.publish(OrderPlaced(order_id=order.order_id))
    report(order.order_id)


class SqsQueue(NamedTuple):
    """A queue, and what its messages need."""

    sqs: Any
    url: str

    async def receive(self) -> list[HostedMessage]:
        """Wait for messages, for 20 seconds at most."""
        answer = await self.sqs.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=20,
            MessageAttributeNames=["All"],
            AttributeNames=["ApproximateReceiveCount"],
        )
        return [
            HostedMessage(
                found["Body"].encode(),
                {name: value.get("StringValue") for name, value in found.get("MessageAttributes", {}).items()},
                id=found["MessageId"],
                deliveries=int(found["Attributes"]["ApproximateReceiveCount"]),
                receipt=found["ReceiptHandle"],
            )
            for found in answer.get("Messages", [])
        ]

    async def hide(self, message: HostedMessage, seconds: int) -> None:
        """Deliver a message again in this number of seconds, unless it is deleted or hidden again."""
        await self.sqs.change_message_visibility(QueueUrl=self.url, ReceiptHandle=message.receipt, VisibilityTimeout=seconds)

    async def renew(self, messages: Sequence[HostedMessage]) -> None:
        """Begin the leases of these messages anew."""
        await asyncio.gather(*[self.hide(message, LEASE_SECONDS) for message in messages])


async def consume(queue: SqsQueue, hosted: Hosted) -> None:
    """Handle messages in batches, and renew their leases meanwhile."""
    while True:
        messages = await queue.receive()
        outcomes = await hosted.handle(messages, extend=queue.renew, every=LEASE_SECONDS / 3)
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome.is_settled:
                await queue.sqs.delete_message(QueueUrl=queue.url, ReceiptHandle=message.receipt)
            else:
                await queue.hide(message, min(ceil(outcome.retry_after or 0), MOST_SECONDS))


async def run() -> None:
    """Receive orders, 10 at a time."""
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    connecting = get_session().create_client("sqs", region_name=REGION, endpoint_url=BROKER, **keys)
    async with connecting as sqs, shop.hosted() as hosted:
        await consume(SqsQueue(sqs, (await sqs.get_queue_url(QueueName=ORDERS))["QueueUrl"]), hosted)


def main() -> None:
    """Run the application."""
    asyncio.run(run())
