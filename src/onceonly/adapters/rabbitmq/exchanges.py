"""Exchanges of other programs. What is published to one has a channel of its own.

The server closes a channel on which something is published to a missing exchange, or to one that this user may not write to.
So nothing but messages to that exchange is lost with its channel. They are unknown then, and the next attempt looks whether
the exchange exists.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pamqp import commands as spec

from onceonly.adapters.rabbitmq.link import Channel, RabbitMQLink, attempt, is_open, shielded
from onceonly.adapters.rabbitmq.publisher import PublishOutcome, PublishRequest
from onceonly.model.destination import Exchange, write_destination
from onceonly.model.errors import OnceOnlyError
from onceonly.queues.destinations import report_unsent

MOST_CHANNELS = 64
"""Channels that stay open. A further exchange takes the place of one that waits for no answer."""
Publish = Callable[[Channel, Sequence[PublishRequest]], Awaitable[list[PublishOutcome]]]


class PassiveDeclare(spec.Exchange.Declare):
    """Asks whether an exchange exists. The driver refuses names that a server takes, such as those with brackets."""

    def __init__(self, exchange: str) -> None:
        super().__init__(exchange=exchange, passive=True)

    def validate(self) -> None:
        """Accept what a server may have. A name that is too long for AMQP was refused at the call."""


class ForeignExchanges:
    """Publishes to exchanges of other programs. `publish` publishes on an open channel."""

    def __init__(self, link: RabbitMQLink, endpoint: str, publish: Publish) -> None:
        self._link = link
        self._endpoint = endpoint
        self._publish = publish
        self._channels: dict[str, Channel] = {}
        self._opening = asyncio.Lock()

    async def publish(self, requests: Sequence[PublishRequest]) -> list[PublishOutcome]:
        """Publish to one exchange. All are MISSING if it does not exist. Raises OnceOnlyError when nothing was published."""
        exchange = requests[0].exchange
        channel = await self._channel(exchange)
        if channel is None:
            return [PublishOutcome.MISSING] * len(requests)
        outcomes = await self._publish(channel, requests)
        if (reason := _reason(channel)) is not None:
            report_unsent(self._endpoint, write_destination(Exchange(exchange)), reason)
        return outcomes

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await _end(channel)

    async def _channel(self, exchange: str) -> Channel | None:
        """Return the channel for an exchange; None if it does not exist. A channel that is open has seen that it does."""
        known = self._channels.get(exchange)
        if known is not None and is_open(known):
            return known
        async with self._opening:
            known = self._channels.get(exchange)
            if known is None or not is_open(known):
                self._channels.pop(exchange, None)
                found = await attempt(
                    self._link, f"check exchange {exchange!r}", lambda channel: channel.rpc(PassiveDeclare(exchange))
                )
                if found is None:
                    return None
                known = await self._link.channel(confirms=True)
                await self._make_room()
                self._channels[exchange] = known
        return known

    async def _make_room(self) -> None:
        """Close a channel that waits for no answer, if there are many."""
        idle = next((name for name, each in self._channels.items() if not each.confirmations), None)
        if len(self._channels) >= MOST_CHANNELS and idle is not None:
            await _end(self._channels.pop(idle))


async def _end(channel: Channel) -> None:
    if is_open(channel):
        with suppress(Exception):  # nothing is in flight that is not answered
            await shielded(channel.close())


def _reason(channel: Channel) -> Exception | None:
    """Return why the server closed a channel, or None if the connection was lost."""
    closing = channel.closing
    if not closing.done() or closing.cancelled() or not channel.connection.is_opened:
        return None
    error = closing.exception()
    return error if isinstance(error, Exception) and not isinstance(error, OnceOnlyError) else None
