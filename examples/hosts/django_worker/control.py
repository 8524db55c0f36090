"""Orders with pika and Django's ORM: row, event and acknowledgement follow each other."""

import json
import os
from typing import Any

import django
import pika
from django.db import transaction

from examples.hosts.program import BROKER, ORDERS, PLACED, report

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.hosts.django_worker.settings")
django.setup()

from examples.hosts.django_worker.models import Order  # noqa: E402 - Django is set up before


@transaction.atomic
def place_order(order_id: str) -> Order:
    """Write the row."""
    order = Order.objects.create(order_id=order_id)
    report(order_id)
    return order


def main() -> None:
    """Receive orders, 10 at a time."""
    channel = pika.BlockingConnection(pika.URLParameters(BROKER)).channel()
    channel.basic_qos(prefetch_count=10)

    def handle(_channel: Any, delivery: Any, _properties: Any, body: bytes) -> None:
        order = place_order(json.loads(body)["order_id"])
        channel.basic_publish("", PLACED, json.dumps({"order_id": order.order_id}))
        channel.basic_ack(delivery.delivery_tag)

    channel.basic_consume(ORDERS, handle)
    channel.start_consuming()


if __name__ == "__main__":
    main()
