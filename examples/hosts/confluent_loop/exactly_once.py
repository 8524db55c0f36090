"""Orders with confluent-kafka, exactly once: its consumer blocks, so it is called in threads."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
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


async def consume(consumer: Consumer, hosted: Hosted) -> None:
    """Handle messages in batches. One that must come again holds back those behind it in its partition."""
    while True:
        records = [each for each in await asyncio.to_thread(consumer.consume, 10, 1.0) if not each.error()]
        outcomes = await hosted.handle([message_of(record) for record in records])
        held: set[tuple[str | None, int | None]] = set()
        for record, outcome in zip(records, outcomes, strict=True):
            place = record.topic(), record.partition()
            with suppress(KafkaException):  # another process has the partition now
                if outcome.is_settled and place not in held:
                    consumer.store_offsets(record)
                elif place not in held:
                    held.add(place)
                    put_off(consumer, record, outcome.retry_after or 0.0)
        with suppress(KafkaException):
            await asyncio.to_thread(consumer.commit, asynchronous=False)


def message_of(record: Message) -> HostedMessage:
    """Return a record as a message. Kafka counts no deliveries."""
    id_ = f"{record.partition()}:{record.offset()}"
    return HostedMessage(record.value() or b"", record.headers() or (), id_, queue=record.topic() or "")


def put_off(consumer: Consumer, record: Message, seconds: float) -> None:
    """Deliver a message again after some time, and then those behind it."""
    place = TopicPartition(record.topic(), record.partition(), record.offset())
    consumer.seek(place)
    consumer.pause([place])
    asyncio.get_running_loop().call_later(seconds, consumer.resume, [place])


async def run() -> None:
    """Take both partitions, and consume. `subscribe([ORDERS])` shares them between processes."""
    consumer = Consumer(
        {
            "bootstrap.servers": BROKER.partition("://")[2],
            "group.id": ORDERS,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
    )
    consumer.assign([TopicPartition(ORDERS, each) for each in range(2)])
    async with shop.hosted() as hosted:
        await consume(consumer, hosted)


def main() -> None:
    """Run the application."""
    asyncio.run(run())
