"""A client that opens a transaction for each order, and a worker that receives their control messages.

`python -m tests.faults.control_program client POINT TIMES ORDER...` prints the orders that are done. When it reaches the crash
point POINT for the TIMES-th time, it ends as if it was killed. `... worker` runs until it is killed. No relay takes a record.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Column, Integer, MetaData, String, Table, insert

from onceonly import ControlMessages, Endpoint
from onceonly.endpoint.host import host_of
from onceonly.runtime.observe.observer import PortCall

DELAYS = (timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4))
metadata = MetaData()
orders = Table(
    "control_orders", metadata, Column("line", Integer, primary_key=True, autoincrement=True), Column("id", String(40))
)


@dataclass
class Placed:
    """What follows from an order."""

    order: str


@dataclass
class Anything:
    """A message that the worker could handle. Nobody sends one."""

    id: str


class KillAt:
    """An observer that kills this process at a crash point."""

    def __init__(self, point: str, times: int) -> None:
        self._point, self._left = point, times

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Die before the call, or after it."""
        self._reach(f"before-{call.point}")
        yield
        self._reach(f"after-{call.point}")

    def _reach(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def shop_of_environment() -> Endpoint:
    """Return the endpoint. Without CONTROL_MESSAGES=1 it sends no control messages: the control run."""
    endpoint = Endpoint(
        "shop",
        store=os.environ["CONTROL_STORE"],
        transport=os.environ["CONTROL_TRANSPORT"],
        metadata=metadata,
        max_commit=timedelta(seconds=5),
        relay_after=86_400,  # no relay takes a record in this test
        control=ControlMessages(delays=DELAYS, max_commit=timedelta(seconds=5))
        if os.environ.get("CONTROL_MESSAGES") == "1"
        else None,
    )

    @endpoint.handler
    async def never(message: Anything) -> None:
        raise AssertionError(message)

    return endpoint


async def place(point: str, times: int, *names: str) -> None:
    """Open a transaction for each order. Every second one has a key: a client can repeat it."""
    shop = shop_of_environment()
    async with host_of(shop).opened(observer=KillAt(point, times)):
        for name in names:
            print(f"begin {name}", flush=True)  # noqa: T201 - the test reads it
            async with shop.transaction(idempotency_key=name if name.startswith("keyed") else None) as tx:
                if not tx.is_known:
                    await tx.sql.execute(insert(orders).values(id=name))
                    tx.send(Placed(name), to="billing")
            print(f"done {name}", flush=True)  # noqa: T201 - the same


async def work() -> None:
    """Receive control messages."""
    async with shop_of_environment().running():
        print("ready", flush=True)  # noqa: T201 - the same
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work() if sys.argv[1] == "worker" else place(sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
