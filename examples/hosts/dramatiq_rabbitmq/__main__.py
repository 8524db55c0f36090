"""Run both applications on the local servers: `python -m examples.hosts.dramatiq_rabbitmq`."""

from functools import partial
from typing import Any

from dramatiq import Message
from dramatiq.common import dq_name, xq_name

from examples.hosts import harness, rabbitmq
from examples.hosts.rabbitmq_tasks import TasksWire


def write(queue: str, order_id: str) -> bytes:
    """Write a task to place an order, whose client has chosen its id."""
    message: Message[None] = Message(queue, "place_order", (order_id,), {}, {}, message_id=order_id)
    return message.encode()


def read(body: bytes) -> harness.WireEvent:
    """Read a task to announce an order."""
    message: Message[None] = Message.decode(body)
    return harness.WireEvent(message.message_id, message.args[0])


def declared(queue: str) -> dict[str, dict[str, Any]]:
    """Return a queue with those of its delayed and its dead tasks. A dead task is kept for seven days."""
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": xq_name(queue)}
    return {queue: to_dead, dq_name(queue): to_dead, xq_name(queue): {"x-message-ttl": 7 * 24 * 3600 * 1000}}


HOST = harness.Host.of("examples.hosts.dramatiq_rabbitmq", partial(TasksWire, write=write, read=read, declared=declared))

if __name__ == "__main__":
    harness.main(HOST, harness.Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL))
