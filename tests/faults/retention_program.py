"""A worker that keeps claims for some seconds, until it is killed. `python -m tests.faults.retention_program`.

An operator changes for how many while it works.
"""

import asyncio
import os
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly import Endpoint, History, Off, Retry

RETENTION = timedelta(seconds=36)
"""What the code asks for: slices of three seconds. It is longer than a message waits while all workers are dead."""
metadata = MetaData()
handled = Table(
    "retention_handled", metadata, Column("line", Integer, primary_key=True, autoincrement=True), Column("id", String(20))
)


@dataclass
class Order:
    """Something to handle once."""

    id: str


def shop_of_environment() -> Endpoint:
    """Return the endpoint. With RETENTION_OFF=1 it recognizes no copy: the control run."""
    endpoint = Endpoint(
        "shop",
        store=os.environ["RETENTION_STORE"],
        transport=os.environ["RETENTION_TRANSPORT"],
        metadata=metadata,
        deduplication=Off() if os.environ.get("RETENTION_OFF") == "1" else History(retention=RETENTION),
        retry=Retry(immediate=0, delayed=1, first_delay=0.1, max_delay=0.1),
        timeout=2,
        max_commit=timedelta(seconds=5),
        manual_retry=timedelta(0),
        janitor_interval=timedelta(seconds=0.3),
        relay_after=1,
    )

    @endpoint.handler
    async def handle(order: Order, connection: AsyncConnection) -> None:
        await connection.execute(insert(handled).values(id=order.id))

    return endpoint


async def work() -> None:
    """Handle orders."""
    async with shop_of_environment().running():
        print("ready", flush=True)  # noqa: T201 - the test reads it
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work())
