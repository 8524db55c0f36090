"""Orders with taskiq on RabbitMQ, exactly once: the row and the task are in one commit, with the task's id as key."""

import asyncio
from typing import Annotated, Any

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from taskiq import Context, TaskiqDepends, TaskiqMessage
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

import onceonly
from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

shop = onceonly.Endpoint("shop", store=STORE, transport=BROKER)
sessions = async_sessionmaker(create_async_engine(STORE))
exchange, dead = Exchange(name=f"{ORDERS}-exchange"), Queue(name=f"{ORDERS}-dead")
broker = AioPikaBroker(BROKER, exchange=exchange, task_queues=[Queue(name=ORDERS)], dead_letter_queue=dead)
others = AioPikaBroker(
    BROKER, exchange=exchange, task_queues=[Queue(name=PLACED)], dead_letter_queue=Queue(name=f"{PLACED}-dead")
)


def message_of(task: Any, *args: Any, **kwargs: Any) -> TaskiqMessage:
    """Return the message that `task.kiq(...)` sends."""
    own = {"task_id": task.broker.id_generator(), "task_name": task.task_name, "labels": task.labels}
    return TaskiqMessage(**own, args=list(args), kwargs=kwargs)


@broker.task("place_order")
async def place_order(order_id: str, context: Annotated[Context, TaskiqDepends()]) -> None:
    """Write the row, and have it announced."""
    async with sessions.begin() as session:
        entry = await shop.enlist(session, key=context.message.task_id)
        if not entry.is_known:
            session.add(Order(order_id=order_id))
            entry.send(message_of(announce, order_id), to=onceonly.Queue(PLACED))
    report(order_id)


@others.task("announce")
async def announce(order_id: str) -> None:
    """Run in the workers of another service."""


async def work() -> None:
    """Run a worker, as a process of taskiq's command line does."""
    async with shop.sending():
        await run_receiver_task(broker, run_startup=True)


def main() -> None:
    """Run the application."""
    asyncio.run(work())
