"""The other service, without onceonly: a plain consumer that books each event once, by its id.

It writes a row for each id, and counts how often the id has come. Events without an id are new ones to it.
"""

import json
from typing import Any
from uuid import uuid4

import pika
import psycopg

from examples.hosts.program import BROKER, PLACED, PREFIX, STORE

EXCHANGE = f"{PREFIX}onceonly:event:OrderPlaced"
TABLE = """
    CREATE TABLE IF NOT EXISTS bookings (
        event_id text PRIMARY KEY, order_id text NOT NULL, number bigint NOT NULL, deliveries int NOT NULL DEFAULT 1
    )
"""
BOOK = """
    INSERT INTO bookings (event_id, order_id, number) VALUES (%s, %s, %s)
    ON CONFLICT (event_id) DO UPDATE SET deliveries = bookings.deliveries + 1
"""


def main() -> None:
    """Book what comes, until SIGTERM."""
    database = psycopg.connect(STORE.replace("+asyncpg", ""), autocommit=True)
    database.execute(TABLE)
    channel = pika.BlockingConnection(pika.URLParameters(BROKER)).channel()
    channel.queue_declare(PLACED, durable=True)
    channel.exchange_declare(EXCHANGE, "fanout", durable=True)
    channel.queue_bind(PLACED, EXCHANGE)
    channel.basic_qos(prefetch_count=20)

    def book(_channel: Any, delivery: Any, properties: Any, body: bytes) -> None:
        event = json.loads(body)
        event_id = properties.message_id or (properties.headers or {}).get("ce-id") or uuid4().hex
        database.execute(BOOK, (event_id, event["order_id"], event["number"]))
        channel.basic_ack(delivery.delivery_tag)

    channel.basic_consume(PLACED, book)
    print("ready", flush=True)
    channel.start_consuming()


if __name__ == "__main__":
    main()
