"""Opens queues on NATS JetStream."""

from onceonly.adapters.nats.address import read_address
from onceonly.adapters.nats.link import Link
from onceonly.adapters.nats.transport import NatsTransport
from onceonly.ports.environment import RandomSource
from onceonly.systems.shared import SharedQueues


async def _connect(url: str, chance: RandomSource) -> Link:
    return Link(read_address(url), chance)


QUEUES = SharedQueues(_connect, NatsTransport)
