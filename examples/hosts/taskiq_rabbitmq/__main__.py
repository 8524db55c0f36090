"""Run both applications on the local servers: `python -m examples.hosts.taskiq_rabbitmq`."""

from functools import partial
from typing import Any

from taskiq import TaskiqMessage

from examples.hosts import harness, rabbitmq
from examples.hosts.rabbitmq_tasks import TasksWire


def write(_: str, order_id: str) -> bytes:
    """Write a task to place an order, whose client has chosen its id."""
    message = TaskiqMessage(task_id=order_id, task_name="place_order", labels={}, args=[order_id], kwargs={})
    return message.model_dump_json().encode()


def read(body: bytes) -> harness.WireEvent:
    """Read a task to announce an order."""
    message = TaskiqMessage.model_validate_json(body)
    return harness.WireEvent(message.task_id, message.args[0])


def declared(queue: str) -> dict[str, dict[str, Any]]:
    """Return a queue, and that of the dead tasks of orders."""
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{queue}-dead", "x-queue-type": "quorum"}
    return {queue: to_dead, f"{queue}-dead": {"x-queue-type": "quorum"}}


HOST = harness.Host.of("examples.hosts.taskiq_rabbitmq", partial(TasksWire, write=write, read=read, declared=declared))

if __name__ == "__main__":
    harness.main(HOST, harness.Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL))
