"""Opens queues on RabbitMQ."""

from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import Link
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.ports.environment import RandomSource
from onceonly.systems.shared import SharedQueues


async def _connect(url: str, chance: RandomSource) -> Link:
    return Link(read_address(url), chance)


QUEUES = SharedQueues(_connect, RabbitMQTransport)
