"""Orders with aiobotocore: each order is a row, and an event. The row is committed, the event is sent, the message deleted."""

import asyncio
import json
from typing import Any

from aiobotocore.session import get_session  # type: ignore[import-untyped]
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from examples.hosts.sqs import KEY, REGION, SECRET

sessions = async_sessionmaker(create_async_engine(STORE))


async def place_order(order_id: str, sqs: Any, placed: str) -> None:
    """Write the row and announce it."""
    async with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    await sqs.send_message(QueueUrl=placed, MessageBody=json.dumps({"order_id": order_id}))


async def run() -> None:
    """Receive orders, 10 at a time."""
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    async with get_session().create_client("sqs", region_name=REGION, endpoint_url=BROKER, **keys) as sqs:
        orders, placed = [(await sqs.get_queue_url(QueueName=name))["QueueUrl"] for name in (ORDERS, PLACED)]
        while True:
            answer = await sqs.receive_message(QueueUrl=orders, MaxNumberOfMessages=10, WaitTimeSeconds=20)
            for message in answer.get("Messages", []):
                await place_order(json.loads(message["Body"])["order_id"], sqs, placed)
                await sqs.delete_message(QueueUrl=orders, ReceiptHandle=message["ReceiptHandle"])


def main() -> None:
    """Run the application."""
    asyncio.run(run())
