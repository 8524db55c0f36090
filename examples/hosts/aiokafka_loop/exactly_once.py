"""Orders with aiokafka, exactly once: offsets are committed up to the first message that must be delivered again."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Context, Endpoint, Hosted, HostedMessage, IdentityField, Topic

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


async def consume(consumer: AIOKafkaConsumer, hosted: Hosted) -> None:
    """Handle messages in batches. One that must come again holds back those behind it in its partition."""
    while True:
        for place, records in (await consumer.getmany(timeout_ms=1000, max_records=10)).items():
            outcomes = await hosted.handle([message_of(record) for record in records])
            again = next((pair for pair in zip(records, outcomes, strict=True) if not pair[1].is_settled), None)
            with suppress(CommitFailedError, IllegalStateError):  # another process has the partition now
                if again:
                    put_off(consumer, place, again[0].offset, again[1].retry_after or 0.0)
                await consumer.commit({place: again[0].offset if again else records[-1].offset + 1})


def message_of(record: ConsumerRecord) -> HostedMessage:
    """Return a record as a message. Kafka counts no deliveries."""
    return HostedMessage(record.value or b"", record.headers, f"{record.partition}:{record.offset}", queue=record.topic)


def put_off(consumer: AIOKafkaConsumer, place: TopicPartition, offset: int, seconds: float) -> None:
    """Deliver a message again after some time, and then those behind it."""

    def resume() -> None:
        with suppress(IllegalStateError):
            consumer.resume(place)

    consumer.seek(place, offset)
    consumer.pause(place)
    asyncio.get_running_loop().call_later(seconds, resume)


async def run() -> None:
    """Take both partitions, and consume. `subscribe([ORDERS])` shares them between processes."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=BROKER.partition("://")[2],
        group_id=ORDERS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.assign([TopicPartition(ORDERS, each) for each in range(2)])
    async with consumer, shop.hosted() as hosted:
        await consume(consumer, hosted)


def main() -> None:
    """Run the application."""
    asyncio.run(run())
