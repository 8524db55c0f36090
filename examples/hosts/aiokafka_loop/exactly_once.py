"""Orders with aiokafka, exactly once: offsets are committed up to the first message that must be delivered again."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Context, Endpoint, HostedMessage, IdentityField, Topic

shop = Endpoint(
    "shop", store=STORE, transport=BROKER, identity=IdentityField("order_id"), events={"OrderPlaced": Topic(PLACED)}
)


@dataclass
class PlaceOrder:
    """A command of a client."""

    order_id: str


@dataclass
class OrderPlaced:
    """What other services learn."""

    order_id: str


@shop.handler
async def place_order(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    report(order.order_id)
    context.publish(OrderPlaced(order_id=order.order_id))


async def consume(consumer: AIOKafkaConsumer) -> None:
    """Hand over what arrives."""
    async with shop.hosted() as hosted:
        while True:
            for place, records in (await consumer.getmany(timeout_ms=1000, max_records=50)).items():
                ids = [f"{each.partition}:{each.offset}" for each in records]
                given = [HostedMessage(r.value, r.headers, id_, 1, r.topic) for r, id_ in zip(records, ids, strict=True)]
                outcomes = await hosted.handle(given)
                again = next((pair for pair in zip(records, outcomes, strict=True) if not pair[1].is_settled), None)
                end = again[0].offset if again else records[-1].offset + 1
                with suppress(CommitFailedError, IllegalStateError):  # another process has the partition now
                    await consumer.commit({place: end})
                    if again:
                        consumer.seek(place, end)
                        consumer.pause(place)
                        asyncio.get_running_loop().call_later(again[1].retry_after, consumer.resume, place)


async def run() -> None:
    """Take both partitions, and consume. `subscribe([ORDERS])` shares them between processes."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=BROKER.partition("://")[2],
        group_id=ORDERS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.assign([TopicPartition(ORDERS, each) for each in range(2)])
    async with consumer:
        await consume(consumer)


def main() -> None:
    """Run the application."""
    asyncio.run(run())
