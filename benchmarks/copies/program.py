"""A process that handles orders and sends an event for each: `python -m benchmarks.copies.program WAY STORE TRANSPORT`.

`worker` handles them with an endpoint. `sending` receives them itself, opens a transaction for each, and leaves the events to
`shop.sending()`, as an application with a framework of its own does. With COPIES_CONTROL=1 no copy waits, and records are sent
and deleted by the hundred: a control run, which must show more repeated events.
"""

import asyncio
import json
import logging
import os
import sys
from dataclasses import dataclass

from onceonly import Context, Endpoint
from onceonly.assembly import open_transport
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Delivery
from onceonly.ports.transport import Transport
from onceonly.runtime.relay import relay
from onceonly.runtime.worker import batched_delete, dispatches

CONTROL = "COPIES_CONTROL"

RECEIVED_AT_ONCE = 100


@dataclass
class Place:
    """An order."""

    order: str


@dataclass
class Placed:
    """What follows from it."""

    order: str


def shop_on(store: str, transport: str) -> Endpoint:
    """Return the endpoint, with a handler."""
    shop = Endpoint("shop", store=store, transport=transport)

    async def place(order: Place, context: Context) -> None:
        context.send(Placed(order.order), to="billing")

    shop.handler(place)
    return shop


def without_care() -> None:
    """Make this process a control run."""
    dispatches.YOUNG_SECONDS = 0.0
    relay.FEW = batched_delete.FEW = relay.PAGE


async def work(store: str, transport: str) -> None:
    """Run the endpoint's worker, until killed."""
    async with shop_on(store, transport).running():
        await asyncio.Event().wait()


async def send(store: str, transport: str) -> None:
    """Receive as a framework does, and handle each delivery in a transaction, until killed."""
    shop = Endpoint("shop", store=store, transport=transport)

    async def handle(delivery: Delivery, queue: Transport) -> None:
        order = json.loads(delivery.body)["order"]
        try:
            async with shop.transaction(idempotency_key=order, request=order) as tx:
                if not tx.is_known:
                    tx.send(Placed(order), to="billing")
        except OnceOnlyError:  # another attempt has the key
            await queue.release([delivery])
        else:
            await queue.ack([delivery])

    async with shop.sending(), open_transport(transport, "intake") as queue:
        while True:
            received = await queue.receive(RECEIVED_AT_ONCE, 1.0)
            await asyncio.gather(*(handle(each, queue) for each in received))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    if os.environ.get(CONTROL):
        without_care()
    asyncio.run({"worker": work, "sending": send}[sys.argv[1]](*sys.argv[2:]))
