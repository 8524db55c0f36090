"""The depth of a queue: RabbitMQ does not tell over AMQP what its consumers hold, so they are asked.

Each process that receives answers, on its receiving connection, how many deliveries it has in work and how many wait with
it. The queue reports how many consumers must answer. A silent one that stays counts as holding a delivery.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from onceonly.adapters.rabbitmq.inbox import RabbitMQInbox
from onceonly.adapters.rabbitmq.link import (
    CLOSE_SECONDS,
    Brought,
    Channel,
    Properties,
    RabbitMQLink,
    is_open,
    publish,
    shielded,
    translated,
)
from onceonly.adapters.rabbitmq.names import RabbitMQNames, command, event
from onceonly.adapters.rabbitmq.publisher import PublishOutcome, PublishRequest
from onceonly.adapters.rabbitmq.topology import count, count_delayed
from onceonly.model.errors import RetryableError
from onceonly.ports.transport import Depth
from onceonly.queues.messages import queue_missing

ANSWER_SECONDS = 1.0  # for the receivers to answer
REPLIES = "amq.rabbitmq.reply-to"
RECOUNT_SECONDS = 0.1  # until those that did not answer are counted again
MOST_LOOKS = 5


class ConsumerCounts(Struct, frozen=True):
    """What one process holds: deliveries in work, deliveries that wait with it, its consumers, and all it ever got."""

    held: int
    waiting: int
    consumers: int
    brought: int


class DepthSample(Struct, frozen=True):
    """What one look found; `replies` shows whether anything moved since another."""

    waiting: int
    held: int
    delayed: int
    replies: tuple[ConsumerCounts, ...]


class QueueDepth:
    """Answers for one inbox, and asks all that there are of an endpoint."""

    def __init__(self, link: RabbitMQLink, names: RabbitMQNames, endpoint: str, inbox: RabbitMQInbox) -> None:
        self._link = link
        self._names = names
        self._endpoint = endpoint
        self._inbox = inbox
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()

    async def answer_requests(self) -> None:
        """Make sure that this process is asked. Raises CommitFailed when the server is away."""
        if not is_open(self._channel):
            await shielded(self._consume_requests())

    async def measure(self, endpoint: str, events: Sequence[str]) -> Depth:
        """Count what waits, is held and is delayed for an endpoint, with delayed events of these types.

        Raises SetupError when it has no queue.

        Messages move while they are counted. That nothing waits and nothing is held is said only when two looks agree and
        nothing moved between them; one that was on its way from level to level, or to the queue, during both is missed.
        """
        before = None
        destinations = [command(endpoint), *map(event, events)]
        look = await self._sample(endpoint, destinations)
        for _ in range(MOST_LOOKS - 1):
            if look.waiting or look.held or look == before:
                break
            before, look = look, await self._sample(endpoint, destinations)
        return Depth(waiting=look.waiting, held=look.held, delayed=look.delayed)

    async def close(self) -> None:
        if self._channel is not None and is_open(self._channel):
            with suppress(RetryableError):
                async with translated("close a channel", within=CLOSE_SECONDS):
                    await shielded(self._channel.close())

    async def _sample(self, endpoint: str, destinations: Sequence[str]) -> "DepthSample":
        queue = self._names.queue(endpoint)
        delayed = await count_delayed(self._link, self._names, destinations)  # first: what falls due meanwhile is counted below
        ready, consumers = await self._count(queue)
        replies: list[ConsumerCounts] = []
        if consumers:  # one counts as long as it holds any
            ready, consumers, replies = await self._ask(endpoint, consumers)
        return DepthSample(
            waiting=ready + sum(reply.waiting for reply in replies),
            held=sum(reply.held for reply in replies) + max(0, consumers - _answered(replies)),
            delayed=delayed,
            replies=tuple(sorted(replies, key=lambda reply: (reply.brought, reply.consumers))),
        )

    async def _count(self, queue: str) -> tuple[int, int]:
        found = await count(self._link, queue)
        if found is None:
            raise queue_missing(f"queue {queue!r}")
        return found

    async def _ask(self, endpoint: str, consumers: int) -> tuple[int, int, list[ConsumerCounts]]:
        """Ask until as many consumers as there are have answered, or patience ends; gives the last count with the replies.

        A consumer whose process has gone stays in the count for some moments, and does not answer any more: so the
        silent are counted again and again, and only one that is still there at the end is taken to hold a delivery.
        """
        queue, clock = self._names.queue(endpoint), asyncio.get_running_loop().time
        end = clock() + ANSWER_SECONDS
        async with (
            self._link.temporary_channel(confirms=True) as channel,
            translated("request the counts of consumers", definite=True),
        ):
            answers = await _Answers.listening(channel)
            question = PublishRequest(
                exchange=self._names.census, routing_key=endpoint, properties=Properties(reply_to=REPLIES), body=b""
            )
            heard = False
            while True:
                if not heard:  # returned when there was no consumer; one may have come since
                    heard = await publish(channel, [question], ANSWER_SECONDS) != [PublishOutcome.RETURNED]
                await answers.wait(consumers, RECOUNT_SECONDS)
                ready, consumers = await self._count(queue)
                if _answered(answers.replies) >= consumers or clock() >= end:
                    return ready, consumers, answers.replies

    async def _consume_requests(self) -> None:
        async with self._opening:
            if is_open(self._channel):
                return
            channel = await self._link.channel(confirms=False)
            async with translated("receive requests for counts", definite=True):
                own = await channel.queue_declare("", exclusive=True, auto_delete=True)
                await channel.queue_bind(own.queue or "", self._names.census, self._endpoint)
                await channel.basic_consume(own.queue or "", self._replier(channel), no_ack=True)
            self._channel = channel

    def _replier(self, channel: Channel) -> Callable[[Brought], Coroutine[Any, Any, None]]:
        async def reply(message: Brought) -> None:
            to = message.header.properties.reply_to
            if to:
                held, waiting, consumers = self._inbox.counts()
                body = msgspec.json.encode(ConsumerCounts(held, waiting, consumers, self._inbox.brought))
                with suppress(RetryableError):
                    async with translated("reply to a request for counts"):
                        await channel.basic_publish(body, routing_key=to, wait=False)

        return reply


class _Answers:
    """What the receivers answer."""

    def __init__(self) -> None:
        self.replies: list[ConsumerCounts] = []
        self._rung = asyncio.Event()

    @classmethod
    async def listening(cls, channel: Channel) -> "_Answers":
        answers = cls()
        await shielded(channel.basic_consume(REPLIES, answers.hear, no_ack=True))
        return answers

    async def hear(self, message: Brought) -> None:
        """Take an answer; what is none is ignored."""
        with suppress(msgspec.MsgspecError):
            self.replies.append(msgspec.json.decode(message.body, type=ConsumerCounts))
        self._rung.set()

    async def wait(self, consumers: int, seconds: float) -> None:
        """Wait until this many consumers have answered, but only so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while _answered(self.replies) < consumers:
                    self._rung.clear()
                    await self._rung.wait()


def _answered(replies: Sequence[ConsumerCounts]) -> int:
    return sum(reply.consumers for reply in replies)
