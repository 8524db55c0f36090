"""The cursor of this library's own connections: a statement whose task is cancelled is interrupted, and its answer read.

asyncmy would close the connection: the unit would be lost with it, and the server would wait on for an unused lock
any more, holding others.
"""

import asyncio
from collections.abc import Awaitable, Callable

from asyncmy.connection import Connection
from asyncmy.constants.ER import NET_PACKET_TOO_LARGE
from asyncmy.cursors import Cursor
from asyncmy.errors import OperationalError

SECONDS_TO_INTERRUPT = 2.0
LONG = 32 * 1024 * 1024 - 4096
"""Characters of a statement that goes out in three packets or more. The server answers a too long one after the second, which
asyncmy takes for a lost answer, so the limit is asked for before."""


class QuietCursor(Cursor):
    """Asks the server for no warnings: that would be a round trip, and log lines, for every duplicate."""

    async def _show_warnings(self, conn: Connection) -> None:
        """Leave them."""


def interruptible(interrupt: Callable[[int], Awaitable[None]]) -> type[Cursor]:
    """Make the class of such cursors; `interrupt` ends the statement of a thread of the server."""

    class InterruptibleCursor(QuietCursor):
        async def _query(self, q: str | bytes) -> int:
            if len(q) > LONG and await _is_too_long(self.connection, len(q)):
                raise OperationalError(NET_PACKET_TOO_LARGE, "Got a packet bigger than 'max_allowed_packet' bytes")
            thread = self.connection.thread_id()
            asked = asyncio.ensure_future(self.connection.answered(super()._query(q)))  # type: ignore[misc]  # its stub leaves it out
            try:
                return await asyncio.shield(asked)
            except asyncio.CancelledError:
                await _end(asked, lambda: interrupt(thread))
                raise

    return InterruptibleCursor


async def _is_too_long(connection: Connection, length: int) -> bool:
    async with connection.cursor(Cursor) as cursor:
        await cursor.execute("SELECT @@max_allowed_packet")
        (limit,) = await cursor.fetchone()
    return length > int(limit)


async def _end(asked: asyncio.Future[int], interrupt: Callable[[], Awaitable[None]]) -> None:
    """Wait until the statement is over; a cancelled `asked` closes its connection."""
    asked.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # its outcome is not awaited
    try:
        async with asyncio.timeout(SECONDS_TO_INTERRUPT):
            if not asked.done():
                await interrupt()
            await asyncio.wait([asked])
    except Exception:  # noqa: BLE001 - whatever it is, there is a second way
        asked.cancel()
        await asyncio.wait([asked])
    finally:
        asked.cancel()
