"""Orders with nats-py, exactly once: the row and the event are in one commit, and the message is acknowledged afterwards."""

import asyncio
from collections.abc import Sequence

import nats
from msgspec import Struct
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Context, Endpoint, Hosted, HostedMessage, IdentityField, Subject, WorkerSettings

LEASE_SECONDS = 5
shop = Endpoint(
    "shop",
    store=STORE,
    transport=BROKER,
    identity=IdentityField("order_id"),
    timeout=2.0,
    worker=WorkerSettings(grace=1.0),
    events={"OrderPlaced": Subject(PLACED)},
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


async def consume(subscription: JetStreamContext.PullSubscription, hosted: Hosted) -> None:
    """Handle messages in batches, and renew their leases meanwhile."""
    while True:
        try:
            fetched = await subscription.fetch(10, timeout=5)
        except TimeoutError:  # nothing arrived
            continue
        messages = [HostedMessage(m.data, m.headers or {}, deliveries=m.metadata.num_delivered, receipt=m) for m in fetched]
        outcomes = await hosted.handle(messages, extend=renew, every=LEASE_SECONDS / 3)
        for message, outcome in zip(fetched, outcomes, strict=True):
            if outcome.is_settled:
                await message.ack()
            else:
                await message.nak(delay=outcome.retry_after)


async def renew(messages: Sequence[HostedMessage]) -> None:
    """Begin the leases of these messages anew."""
    await asyncio.gather(*[message.receipt.in_progress() for message in messages])


async def run() -> None:
    """Pull orders, 10 at a time."""
    async with await nats.connect(BROKER) as client, shop.hosted() as hosted:
        config = ConsumerConfig(ack_wait=LEASE_SECONDS)
        await consume(await client.jetstream().pull_subscribe(ORDERS, durable=ORDERS, config=config), hosted)


def main() -> None:
    """Run the application."""
    asyncio.run(run())
