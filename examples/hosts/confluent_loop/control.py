"""Orders with confluent-kafka: the row is committed, then the event is sent. Offsets are committed every second."""

import json

from confluent_kafka import Consumer, Producer, TopicPartition
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import sessionmaker

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

SERVERS = BROKER.partition("://")[2]


def consume() -> None:
    """Handle one message after the other."""
    sessions = sessionmaker(create_engine(make_url(STORE).set(drivername="postgresql+psycopg")))
    consumer = Consumer(
        {
            "bootstrap.servers": SERVERS,
            "group.id": ORDERS,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1000,
        }
    )
    producer = Producer({"bootstrap.servers": SERVERS})
    consumer.assign([TopicPartition(ORDERS, each) for each in range(2)])
    while True:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        order = json.loads(message.value())
        with sessions.begin() as session:
            session.add(Order(order_id=order["order_id"]))
        report(order["order_id"])
        producer.produce(PLACED, json.dumps(order).encode())
        producer.flush()


def main() -> None:
    """Run the application."""
    consume()
