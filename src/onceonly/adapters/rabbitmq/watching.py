"""Noticing that a connection no longer carries what is sent on it, although the server's heartbeats arrive.

When a part of a frame is lost on its way, whoever reads takes all that follows for the rest of that frame. Publishes are
confirmed and calls are answered, each within a limit. Acknowledgements and deliveries have no answer: for them, this makes
a call now and then.
"""

import asyncio
from collections.abc import Awaitable, Callable

from onceonly.adapters.rabbitmq.link import LOOKS, Channel, Link, answered, is_blocked, is_open, shielded

Ask = Callable[[Channel], Awaitable[object]]


async def watch(link: Link, channel: Channel, ask: Ask) -> None:
    """Abandon a channel when the server no longer answers on its connection. Ends when the channel is closed.

    Calls `ask` after every `timeout=` seconds without a confirm, and allows the same time for its answer.
    """
    timeout, closing = link.address.timeout, channel.closing
    while is_open(channel):
        known = answered(channel)
        await asyncio.wait([closing], timeout=timeout)
        if answered(channel) == known and not await _is_answered(channel, ask, timeout) and is_open(channel):
            await shielded(link.abandon(channel))


async def _is_answered(channel: Channel, ask: Ask, seconds: float) -> bool:
    """Return whether a call is answered in time. Not counted is time with confirms, or while the server blocks the connection.

    A server that blocks a connection does not read from it. Looks are counted, not seconds: a loop that was blocked has not
    read what came. The call is not cancelled, which would close its channel: it ends with the connection.
    """
    asking, quiet = asyncio.ensure_future(ask(channel)), 0
    asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved: the channel was closed
    while quiet < LOOKS and is_open(channel):
        known = answered(channel)
        await asyncio.wait([asking], timeout=seconds / LOOKS)
        if asking.done():
            return not asking.cancelled() and asking.exception() is None
        quiet = 0 if is_blocked(channel) or answered(channel) != known else quiet + 1
    return False
