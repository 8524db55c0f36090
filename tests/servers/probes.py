"""Whether a server that accepts connections also works: one round trip of its protocol, with a time limit.

A server that hangs would otherwise let every test that uses it run into its own limit, one by one.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit
from uuid import uuid4

from tests.adversary.raw_amqp import connected

LIMIT = 8.0
"""Seconds for one round trip, which takes milliseconds; much more than on a busy machine."""

_SSL_REQUEST = struct.pack(">ii", 8, 80877103)


def is_silent(url: str, *, times: int = 1) -> bool:
    """Tell whether the server of a URL does not answer, so many times in a row. One that refuses has answered."""
    with ThreadPoolExecutor(1) as thread:  # this thread's event loop may be running
        return all(thread.submit(lambda: asyncio.run(_is_silent(url))).result() for _ in range(times))


async def _is_silent(url: str) -> bool:
    try:
        async with asyncio.timeout(LIMIT):
            await _ROUND_TRIPS[urlsplit(url).scheme.partition("+")[0]](url)
    except TimeoutError:
        return True
    except Exception:  # noqa: BLE001 - whatever it is, the server did something; the tests will tell what is wrong
        return False
    return False


async def _publish(url: str) -> None:
    """Have RabbitMQ confirm a message, which it drops: no queue has that name. It confirms nothing while an alarm is on."""
    async with connected(url) as producer:
        await producer.publish(f"nowhere-{uuid4().hex}")


def _asking(request: bytes) -> Callable[[str], Awaitable[None]]:
    """Wait for the first byte that a server says, to a client that has said this."""

    async def ask(url: str) -> None:
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname or "127.0.0.1", place.port or 0)
        try:
            writer.write(request)
            await reader.read(1)
        finally:
            writer.transport.abort()

    return ask


_ROUND_TRIPS: dict[str, Callable[[str], Awaitable[None]]] = {
    "amqp": _publish,
    "postgresql": _asking(_SSL_REQUEST),  # answered by the process that serves the connection
    "mysql": _asking(b""),  # the server speaks first
    "redis": _asking(b"PING\r\n"),
    "nats": _asking(b""),  # the server speaks first
}
