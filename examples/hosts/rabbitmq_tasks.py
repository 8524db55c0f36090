"""Queues of task libraries on RabbitMQ as the world around an application sees them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aio_pika

from examples.hosts.harness import WireEvent
from examples.hosts.rabbitmq import RabbitMQWire


class TasksWire(RabbitMQWire):
    """Queues of tasks. A client gives each task the id of its order. An event's id is that of its task.

    `write` makes the body of a task from the name of its queue and the order, `read` reads one. `declared` returns the
    queues that belong to a queue of tasks, with their arguments.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        *,
        write: Callable[[str, str], bytes],
        read: Callable[[bytes], WireEvent],
        declared: Callable[[str], Mapping[str, dict[str, Any]]],
    ) -> None:
        super().__init__(url, prefix)
        self._write, self._read = write, read
        self._queues = {name: arguments for each in (self._orders, self._placed) for name, arguments in declared(each).items()}

    async def prepare(self) -> None:
        """Declare the queues as the library does."""
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel()
        for name, arguments in self._queues.items():
            await self._channel.declare_queue(name, durable=True, arguments=arguments)

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Send one task for each id."""
        for each in order_ids:
            message = aio_pika.Message(self._write(self._orders, each), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await self._channel.default_exchange.publish(message, self._orders)

    async def waiting(self) -> int:
        """Count the tasks that are ready, or delayed."""
        ready = 0
        for name in self._queues:
            if name.startswith(self._orders):
                found = await self._channel.declare_queue(name, durable=True, passive=True)
                ready += found.declaration_result.message_count or 0
        return ready

    async def events(self) -> Sequence[WireEvent]:
        """Take the tasks that were sent since the last call."""
        queue = await self._channel.get_queue(self._placed)
        while message := await queue.get(no_ack=True, fail=False):
            self._events.append(self._read(message.body))
        return self._events

    async def clean(self) -> None:
        """Delete the queues, and the exchange that taskiq declares."""
        for name in self._queues:
            await self._channel.queue_delete(name)
        await self._channel.exchange_delete(f"{self._orders}-exchange")
        await self._connection.close()
