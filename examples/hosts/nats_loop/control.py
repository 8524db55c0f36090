"""Orders with nats-py: each order is a row, and an event. The row is committed, the event is sent, the message acknowledged."""

import asyncio
import json

import nats
from nats.js import JetStreamContext
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

sessions = async_sessionmaker(create_async_engine(STORE))


async def place_order(order_id: str, jetstream: JetStreamContext) -> None:
    """Write the row and announce it."""
    async with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    await jetstream.publish(PLACED, json.dumps({"order_id": order_id}).encode())


async def run() -> None:
    """Pull orders, 10 at a time."""
    client = await nats.connect(BROKER)
    jetstream = client.jetstream()
    subscription = await jetstream.pull_subscribe(ORDERS, durable=ORDERS, config=nats.js.api.ConsumerConfig(ack_wait=5))
    while True:
        try:
            messages = await subscription.fetch(10, timeout=5)
        except TimeoutError:  # nothing arrived
            continue
        for message in messages:
            await place_order(json.loads(message.data)["order_id"], jetstream)
            await message.ack()


def main() -> None:
    """Run the application."""
    asyncio.run(run())
