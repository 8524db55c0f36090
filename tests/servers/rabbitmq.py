"""A RabbitMQ server of the tests' own, where its programs are installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from examples.shop_demo import rabbitmq
from examples.shop_demo.rabbitmq import OwnRabbitMQ
from tests.servers.available import RABBITMQ, gone, want

__all__ = ["OwnRabbitMQ", "own_rabbitmq"]


@contextmanager
def own_rabbitmq() -> Iterator[OwnRabbitMQ]:
    """Make a server that is not started yet, and remove it at the end; a loud skip where there are no programs."""
    want(RABBITMQ.name)
    programs = rabbitmq.programs()
    if programs is None:
        raise gone(RABBITMQ, "RabbitMQ's own programs, rabbitmq-server and rabbitmqctl, are not installed")
    with rabbitmq.own_rabbitmq(*programs) as own:
        yield own
