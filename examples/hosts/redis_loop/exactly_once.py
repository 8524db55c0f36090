"""Orders with redis-py, exactly once: the row and the event are in one commit, and the entry is acknowledged afterwards."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Context, Endpoint, Hosted, HostedMessage, IdentityField, Stream, WorkerSettings

LEASE = 5000  # milliseconds
shop = Endpoint(
    "shop",
    store=STORE,
    transport=BROKER,
    identity=IdentityField("order_id"),
    timeout=2.0,
    worker=WorkerSettings(grace=1.0),
    events={"OrderPlaced": Stream(PLACED)},
)


class PlaceOrder(Struct):
    """A command of a client."""

    order_id: str


class OrderPlaced(Struct):
    """What other services learn."""

    order_id: str


@shop.handler
async def place_order(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    context.publish(OrderPlaced(order_id=order.order_id))
    report(order.order_id)


class Group(NamedTuple):
    """A consumer of a group. XCLAIM with JUSTID sets how long an entry has been idle, and counts no delivery."""

    redis: Any
    stream: str
    name: str
    consumer: str

    async def messages(self, id_: str, fields: dict[str, str]) -> list[HostedMessage]:
        """Return an entry as a message. Empty if it was deleted, or acknowledged elsewhere."""
        pending = await self.redis.xpending_range(self.stream, self.name, id_, id_, 1) if fields else ()
        body = fields.get("data", "").encode()
        return [HostedMessage(body, fields, deliveries=each["times_delivered"], receipt=id_) for each in pending]

    async def hold(self, id_: str, idle: int = 0) -> None:
        """Set how many milliseconds an entry has been idle."""
        await self.redis.xclaim(self.stream, self.name, self.consumer, 0, [id_], idle=idle, justid=True)

    async def renew(self, messages: Sequence[HostedMessage]) -> None:
        """Begin the leases of these entries anew."""
        await asyncio.gather(*[self.hold(message.receipt) for message in messages])


async def consume(group: Group, hosted: Hosted) -> None:
    """Handle new entries, those of consumers that died, and those whose next attempt is due."""
    cursor = "0-0"
    while True:
        cursor, entries, _ = await group.redis.xautoclaim(group.stream, group.name, group.consumer, LEASE, cursor, count=10)
        new = await group.redis.xreadgroup(group.name, group.consumer, {group.stream: ">"}, 10, block=500)
        entries += [entry for _, some in new for entry in some]
        messages = [message for id_, fields in entries for message in await group.messages(id_, fields)]
        outcomes = await hosted.handle(messages, extend=group.renew, every=LEASE / 3000)
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome.is_settled:
                await group.redis.xack(group.stream, group.name, message.receipt)
            else:  # due when it has been idle for as long as the lease
                await group.hold(message.receipt, max(0, LEASE - round(1000 * (outcome.retry_after or 0))))


async def run() -> None:
    """Read orders, 10 at a time."""
    async with Redis.from_url(BROKER, decode_responses=True) as redis, shop.hosted() as hosted:
        await consume(Group(redis, ORDERS, ORDERS, str(os.getpid())), hosted)


def main() -> None:
    """Run the application."""
    asyncio.run(run())
