"""Waiting for messages: one blocked connection for all receivers of a transport.

XREAD does not take what it sees. So nothing is lost or held when a receiver is cancelled while it waits.
"""

import asyncio
from contextlib import suppress

from onceonly.adapters.redis.keys import QueueKeys
from onceonly.adapters.redis.link import LOST, Link


class Waiter:
    """Waits until something is in a queue. It may return early."""

    def __init__(self, link: Link, keys: QueueKeys, longest: float) -> None:
        self._link = link
        self._keys = keys
        self._longest = max(1, int(min(longest, link.address.timeout / 2) * 1000))
        self._reading: asyncio.Task[None] | None = None

    async def wait(self, position: bytes, woken: bytes, seconds: float) -> None:
        """Wait for an entry of the stream after `position`, or one of the wake stream after `woken` unless that is empty.

        Receivers share the connection of the first. It looks at earlier positions, or at the same. Does not raise errors of the
        driver: the next call to the server does.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read(position, woken))
        await asyncio.wait([self._reading], timeout=seconds)

    async def close(self) -> None:
        """Stop waiting."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self, position: bytes, woken: bytes) -> None:
        with suppress(*LOST):
            positions = {self._keys.stream: position, self._keys.wake: woken}
            await self._link.wait({key: behind for key, behind in positions.items() if behind}, self._longest)
