"""The world around a host: clients that send orders, some of them twice, and a receiver of what was placed."""

import asyncio
import heapq
import random
import time
from collections import defaultdict
from typing import Any

import aio_pika
import msgspec
from aio_pika.abc import AbstractIncomingMessage

from benchmarks.soak.plan import SoakPlan

__all__ = ["World"]

COPIES_OF = 5
LONGEST_COPY_SECONDS = 20.0
MOST_WAITING = 200
"""Messages in the queues from which on clients wait: what is behind for longer than the retention would not be known."""
TICK_SECONDS = 0.05


class World:
    """Both sides of the queues of one run."""

    _connection: Any
    _channel: Any
    _placed: Any
    _tag: Any

    def __init__(self, plan: SoakPlan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)  # noqa: S311 - not a secret
        self.sent: dict[str, set[str]] = {plan.orders: set(), plan.requests: set()}
        self.events: dict[tuple[str, str], set[str]] = defaultdict(set)
        """The ids of the events of each order and step."""
        self.received = 0
        self._copies: list[tuple[float, str, str]] = []

    async def open(self) -> None:
        """Declare the queues and begin to receive events."""
        self._connection = await aio_pika.connect(self._plan.broker)
        self._channel = await self._connection.channel()
        for name in (self._plan.orders, self._plan.requests, self._plan.placed):
            await self._channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        self._placed = await self._channel.get_queue(self._plan.placed)
        self._tag = await self._placed.consume(self._learn, no_ack=True)

    async def close(self) -> None:
        """Delete the queues."""
        await self._placed.cancel(self._tag)
        for name in (self._plan.orders, self._plan.requests, self._plan.placed):
            await self._channel.queue_delete(name)
        await self._connection.close()

    async def waiting(self) -> int:
        """Count the messages that are ready in the host's queues. What is in work is not counted."""
        counts = []
        for name in (self._plan.orders, self._plan.requests):
            declared = await self._channel.declare_queue(name, durable=True, passive=True)
            counts.append(declared.declaration_result.message_count or 0)
        return sum(counts)

    async def feed(self, stop: asyncio.Event) -> None:
        """Send orders and requests at their rates until the stop, and then the copies that are left."""
        rates = {self._plan.orders: self._plan.orders_rate, self._plan.requests: self._plan.requests_rate}
        due = dict.fromkeys(rates, 0.0)
        number, last = 0, time.monotonic()
        while not stop.is_set():
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            elapsed, last = min(now - last, 1.0), now
            await self._send_copies(now)
            if not number % 20 and await self.waiting() > MOST_WAITING:
                continue
            for queue, rate in rates.items():
                due[queue] += rate * elapsed
                while due[queue] >= 1:
                    due[queue] -= 1
                    number += 1
                    await self._send_new(queue, f"order-{number:07}", now)
        await self._send_copies(float("inf"))

    async def _send_new(self, queue: str, order_id: str, now: float) -> None:
        self.sent[queue].add(order_id)
        await self._send(queue, order_id)
        if not self._random.randrange(COPIES_OF):
            heapq.heappush(self._copies, (now + self._random.uniform(0, LONGEST_COPY_SECONDS), queue, order_id))

    async def _send_copies(self, now: float) -> None:
        while self._copies and self._copies[0][0] <= now:
            _, queue, order_id = heapq.heappop(self._copies)
            await self._send(queue, order_id)

    async def _send(self, queue: str, order_id: str) -> None:
        body: object = {"order_id": order_id}
        options: dict[str, Any] = {}
        if self._plan.host == "celery":
            body = [[order_id], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
            headers = {"lang": "py", "task": "place", "id": order_id, "root_id": order_id, "argsrepr": "", "kwargsrepr": ""}
            options = {"headers": headers, "correlation_id": order_id, "content_encoding": "utf-8"}
        message = aio_pika.Message(
            msgspec.json.encode(body),
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            **options,
        )
        await self._channel.default_exchange.publish(message, queue)

    async def _learn(self, message: AbstractIncomingMessage) -> None:
        body = msgspec.json.decode(message.body)
        self.received += 1
        self.events[body["order_id"], body["step"]].add(message.message_id or f"none-{self.received}")
