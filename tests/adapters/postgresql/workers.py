"""What runs in each of the competing processes."""

import asyncio
from multiprocessing.queues import Queue

from onceonly.runtime.environment import SystemClock
from onceonly.sql.database import open_database
from onceonly.sql.queue import SqlTransport


def work(url: str, results: "Queue[list[str]]") -> None:
    """Take and settle until nothing is left; gives the ids of what was taken."""
    results.put(asyncio.run(_drain(url)))


async def _drain(url: str) -> list[str]:
    database = await open_database(url, clock=SystemClock())
    transport = SqlTransport(database, "shop")
    taken: list[str] = []
    while deliveries := await transport.receive(7, 0.2):
        taken += [dict(delivery.headers)["ce-id"] for delivery in deliveries]
        await transport.ack(deliveries)
    await database.close()
    return taken
