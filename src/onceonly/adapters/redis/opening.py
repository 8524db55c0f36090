"""Opens queues on Redis."""

from onceonly.adapters.redis.address import read_address
from onceonly.adapters.redis.link import Link
from onceonly.adapters.redis.transport import RedisTransport
from onceonly.ports.environment import Clock, RandomSource
from onceonly.systems.shared import SharedQueues


async def _connect(url: str, _chance: RandomSource) -> Link:
    return Link(read_address(url))


def _queue(link: Link, endpoint: str, *, clock: Clock) -> RedisTransport:  # noqa: ARG001 - the server's clock decides
    return RedisTransport(link, endpoint)


QUEUES = SharedQueues(_connect, _queue)
