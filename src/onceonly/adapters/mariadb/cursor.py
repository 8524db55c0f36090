"""The cursor of this library's own connections, and the parameters in its statements.

A statement whose task is cancelled is interrupted, and its answer read. asyncmy would close the connection: the unit would be
lost with it, and the server would wait on for an unused lock, holding others.

asyncmy writes parameters into the text of a statement itself. It escapes text by the mode that the server has reported last. It
escapes bytes, and text inside of sequences, by backslashes alone. In the mode NO_BACKSLASH_ESCAPES these ended at the first
quote inside, and the rest of the value was executed. Here literals are right in every `sql_mode`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import date, time, timedelta
from decimal import Decimal
from time import struct_time

from asyncmy.connection import Connection
from asyncmy.constants.ER import NET_PACKET_TOO_LARGE
from asyncmy.cursors import Cursor
from asyncmy.errors import OperationalError

SECONDS_TO_INTERRUPT = 2.0
LONG = 32 * 1024 * 1024 - 4096
"""Characters of a statement that goes out in three packets or more. The server answers a too long one after the second, which
asyncmy takes for a lost answer, so the limit is read before."""
_OWN = bool | int | float | Decimal | date | time | timedelta | struct_time | None
"""The types whose literals have no characters to escape."""


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
            query = asyncio.ensure_future(self.connection.answered(super()._query(q)))  # type: ignore[misc]  # its stub leaves it out
            try:
                return await asyncio.shield(query)
            except asyncio.CancelledError:
                await _end(query, lambda: interrupt(thread))
                raise

    return InterruptibleCursor


async def _is_too_long(connection: Connection, length: int) -> bool:
    async with connection.cursor(Cursor) as cursor:
        await cursor.execute("SELECT @@max_allowed_packet")
        (limit,) = await cursor.fetchone()
    return length > int(limit)


async def _end(query: asyncio.Future[int], interrupt: Callable[[], Awaitable[None]]) -> None:
    """Wait until the statement is over; a cancelled `query` closes its connection."""
    query.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # its outcome is not awaited
    try:
        async with asyncio.timeout(SECONDS_TO_INTERRUPT):
            if not query.done():
                await interrupt()
            await asyncio.wait([query])
    except Exception:  # noqa: BLE001 - whatever it is, there is a second way
        query.cancel()
        await asyncio.wait([query])
    finally:
        query.cancel()


def literal(plain: Callable[[object], str], value: object) -> str:
    """Return the literal of a value. `plain` is the driver's own function, which is right for text.

    A value of a type that the driver does not know is written as its text, as the driver does.
    """
    if isinstance(value, str | _OWN):
        return plain(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"_binary X'{value.hex()}'"
    if isinstance(value, tuple | list | set | frozenset):
        return f"({','.join([literal(plain, each) for each in value])})"
    return plain(str(value))
