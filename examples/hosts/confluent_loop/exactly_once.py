"""Orders with confluent-kafka, exactly once: its consumer blocks, so it is called in threads."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
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


def place_of(record: Message) -> TopicPartition:
    """Return the place of a message."""
    return TopicPartition(record.topic(), record.partition(), record.offset())


async def consume(consumer: Consumer) -> None:
    """Hand over what arrives."""
    async with shop.hosted() as hosted:
        while True:
            records = [each for each in await asyncio.to_thread(consumer.consume, 50, 1.0) if not each.error()]
            parts = [(each.value(), each.headers() or (), f"{each.partition()}:{each.offset()}") for each in records]
            given = [HostedMessage(*each, 1, ORDERS) for each in parts]
            behind: set[int] = set()  # partitions in which a message must be delivered again
            for record, outcome in zip(records, await hosted.handle(given), strict=True):
                with suppress(KafkaException):  # the partition has another owner by now
                    if outcome.is_settled and record.partition() not in behind:
                        consumer.store_offsets(record)
                    elif record.partition() not in behind:
                        behind.add(record.partition())
                        put_off(consumer, place_of(record), outcome.retry_after or 0.0)
            with suppress(KafkaException):
                await asyncio.to_thread(consumer.commit, asynchronous=False)


def put_off(consumer: Consumer, place: TopicPartition, seconds: float) -> None:
    """Deliver a message again, and what follows it, after some time."""
    consumer.seek(place)
    consumer.pause([place])
    asyncio.get_running_loop().call_later(seconds, consumer.resume, [place])


def main() -> None:
    """Run the application."""
    consumer = Consumer(
        {
            "bootstrap.servers": BROKER.partition("://")[2],
            "group.id": ORDERS,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
    )
    consumer.assign([TopicPartition(ORDERS, each) for each in range(2)])  # subscribe([ORDERS]) shares them between processes
    asyncio.run(consume(consumer))
