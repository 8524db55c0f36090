"""Orders with taskiq on RabbitMQ: each order is a row, committed first, and a task to announce it, sent then."""

import asyncio

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

sessions = async_sessionmaker(create_async_engine(STORE))
exchange, dead = Exchange(name=f"{ORDERS}-exchange"), Queue(name=f"{ORDERS}-dead")
broker = AioPikaBroker(BROKER, exchange=exchange, task_queues=[Queue(name=ORDERS)], dead_letter_queue=dead)
others = AioPikaBroker(
    BROKER, exchange=exchange, task_queues=[Queue(name=PLACED)], dead_letter_queue=Queue(name=f"{PLACED}-dead")
)


@broker.task("place_order")
async def place_order(order_id: str) -> None:
    """Write the row, and have it announced."""
    async with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    await announce.kiq(order_id)


@others.task("announce")
async def announce(order_id: str) -> None:
    """Run in the workers of another service."""


async def work() -> None:
    """Run a worker, as a process of taskiq's command line does."""
    await others.startup()
    await run_receiver_task(broker, run_startup=True)


def main() -> None:
    """Run the application."""
    asyncio.run(work())
