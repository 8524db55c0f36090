"""RabbitMQ as the world around an application sees it: a queue of orders, and a queue of what was placed."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import aio_pika

from examples.hosts.harness import WireEvent

URL = "amqp://guest:guest@127.0.0.1:5672/"


class RabbitMQWire:
    """Two queues of one run. An event's id is its `message_id`. `arguments` are those of the queue of orders."""

    arguments: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._orders, self._placed = f"{prefix}orders", f"{prefix}order-placed"
        self._events: list[WireEvent] = []

    async def prepare(self) -> None:
        """Declare both queues."""
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel()
        for name, arguments in ((self._orders, self.arguments), (self._placed, {})):
            await self._channel.declare_queue(name, durable=True, arguments=arguments)

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Send one message for each id, as a client without ids of its own does."""
        for each in order_ids:
            body = json.dumps({"order_id": each}).encode()
            await self._channel.default_exchange.publish(
                aio_pika.Message(body, content_type="application/json", delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
                self._orders,
            )

    async def waiting(self) -> int:
        """Count the messages that are ready: those in work come back when the process ends."""
        queue = await self._channel.declare_queue(self._orders, durable=True, passive=True)
        return queue.declaration_result.message_count or 0

    async def events(self) -> Sequence[WireEvent]:
        """Take what was published since the last call."""
        queue = await self._channel.get_queue(self._placed)
        while message := await queue.get(no_ack=True, fail=False):
            self._events.append(WireEvent(message.message_id or "", json.loads(message.body)["order_id"]))
        return self._events

    async def clean(self) -> None:
        """Delete both queues."""
        for name in (self._orders, self._placed):
            await self._channel.queue_delete(name)
        await self._connection.close()
