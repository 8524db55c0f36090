"""LISTEN and NOTIFY, by the public functions of each driver.

NOTIFY commits with `synchronous_commit = off`: PostgreSQL lets transactions with NOTIFY commit one after another, and none of
them should wait for the disk meanwhile. A crash may lose the notification, which only delays a message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["PostgreSQLListening", "notify_text"]

CLOSE_SECONDS = 1.0


def notify_text(channel: str, words: Iterable[str]) -> str:
    """Return the transaction that notifies. Channel and words consist of letters, digits and underscores."""
    notify = "".join(f"NOTIFY {channel}, '{word}'; " for word in words)
    return f"BEGIN; SET LOCAL synchronous_commit = off; {notify}COMMIT"


class ListeningDriver(Protocol):
    """What a driver offers."""

    def drop(self, adapted: Any) -> None:
        """Close the connection's socket at once."""

    def listen(
        self, driver: Any, channel: str, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> Awaitable[Callable[[], Awaitable[None]]]:
        """Listen on the driver's connection, until the function that is returned is called. `lost` is called at its end."""


class PostgreSQLListening:
    """A connection that listens. It was taken out of its pool, so that no other use waits for it."""

    def __init__(self, connection: AsyncConnection, driver: ListeningDriver) -> None:
        self.ended = asyncio.Event()
        self._connection = connection
        self._driver = driver
        self._adapted: Any = None
        self._stop: Callable[[], Awaitable[None]] | None = None

    async def open(self, channel: str, heard: Callable[[str], None]) -> None:
        """Begin to listen. Raises the driver's errors."""
        self._adapted = (await self._connection.get_raw_connection()).dbapi_connection
        self._stop = await self._driver.listen(self._adapted.driver_connection, channel, heard, self.ended.set)

    async def close(self) -> None:
        """Close the connection, at once when the server does not answer."""
        with suppress(Exception):  # whatever it is, the connection is gone
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    if self._stop is not None and not self.ended.is_set():
                        await self._stop()
                    elif self.ended.is_set():
                        await self._connection.invalidate()
                    await self._connection.close()
                    if self._adapted is not None:  # out of its pool, it may be open still
                        await self._adapted.driver_connection.close()
            except BaseException:
                if self._adapted is not None:
                    self._driver.drop(self._adapted)
                raise
