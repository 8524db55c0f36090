"""A connection to MariaDB on which no wait is endless; see `silence`."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from asyncmy import connect as connect_plainly
from asyncmy.connection import Connection
from asyncmy.constants.CR import CR_CONN_HOST_ERROR, CR_ERROR_FIRST, CR_ERROR_LAST, CR_SERVER_LOST
from asyncmy.errors import InternalError, MySQLError, OperationalError

from onceonly.adapters.mariadb.cursor import interruptible, literal
from onceonly.model.errors import error_text
from onceonly.sql import silence

CONNECT_SECONDS = 10.0
"""Seconds for a new connection, from the first packet to the last setting."""
CLOSE_SECONDS = 2.0
"""Seconds to close a connection politely."""

_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
_STATE = "SELECT command, time FROM information_schema.processlist WHERE id = %s"
_Result = TypeVar("_Result")


class SideConnections:
    """Makes second connections to the server of an engine, to check or to end what a first one does."""

    def __init__(self) -> None:
        self.is_direct = True
        """Whether the server's numbers of connections are known here; a proxy has numbers of its own."""

    async def interrupt(self, parameters: Mapping[str, Any], thread: int) -> None:
        """End the statement of a connection. Raises the driver's errors."""
        if self.is_direct:
            async with connect_plainly(**parameters) as other, other.cursor() as cursor:
                await cursor.execute(f"KILL QUERY {thread}")

    async def is_busy(self, parameters: Mapping[str, Any], thread: int) -> bool:
        """Return whether the server executes a statement of a connection, or answers without showing it."""
        try:
            async with asyncio.timeout(silence.CHECK_SECONDS), connect_plainly(**parameters) as other, other.cursor() as cursor:
                if not self.is_direct:
                    return True
                await cursor.execute(_STATE, (thread,))
                found = await cursor.fetchone()
        except MySQLError as error:
            code = error.args[0] if error.args else None
            return isinstance(code, int) and not CR_ERROR_FIRST <= code <= CR_ERROR_LAST  # a server that refuses is alive
        except Exception:  # noqa: BLE001 - whatever it is, the server did not answer
            return False
        return found is not None and (found[0] != "Sleep" or found[1] < 1)

    async def end(self, parameters: Mapping[str, Any], thread: int) -> None:
        """End a connection at the server, so that it keeps no locks."""
        with suppress(Exception):  # whatever it is, the server's own time-outs do the same later
            async with asyncio.timeout(silence.CHECK_SECONDS), connect_plainly(**parameters) as other, other.cursor() as cursor:
                await cursor.execute(f"KILL {thread}")


class WatchedConnection(Connection):
    """asyncmy's connection, whose every wait for the server ends."""

    _transport: Any  # these are asyncmy's; its stubs leave them out
    _proto: Any
    _loop: asyncio.AbstractEventLoop
    _connected: bool
    _checking: asyncio.Future[None] | None = None

    def __init__(self, side: SideConnections, parameters: dict[str, Any]) -> None:
        self._side = side
        self._plain = {name: value for name, value in parameters.items() if name != "init_command"}
        super().__init__(cursor_cls=interruptible(self._interrupt), **parameters)  # type: ignore[no-untyped-call]  # the same

    def literal(self, value: object) -> str:
        """Write a parameter into a statement. asyncmy looks at `sql_mode` for text, but not for bytes and for other types."""
        return literal(super().literal, value)

    async def open(self) -> None:
        """Connect. Raises OperationalError, also for what the driver would raise by another class."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.connect()
        except MySQLError:
            raise
        except Exception as error:
            self.drop()
            words = f"no answer for {CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else error_text(error)
            raise OperationalError(CR_CONN_HOST_ERROR, f"cannot connect to the MariaDB server ({words})") from error
        self._watch_socket()

    def drop(self) -> None:
        """Close the socket at once; what waits for the server fails."""
        transport = self._transport
        self.close()
        if transport is not None:
            transport.abort()

    async def answered(self, call: Awaitable[_Result]) -> _Result:
        """Wait for a call of the driver. What it cannot make sense of is a lost connection. Raises MySQLError."""
        try:
            return await call
        except InternalError as error:
            if error.args and isinstance(error.args[0], int):
                raise  # the server's own
            self.drop()
            raise OperationalError(CR_SERVER_LOST, f"the answer of the server was lost ({error})") from error
        except MySQLError:
            raise
        except Exception as error:
            self.drop()
            raise OperationalError(
                CR_SERVER_LOST, f"the answer of the server was lost ({type(error).__name__}: {error})"
            ) from error

    async def commit(self) -> None:
        await self.answered(super().commit())

    async def rollback(self) -> None:
        await self.answered(super().rollback())

    async def ensure_closed(self) -> None:
        transport = self._transport
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await super().ensure_closed()
        except Exception:  # noqa: BLE001 - whatever it is, the socket is dropped
            self.close()
        finally:
            if transport is not None:
                transport.abort()  # harmless when it is closed

    async def _fill_buffer(self, need: int) -> None:
        """Wait for more bytes from the server; every wait of asyncmy comes through here."""
        watching = self._loop.call_later(silence.SILENCE_SECONDS, self._start_check) if self._connected else None
        try:
            await super()._fill_buffer(need)  # type: ignore[misc]  # the same
        finally:
            if watching is not None:
                watching.cancel()
                self._stop_check()

    def _start_check(self) -> None:
        self._checking = asyncio.ensure_future(self._check())

    def _stop_check(self) -> None:
        doubting, self._checking = self._checking, None
        if doubting is not None:
            doubting.cancel()

    async def _check(self) -> None:
        """Check until this connection is found to be lost; cancelled as soon as bytes come."""
        since, thread, progress = self._loop.time(), int(self.thread_id()), self._progress()

        async def is_busy() -> bool:
            nonlocal progress
            busy = await self._side.is_busy(self._plain, thread)
            before, progress = progress, self._progress()
            return busy or progress != before

        def limit() -> float | None:
            return None if self._side.is_direct else since + silence.LONGEST_STATEMENT_SECONDS

        await silence.is_lost(is_busy, limit, is_answered=lambda: False)
        await asyncio.sleep(0)  # bytes that have come meanwhile cancel this
        if self._side.is_direct:
            await self._side.end(self._plain, thread)
        self.drop()

    def _progress(self) -> tuple[int, int]:
        """Return how much data is not sent yet, and how much of the answer has arrived."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return unsent, self._proto.length

    async def _interrupt(self, thread: int) -> None:
        await self._side.interrupt(self._plain, thread)

    def _watch_socket(self) -> None:
        """Set TCP keep-alive: by default the kernel notices after two hours that the server's host is gone."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            for name, value in _KEEPALIVE.items():
                with suppress(AttributeError, OSError):  # not every system has them
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connecting(side: SideConnections) -> Callable[..., Awaitable[WatchedConnection]]:
    """Make what opens the connections of an engine."""

    async def connect(**parameters: Any) -> WatchedConnection:
        if isinstance(parameters.get("password"), str):
            parameters["password"] = parameters["password"].encode()  # asyncmy would encode it as latin-1
        connection = WatchedConnection(side, parameters)
        await connection.open()
        return connection

    return connect
