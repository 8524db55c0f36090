"""The census: RabbitMQ does not tell over AMQP what its consumers hold, so they are asked.

Each process that receives answers, on its receiving connection, how many deliveries it has in work and how many wait with
it. The queue tells how many consumers must answer; the one that is silent, stopped or busy, counts as holding a delivery.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from onceonly.drivers.rabbitmq import (
    Channel,
    Delivered,
    Link,
    Properties,
    is_open,
    publish,
    shielded,
    translated,
)
from onceonly.drivers.rabbitmq_publishing import Outcome, Parcel
from onceonly.model.errors import SetupError, TryAgain
from onceonly.transports.rabbitmq_inbox import Inbox
from onceonly.transports.rabbitmq_topology import Names, count

PATIENCE = 1.0  # seconds that are given to the receivers to answer
REPLIES = "amq.rabbitmq.reply-to"
LOOKS = 3  # an empty queue is believed when two looks agree


class Reply(Struct, frozen=True):
    """What one process holds: deliveries in work, deliveries that wait with it, its consumers, and all it ever got."""

    held: int
    waiting: int
    consumers: int
    brought: int


class Census:
    """Answers for one inbox, and asks all that there are of an endpoint."""

    def __init__(self, link: Link, names: Names, endpoint: str, inbox: Inbox) -> None:
        self._link = link
        self._names = names
        self._endpoint = endpoint
        self._inbox = inbox
        self._channel: Channel | None = None
        self._attending = asyncio.Lock()

    async def attend(self) -> None:
        """Make sure that this process is asked. Raises Failed when the server is away."""
        if not is_open(self._channel):
            await shielded(self._attend())

    async def take(self, endpoint: str) -> tuple[int, int]:
        """Count what waits and what is held of an endpoint. Raises SetupError when it has no queue.

        Messages move while they are counted; nothing at all is said only when two looks agree and nothing moved between.
        """
        before: list[Reply] | None = None
        waiting = held = 0
        for _ in range(LOOKS):
            waiting, held, replies = await self._look(endpoint)
            if waiting or held or replies == before:
                break
            before = replies
        return waiting, held

    async def close(self) -> None:
        """Answer no more."""
        if self._channel is not None and is_open(self._channel):
            with suppress(TryAgain):
                async with translated("close a channel"):
                    await shielded(self._channel.close())

    async def _look(self, endpoint: str) -> tuple[int, int, list[Reply]]:
        queue = self._names.queue(endpoint)
        found = await count(self._link, queue)
        if found is None:
            raise SetupError(f"there is no queue {queue!r}: run its endpoint, or `onceonly topology create`, first")
        ready, consumers = found
        replies = await self._ask(endpoint, consumers) if consumers else []  # a consumer counts as long as it holds any
        answered = sum(reply.consumers for reply in replies)
        if answered < consumers:  # silent, or gone: then what it held waits by now
            ready, consumers = await count(self._link, queue) or (0, 0)
        silent = max(0, consumers - answered)
        waiting = ready + sum(reply.waiting for reply in replies)
        return waiting, silent + sum(reply.held for reply in replies), replies

    async def _ask(self, endpoint: str, consumers: int) -> list[Reply]:
        """Ask, and wait until as many consumers as there are have answered, or patience ends."""
        replies: list[Reply] = []
        rung = asyncio.Event()

        async def hear(message: Delivered) -> None:
            with suppress(msgspec.MsgspecError):
                replies.append(msgspec.json.decode(message.body, type=Reply))
            rung.set()

        async with self._link.errand(confirms=True) as channel, translated("ask the receivers", definite=True):
            await shielded(channel.basic_consume(REPLIES, hear, no_ack=True))
            question = Parcel(
                exchange=self._names.census, routing_key=endpoint, properties=Properties(reply_to=REPLIES), body=b""
            )
            if await publish(channel, [question], PATIENCE) == [Outcome.RETURNED]:
                return []  # nobody is there to hear it
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while sum(reply.consumers for reply in replies) < consumers:
                        rung.clear()
                        await rung.wait()
        return sorted(replies, key=lambda reply: (reply.brought, reply.consumers))

    async def _attend(self) -> None:
        async with self._attending:
            if is_open(self._channel):
                return
            channel = await self._link.channel(confirms=False)
            async with translated("answer the census", definite=True):
                own = await channel.queue_declare("", exclusive=True, auto_delete=True)
                await channel.queue_bind(own.queue or "", self._names.census, self._endpoint)
                await channel.basic_consume(own.queue or "", self._replier(channel), no_ack=True)
            self._channel = channel

    def _replier(self, channel: Channel) -> Callable[[Delivered], Coroutine[Any, Any, None]]:
        async def reply(message: Delivered) -> None:
            to = message.header.properties.reply_to
            if to:
                held, waiting, consumers = self._inbox.counts()
                body = msgspec.json.encode(Reply(held, waiting, consumers, self._inbox.brought))
                with suppress(TryAgain):
                    async with translated("answer the census"):
                        await channel.basic_publish(body, routing_key=to, wait=False)

        return reply
