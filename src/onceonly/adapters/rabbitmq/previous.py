"""What the previous version left in its levels of delay, which all endpoints behind a prefix shared.

RabbitMQ does not select messages by their routing keys. So they are fetched, counted by destination, and returned. A message
that is fetched counts nowhere for that time, so only one process looks at a time: it holds a queue that is exclusive to its
connection. A message is not late by more than such a look takes.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiormq.exceptions import ChannelLockedResource
from pamqp import commands as spec

from onceonly.adapters.rabbitmq.link import MANY_ANSWERS_SECONDS, Channel, Link, shielded, translated
from onceonly.adapters.rabbitmq.names import TopologyNames
from onceonly.adapters.rabbitmq.topology import count
from onceonly.model.errors import CommitFailed, SetupError

MOST = 1000
"""Messages of a level that are looked at. What is behind them counts for every destination."""
PATIENCE_SECONDS = 10.0
PAUSE_SECONDS = 0.05


async def count_previous(link: Link, names: TopologyNames, words: Sequence[str], *, most: int = MOST) -> int:
    """Count what the shared levels keep for these destinations. Raises CommitFailed, also if others look all the time."""
    if not names.serves_previous or await count(link, names.previous.level(0)) is None:
        return 0
    async with link.looking, _alone(link, names), link.errand() as channel:
        total = 0
        for number in reversed(range(names.levels)):  # the way that messages go: none is overtaken
            total += await _count_level(channel, names.previous.level(number), words, most)
        return total


async def _count_level(channel: Channel, queue: str, words: Sequence[str], most: int) -> int:
    ends = tuple(f".{each}" for each in words)
    async with translated(f"read queue {queue!r}", definite=True, within=MANY_ANSWERS_SECONDS):
        waiting = (await shielded(channel.queue_declare(queue, passive=True))).message_count or 0
        looked, found, last = 0, 0, 0
        while looked < min(waiting, most):
            got = (await shielded(channel.basic_get(queue))).delivery
            if not isinstance(got, spec.Basic.GetOk):
                break  # they went on to the next level
            looked, last = looked + 1, got.delivery_tag or 0
            found += (got.routing_key or "").endswith(ends)
        if last:
            await shielded(channel.basic_nack(last, multiple=True, requeue=True))
    return found + max(0, waiting - most)


@asynccontextmanager
async def _alone(link: Link, names: TopologyNames) -> AsyncIterator[None]:
    """Wait until no other process looks. The lock ends with the connection, too."""
    clock = asyncio.get_running_loop().time
    end = clock() + PATIENCE_SECONDS
    while not await _locked(link, names):
        if clock() > end:
            raise CommitFailed(
                f"cannot read the delay queues of the previous version: another process held {names.looking!r}"
                f" for {PATIENCE_SECONDS:g} s"
            )
        await asyncio.sleep(PAUSE_SECONDS)
    try:
        yield
    finally:
        async with link.errand() as channel, translated("release the lock for reading delay queues", definite=True):
            await shielded(channel.queue_delete(names.looking))


async def _locked(link: Link, names: TopologyNames) -> bool:
    try:
        async with link.errand() as channel, translated("lock the delay queues for reading", definite=True):
            await shielded(channel.queue_declare(names.looking, exclusive=True))
    except SetupError as error:
        if isinstance(error.__cause__, ChannelLockedResource):
            return False
        raise
    return True
