"""Orders with aio-pika, exactly once: the row and the event are in one commit, and the message is acknowledged afterwards."""

import asyncio

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Context, Endpoint, Hosted, IdentityField, Queue, WorkerSettings

shop = Endpoint(
    "shop",
    store=STORE,
    transport=BROKER,
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


async def consume(queue: AbstractQueue, hosted: Hosted) -> None:
    """Handle messages side by side. One that waits for its next attempt does not stop the others."""

    async def settle(message: AbstractIncomingMessage) -> None:
        deliveries = 2 if message.redelivered else 1  # a quorum queue counts: headers.get("x-delivery-count", 0) + 1
        outcome = await hosted.handle_one(
            message.body, headers=message.headers, id=message.message_id or "", deliveries=deliveries
        )
        if outcome.is_settled:
            await message.ack()
        else:
            await asyncio.sleep(min(outcome.retry_after or 0, 600))  # RabbitMQ waits 30 minutes for an acknowledgement
            await message.reject(requeue=True)

    await queue.consume(settle)
    await asyncio.Future()


async def run() -> None:
    """Receive orders, 10 at a time."""
    async with await aio_pika.connect_robust(BROKER) as connection, shop.hosted() as hosted:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        await consume(await channel.declare_queue(ORDERS, durable=True), hosted)


def main() -> None:
    """Run the application."""
    asyncio.run(run())
