"""Orders with redis-py: each order is a row, and an event. The row is committed, the event is sent, the entry acknowledged."""

import asyncio
import json
import os

from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

LEASE = 5000  # milliseconds
sessions = async_sessionmaker(create_async_engine(STORE))


async def place_order(order_id: str, redis: Redis) -> None:
    """Write the row and announce it."""
    async with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    await redis.xadd(PLACED, {"data": json.dumps({"order_id": order_id})})


async def run() -> None:
    """Read orders, 10 at a time, and those of consumers that died."""
    name, cursor = str(os.getpid()), "0-0"
    async with Redis.from_url(BROKER, decode_responses=True) as redis:
        while True:
            cursor, entries, _ = await redis.xautoclaim(ORDERS, ORDERS, name, LEASE, cursor, count=10)
            for _, some in await redis.xreadgroup(ORDERS, name, {ORDERS: ">"}, 10, block=500):
                entries += some
            for entry, fields in entries:
                await place_order(json.loads(fields["data"])["order_id"], redis)
                await redis.xack(ORDERS, ORDERS, entry)


def main() -> None:
    """Run the application."""
    asyncio.run(run())
