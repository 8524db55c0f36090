"""Orders with aiokafka: the row is committed, then the event is sent. Offsets are committed every second."""

import asyncio
import json

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

SERVERS = BROKER.partition("://")[2]
sessions = async_sessionmaker(create_async_engine(STORE))


async def consume() -> None:
    """Handle one message after the other."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=SERVERS, group_id=ORDERS, auto_offset_reset="earliest", auto_commit_interval_ms=1000
    )
    consumer.assign([TopicPartition(ORDERS, each) for each in range(2)])
    async with consumer, AIOKafkaProducer(bootstrap_servers=SERVERS) as producer:
        async for message in consumer:
            order = json.loads(message.value)
            async with sessions.begin() as session:
                session.add(Order(order_id=order["order_id"]))
            report(order["order_id"])
            await producer.send_and_wait(PLACED, json.dumps(order).encode())


def main() -> None:
    """Run the application."""
    asyncio.run(consume())
