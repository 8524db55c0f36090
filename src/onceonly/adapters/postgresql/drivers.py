"""What differs between the two drivers of PostgreSQL: how a commit is known to be one, and how the state is read."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from ssl import create_default_context
from typing import Any, Protocol
from urllib.parse import urlencode

from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError, InternalError
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.adapters.postgresql.asyncpg_scope import enclosed_class
from onceonly.adapters.postgresql.watch import WatchableDriver
from onceonly.model.errors import DriverMissing, SetupError
from onceonly.sql.dialect import DriverScope, State
from onceonly.sql.guard import unit_connection
from onceonly.sql.options import SYSTEM_CA, check_files
from onceonly.sql.statement_events import Execute, Look, keep_when_cancelled

CONNECT_SECONDS = 10
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_COUNT = 10, 5, 3
"""TCP keep-alive: the silence before the first probe, the time between probes, and the lost probes that end a connection."""
UNACKNOWLEDGED_MS = 20_000
"""Milliseconds for which the other side's system may leave data unacknowledged."""
KEEPALIVES = {
    "tcp_keepalives_idle": f"{KEEPALIVE_IDLE_SECONDS}",
    "tcp_keepalives_interval": f"{KEEPALIVE_INTERVAL_SECONDS}",
    "tcp_keepalives_count": f"{KEEPALIVE_COUNT}",
    "tcp_user_timeout": f"{UNACKNOWLEDGED_MS}",
}
"""Settings with which the server notices within 25 seconds, less than a lease, that the client's host is gone."""
_CLOSE_SECONDS = 2
_SAME = "SELECT 1 WHERE pg_backend_pid() = {}"  # a pooler makes up the process id that it tells a client
_ONE = "SELECT 1"
_ABORTED = "_onceonly_aborted"
_IN_TRANSACTION = 2  # libpq's PQTRANS_INTRANS


class PostgreSQLDriver(WatchableDriver, Protocol):
    """One driver of PostgreSQL."""

    name: str
    reports_last_result: bool
    """Whether statements that are said together may be any, and the answer to the last one is always told."""
    text_settings: tuple[tuple[str, str], ...]
    """Settings of a session, and the values without which this driver would write other text or bytes than it is given."""

    def connect_arguments(self, tls: Mapping[str, str]) -> dict[str, Any]:
        """Return what `connect` takes whatever is connected to. `tls` are the options for TLS. Raises SetupError."""

    def session_arguments(self, arguments: Mapping[str, Any], settings: Mapping[str, str], *, pooled: bool) -> dict[str, Any]:
        """Return what `connect` needs in addition to `arguments`: `settings` for the session, or options for a pooler."""

    async def detects_pooler(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether these arguments of `connect` lead to a connection pooler. Opens a connection to find out."""

    def is_pooled(self, connection: Connection) -> bool:
        """Return whether this connection leads to a pooler."""

    def needed_behind_pooler(self, connection: Connection) -> str:
        """Return what a user's engine lacks to work behind a pooler; empty for nothing."""

    def watch_connecting(self, engine: AsyncEngine, is_pooled: Callable[[], bool]) -> None:
        """Finish each new connection of an engine of this library's own."""

    statement_hooks: tuple[Look, ...]
    """Called after each statement that did not fail."""
    savepoints: Execute | None
    """How to execute statements about savepoints faster than SQLAlchemy does; None if SQLAlchemy has to do it."""

    def watch(self, engine: AsyncEngine) -> None:
        """Listen to the errors of an engine as far as the state cannot be read."""

    def enclose(self, driver: object, scope: DriverScope) -> object | None:
        """See `Dialect.enclose_driver`."""

    def execute_text(self, connection: Connection, words: str) -> str:
        """Execute one or several statements in one round trip, past SQLAlchemy. Return the answer to the last one."""

    async def listen(
        self, driver: Any, channel: str, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        """Listen on a connection of the driver's that has no other use. Gives the function that ends it.

        `lost` is called when the connection ends.
        """

    def begun(self, connection: Connection) -> None:
        """Note that a transaction has begun."""

    def commit(self, connection: Connection, first: str = "") -> None:
        """See `Dialect.commit`; `first` is a statement of the same request, whose failure prevents the commit."""

    def roll_back(self, connection: Connection) -> None:
        """See `Dialect.roll_back`."""

    def state(self, connection: Connection) -> State:
        """See `Dialect.state`."""

    def is_in_transaction(self, adapted: Any) -> bool:
        """Return whether a transaction is certainly open. Called for each statement of a handler, so it must be cheap."""

    def sqlstate(self, error: Exception) -> str | None:
        """Return the SQLSTATE of an error; None when it has none."""

    def routine(self, error: Exception) -> str | None:
        """Return the name of the server's routine that raised an error; None when it has none."""

    def refused(self, error: DBAPIError) -> bool:
        """Return whether the driver itself refused a statement, so that nothing was sent."""


class RolledBack(Exception):
    """COMMIT was answered by ROLLBACK: an error before had left the transaction aborted."""

    sqlstate = "25P02"


def _tls(options: Mapping[str, str]) -> Mapping[str, str]:
    """Complete the options for TLS: whoever names a certificate wants it to be used. Raises SetupError for unreadable files."""
    check_files(options)
    return {"sslmode": "verify-full", **options} if options else {}


class Asyncpg:
    """asyncpg. It hides whether a transaction is aborted, and takes the answer ROLLBACK to a COMMIT for success."""

    name = "asyncpg"
    reports_last_result = True
    text_settings: tuple[tuple[str, str], ...] = ()

    def __init__(self) -> None:
        """Load the driver. Raises DriverMissing."""
        self._loaded = loaded = _load("asyncpg", "postgresql")
        self.errors: tuple[type[Exception], ...] = (loaded.PostgresError, loaded.InterfaceError, loaded.InternalClientError)
        self.statement_hooks: tuple[Look, ...] = (_note_success,)
        self.savepoints: Execute | None = _execute_simply
        self._executing: set[int] = set()
        self._class = _closing_in_time(loaded.Connection)
        self._enclosed = enclosed_class(loaded)

    def connect_arguments(self, tls: Mapping[str, str]) -> dict[str, Any]:
        """Name the application, and limit the time of connecting and closing. asyncpg reads the options for TLS from a DSN."""
        own = {"server_settings": {"application_name": "onceonly"}, "connection_class": self._class}
        given = _tls(tls)
        if given.get("sslrootcert") == SYSTEM_CA:  # asyncpg would look for a file of this name
            own["ssl"] = create_default_context()
            if "sslcert" in given:
                own["ssl"].load_cert_chain(given["sslcert"], given["sslkey"])
        elif given:
            own["dsn"] = f"postgresql://?{urlencode(given)}"
        return {**own, "timeout": CONNECT_SECONDS}

    def session_arguments(self, arguments: Mapping[str, Any], settings: Mapping[str, str], *, pooled: bool) -> dict[str, Any]:
        """Return the settings as asyncpg takes them. Behind a pooler no statement has a name, and each is prepared anew."""
        if pooled:
            return {"statement_cache_size": 0, "prepared_statement_cache_size": 0, "prepared_statement_name_func": str}
        return {"server_settings": {**arguments["server_settings"], **settings}}

    async def detects_pooler(self, arguments: Mapping[str, Any]) -> bool:
        """Compare the process id from the connection start-up with the one that the session itself reports."""
        connection = await self._loaded.connect(**arguments, statement_cache_size=0)
        try:
            same = await connection.execute(_SAME.format(connection.get_server_pid()), timeout=CONNECT_SECONDS)
        except BaseException:
            connection.terminate()
            raise
        await connection.close()
        return str(same) != _ONE

    def is_pooled(self, connection: Connection) -> bool:
        driver: Any = connection.connection.driver_connection
        return self.execute_text(connection, _SAME.format(driver.get_server_pid())) != _ONE

    def needed_behind_pooler(self, connection: Connection) -> str:
        """Look for statements that would be prepared once, and used in another session."""
        adapted: Any = connection.connection.dbapi_connection
        unnamed = getattr(adapted, "_prepared_statement_name_func", str)() == ""  # private, and nothing else tells
        if unnamed and getattr(adapted, "_prepared_statement_cache", None) is None:
            return ""
        wanted = "'statement_cache_size': 0, 'prepared_statement_cache_size': 0, 'prepared_statement_name_func': str"
        return f"create it with connect_args={{{wanted}}}, or use a URL instead of an engine"

    def watch_connecting(self, engine: AsyncEngine, is_pooled: Callable[[], bool]) -> None:
        """Set TCP keep-alive on each connection, and open it in a transaction behind a pooler.

        The pool replaces a connection that it knows to be closed before it is used. This needs no round trip.
        What is asked of a new connection takes asyncpg two requests, between which a pooler may change the session.
        """

        def begin(adapted: Any, _: object) -> None:
            _keep_alive(adapted.driver_connection)
            if is_pooled():
                adapted.run_async(lambda driver: driver.execute("BEGIN"))

        def end(adapted: Any, _: object) -> None:
            if is_pooled():
                adapted.run_async(lambda driver: driver.execute("COMMIT"))

        def check(adapted: Any, _: object, __: object) -> None:
            if adapted.driver_connection.is_closed():  # the event loop has read the end of the stream, as after a restart
                raise DisconnectionError("the server has closed this connection")

        event.listen(engine.sync_engine, "connect", begin, insert=True)
        event.listen(engine.sync_engine, "connect", end)
        event.listen(engine.sync_engine, "checkout", check)

    def watch(self, engine: AsyncEngine) -> None:
        event.listen(engine.sync_engine, "handle_error", _note_error)
        keep_when_cancelled(engine)  # drivers have the server cancel a statement before they send the next one

    def enclose(self, driver: object, scope: DriverScope) -> object | None:
        return self._enclosed(driver, scope)

    def execute_text(self, connection: Connection, words: str) -> str:
        adapted: Any = connection.connection.dbapi_connection
        self._executing.add(id(adapted))
        try:
            return str(adapted.run_async(lambda driver: driver.execute(words)))
        finally:
            self._executing.discard(id(adapted))

    def awaits(self, adapted: Any) -> object:
        """Check the lock that SQLAlchemy holds during a statement, and what `execute_text` notes. asyncpg counts answers."""
        if id(adapted) in self._executing or adapted._execute_mutex.locked():  # noqa: SLF001 - nothing else tells
            return adapted.driver_connection._protocol.queries_count  # noqa: SLF001 - the same
        return None

    def session(self, adapted: Any) -> int:
        """Return the process id from the start of the connection."""
        return int(adapted.driver_connection.get_server_pid())

    async def ask(self, arguments: Mapping[str, Any], words: str) -> object:
        connection = await self._loaded.connect(**arguments, statement_cache_size=0)
        try:
            return await connection.fetchval(words)
        finally:
            connection.terminate()

    def drop(self, adapted: Any) -> None:
        adapted.driver_connection.terminate()

    def is_closed(self, adapted: Any) -> bool:
        return bool(adapted.driver_connection.is_closed())

    def answered(self, error: Exception) -> bool:
        return self.sqlstate(error) is not None

    async def listen(
        self, driver: Any, channel: str, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        def notified(_driver: object, _pid: int, _channel: str, word: str) -> None:
            heard(word)

        async def stop() -> None:
            driver.remove_termination_listener(end)
            await driver.remove_listener(channel, notified)

        def end(_driver: object) -> None:
            lost()

        driver.add_termination_listener(end)
        await driver.add_listener(channel, notified)
        return stop

    def begun(self, connection: Connection) -> None:
        """Forget what was noted about the transaction before."""
        vars(connection).pop(_ABORTED, None)

    def commit(self, connection: Connection, first: str = "") -> None:
        """Execute COMMIT, and check the answer."""
        try:
            answer = self.execute_text(connection, f"{first}COMMIT")
        except self.errors as error:
            raise DBAPIError("COMMIT", None, error) from error
        if answer != "COMMIT":
            raise InternalError("COMMIT", None, RolledBack(str(RolledBack.__doc__)))

    def roll_back(self, connection: Connection) -> None:
        self.execute_text(connection, "ROLLBACK")

    def state(self, connection: Connection) -> State:
        """Ask asyncpg, and what was noted. What a handler did on the raw connection shows at the next statement, or COMMIT."""
        driver = connection.connection.driver_connection
        if driver is None or driver.is_closed():
            return State.LOST
        if not driver.is_in_transaction():
            return State.ENDED
        return State.ABORTED if vars(connection).get(_ABORTED) else State.OPEN

    def is_in_transaction(self, adapted: Any) -> bool:
        """Ask asyncpg, whose closed connection cannot be asked."""
        driver = adapted.driver_connection
        return not driver.is_closed() and bool(driver.is_in_transaction())

    def sqlstate(self, error: Exception) -> str | None:
        return _state_of(_cause(error))

    def routine(self, error: Exception) -> str | None:
        return _text(getattr(_cause(error), "server_source_function", None))

    def refused(self, error: DBAPIError) -> bool:
        """Answer no: asyncpg's own refusals have an SQLSTATE."""
        return False


class Psycopg:
    """psycopg, version 3. libpq keeps the state of the transaction as the server tells it."""

    name = "psycopg"
    reports_last_result = False
    text_settings: tuple[tuple[str, str], ...] = (("standard_conforming_strings", "on"), ("client_encoding", "UTF8"))

    def __init__(self) -> None:
        """Load the driver. Raises DriverMissing."""
        self._loaded = _load("psycopg", "psycopg")
        self.errors: tuple[type[Exception], ...] = (self._loaded.Error,)
        self.statement_hooks: tuple[Look, ...] = ()
        self.savepoints: Execute | None = None
        self._class = _counting_waits(self._loaded.AsyncConnection)

    def connect_arguments(self, tls: Mapping[str, str]) -> dict[str, Any]:
        """Name the application, limit the time, and have the client's system notice that the server's host is gone."""
        alive = {
            "keepalives_idle": KEEPALIVE_IDLE_SECONDS,
            "keepalives_interval": KEEPALIVE_INTERVAL_SECONDS,
            "keepalives_count": KEEPALIVE_COUNT,
        }
        limits = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": UNACKNOWLEDGED_MS}
        own = {"application_name": "onceonly", "client_encoding": "UTF8", "async_creator_fn": self._class.connect}
        return {**own, "keepalives": 1, **alive, **limits, **_tls(tls)}

    def session_arguments(self, arguments: Mapping[str, Any], settings: Mapping[str, str], *, pooled: bool) -> dict[str, Any]:
        """Return the settings as libpq takes them. Behind a pooler no statement is prepared."""
        if pooled:
            return {"prepare_threshold": None}
        conforming = {"standard_conforming_strings": "on"}  # libpq escapes the bytes of parameters by it
        return {"options": " ".join(f"-c {name}={value}" for name, value in {**settings, **conforming}.items())}

    async def detects_pooler(self, arguments: Mapping[str, Any]) -> bool:
        """Compare the process id from the connection start-up with the one that the session itself reports."""
        async with asyncio.timeout(2 * CONNECT_SECONDS):
            connection = await self._connect(arguments)
            try:
                same = await connection.execute(_SAME.format(connection.info.backend_pid), prepare=False)
                return str(same.statusmessage) != _ONE
            finally:
                await connection.close()

    async def _connect(self, arguments: Mapping[str, Any]) -> Any:
        own = {name: value for name, value in arguments.items() if name != "async_creator_fn"}
        return await self._loaded.AsyncConnection.connect(**own, autocommit=True)

    def awaits(self, adapted: Any) -> object:
        driver = adapted.driver_connection
        return driver.onceonly_waits if driver.onceonly_waits % 2 else None

    def session(self, adapted: Any) -> int:
        """Return the process id from the start of the connection."""
        return int(adapted.driver_connection.info.backend_pid)

    async def ask(self, arguments: Mapping[str, Any], words: str) -> object:
        connection = await self._connect(arguments)
        try:
            found = await (await connection.execute(words, prepare=False)).fetchone()
            return None if found is None else found[0]
        finally:
            await connection.close()

    def drop(self, adapted: Any) -> None:
        """Shut the socket down. libpq then reads end-of-file; closing the socket would not wake the task that waits for it."""
        with suppress(OSError), socket.socket(fileno=os.dup(adapted.driver_connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)

    def is_closed(self, adapted: Any) -> bool:
        return bool(adapted.driver_connection.closed)

    def answered(self, error: Exception) -> bool:
        """Check for an SQLSTATE, or for the words before an error of a server that refuses a connection."""
        return self.sqlstate(error) is not None or "FATAL:" in str(error)

    def is_pooled(self, connection: Connection) -> bool:
        driver: Any = connection.connection.driver_connection
        return self.execute_text(connection, _SAME.format(driver.info.backend_pid)) != _ONE

    def needed_behind_pooler(self, connection: Connection) -> str:
        """Look for statements that would be prepared once, and used in another session."""
        driver: Any = connection.connection.driver_connection
        if driver.prepare_threshold is None:
            return ""
        return "create it with connect_args={'prepare_threshold': None}, or use a URL instead of an engine"

    def watch_connecting(self, engine: AsyncEngine, is_pooled: Callable[[], bool]) -> None:
        """Do nothing: libpq knows of keepalives, and asks in one request."""

    def watch(self, engine: AsyncEngine) -> None:
        keep_when_cancelled(engine)

    def enclose(self, driver: object, scope: DriverScope) -> object | None:
        """Return None: cursors of psycopg lead past whatever stands for its connection."""
        return None

    def execute_text(self, connection: Connection, words: str) -> str:
        adapted: Any = connection.connection.dbapi_connection
        return str(adapted.run_async(lambda driver: driver.execute(words)).statusmessage)

    async def listen(
        self, driver: Any, channel: str, heard: Callable[[str], None], lost: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        """Read what psycopg generates, in a task."""
        await driver.execute(f"LISTEN {channel}")

        async def read() -> None:
            try:
                async for notify in driver.notifies():
                    heard(notify.payload)
            except self.errors:
                pass  # the connection is lost
            finally:
                lost()

        reading = asyncio.create_task(read())

        async def stop() -> None:
            reading.cancel()
            await asyncio.wait([reading])

        return stop

    def begun(self, connection: Connection) -> None:
        """Note nothing."""

    def commit(self, connection: Connection, first: str = "") -> None:
        """Refuse what is aborted; psycopg's own commit, which SQLAlchemy calls, would take the answer ROLLBACK for success."""
        if self.state(connection) is State.ABORTED:
            raise InternalError("COMMIT", None, RolledBack(str(RolledBack.__doc__)))
        if first:
            try:
                self.execute_text(connection, f"{first}COMMIT")
            except self.errors as error:
                raise DBAPIError("COMMIT", None, error) from error

    def roll_back(self, connection: Connection) -> None:
        """Leave it to SQLAlchemy."""

    def state(self, connection: Connection) -> State:
        driver = connection.connection.driver_connection
        if driver is None or driver.closed or driver.broken:
            return State.LOST
        status = self._loaded.pq.TransactionStatus(driver.info.transaction_status)
        return _BY_STATUS.get(status.name, State.LOST)

    def is_in_transaction(self, adapted: Any) -> bool:
        return bool(adapted.driver_connection.pgconn.transaction_status == _IN_TRANSACTION)

    def sqlstate(self, error: Exception) -> str | None:
        return _state_of(_cause(error))

    def routine(self, error: Exception) -> str | None:
        return _text(getattr(getattr(_cause(error), "diag", None), "source_function", None))

    def refused(self, error: DBAPIError) -> bool:
        """Decide by psycopg's class: what it cannot adapt was never sent."""
        return isinstance(error.orig, self._loaded.DataError | self._loaded.ProgrammingError)


DRIVERS: dict[str, type[Asyncpg] | type[Psycopg]] = {
    "": Asyncpg,
    "asyncpg": Asyncpg,
    "psycopg": Psycopg,
    "psycopg_async": Psycopg,
}
_BY_STATUS = {"IDLE": State.ENDED, "INTRANS": State.OPEN, "INERROR": State.ABORTED, "ACTIVE": State.ABORTED}


def driver_named(name: str) -> PostgreSQLDriver:
    """Return the driver; asyncpg for the empty name. Raises SetupError, DriverMissing."""
    if name not in DRIVERS:
        raise SetupError(f"PostgreSQL driver {name} is not supported: use asyncpg or psycopg")
    return DRIVERS[name]()


def _load(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise DriverMissing(f"PostgreSQL driver {module} is not installed: pip install 'onceonly[{extra}]'") from error


@cache
def _closing_in_time(base: Any) -> Any:
    """Derive a connection whose `close` does not wait for long until the server has closed it as well."""

    class TimelyClosingConnection(base):  # type: ignore[misc]  # it is asyncpg's
        __slots__ = ()

        async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncpg's signature
            with suppress(TimeoutError):  # it is aborted then
                await super().close(timeout=_CLOSE_SECONDS if timeout is None else timeout)

    return TimelyClosingConnection


def _counting_waits(base: Any) -> Any:
    """Derive a connection that counts when it begins to wait for its server and when it ends: odd while it waits."""

    class WaitCountingConnection(base):  # type: ignore[misc]  # it is psycopg's
        onceonly_waits = 0

        async def wait(self, *arguments: Any, **options: Any) -> Any:
            self.onceonly_waits += 1
            try:
                return await super().wait(*arguments, **options)
            finally:
                self.onceonly_waits += 1

    return WaitCountingConnection


def _keep_alive(driver: Any) -> None:
    """Set the options of asyncpg's socket, where its system has them; asyncpg itself has none of them."""
    transport = getattr(driver, "_transport", None)
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None or found.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    options = {
        "TCP_KEEPIDLE": KEEPALIVE_IDLE_SECONDS,
        "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_SECONDS,
        "TCP_KEEPCNT": KEEPALIVE_COUNT,
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS,
    }
    with socket.socket(fileno=os.dup(found.fileno())) as own:  # an event loop may give something that has no `setsockopt`
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _cause(error: Exception) -> Any:
    """Return the driver's own error: SQLAlchemy's adapter for asyncpg puts one of its own around it."""
    found = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return found.__cause__ if found.__cause__ is not None and hasattr(found.__cause__, "sqlstate") else found


def _state_of(error: Any) -> str | None:
    """Return the SQLSTATE. Sessions of a caller may use psycopg2, or pg8000, whose error is the server's fields."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and error.args and isinstance(error.args[0], dict):
        state = error.args[0].get("C")
    return _text(state)


def _text(state: object) -> str | None:
    return state if isinstance(state, str) else None


def _note_error(context: ExceptionContext) -> None:
    cause: Any = context.original_exception
    cause = getattr(cause, "__cause__", None) or cause
    came_from_server = getattr(cause, "severity", None) is not None  # what asyncpg refuses on its own is never sent
    if context.connection is not None and (came_from_server or isinstance(cause, asyncio.CancelledError)):
        vars(unit_connection(context.connection))[_ABORTED] = True


def _note_success(connection: Connection, *_: object) -> None:
    vars(unit_connection(connection)).pop(_ABORTED, None)  # an aborted transaction runs nothing but what makes it whole


def _execute_simply(adapted: Any, statement: str) -> None:
    """Execute a statement without preparing it, in one request instead of two.

    SQLAlchemy numbers the savepoints of a transaction. In a large unit these statements would fill asyncpg's cache of prepared
    statements, and each would be prepared again. The lock and the error handling are those of SQLAlchemy's cursor.
    """

    async def execute(driver: Any) -> None:
        async with adapted._execute_mutex:  # noqa: SLF001 - `awaits` reads it too
            try:
                await driver.execute(statement)
            except Exception as error:  # noqa: BLE001 - translated, and raised again
                adapted._handle_exception(error)  # noqa: SLF001 - there is no public way to translate an error

    adapted.run_async(execute)
