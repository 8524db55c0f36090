"""Orders with aio-pika: each order is a row, and an event. Row, event and acknowledgement follow each other."""

import asyncio
import json

import aio_pika
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

sessions = async_sessionmaker(create_async_engine(STORE))


async def place_order(order_id: str, channel: aio_pika.abc.AbstractChannel) -> None:
    """Write the row and announce it."""
    async with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    body = json.dumps({"order_id": order_id}).encode()
    await channel.default_exchange.publish(aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), PLACED)


async def run() -> None:
    """Receive orders, 10 at a time."""
    async with await aio_pika.connect_robust(BROKER) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue(ORDERS, durable=True)
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process(requeue=True):
                    await place_order(json.loads(message.body)["order_id"], channel)


def main() -> None:
    """Run the application."""
    asyncio.run(run())
