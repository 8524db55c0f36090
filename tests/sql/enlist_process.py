"""What runs in the process that is killed right after its commit: store, transport, orders."""

import asyncio
import os
import signal
import sys

from sqlalchemy.ext.asyncio import AsyncSession

from tests.sql.enlist_harness import OrderPlaced, endpoint, engine_of
from tests.sql.harness import Order


async def main(store: str, transport: str, *orders: str) -> None:
    """Place orders in one transaction, and die."""
    shop = endpoint(store, transport)
    async with shop.opened(), AsyncSession(engine_of(store)) as session:
        outgoing = shop.enlist(session)
        for order in orders:
            session.add(Order(id=order))
            outgoing.publish(OrderPlaced(order))
        await session.commit()
        os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main(*sys.argv[1:]))
