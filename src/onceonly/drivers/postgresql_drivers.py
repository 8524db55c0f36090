"""What differs between the two drivers of PostgreSQL: how a commit is known to be one, and how the state is read."""

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, InternalError
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.drivers.dialect import State
from onceonly.drivers.statement_events import Look
from onceonly.model.errors import DriverMissing, SetupError

CONNECTING = 10  # seconds
_ABORTED = "onceonly_aborted"


class Driver(Protocol):
    """One driver of PostgreSQL."""

    name: str
    errors: tuple[type[Exception], ...]
    tells_last: bool
    """Whether statements that are said together may be any, and the answer to the last one is always told."""

    def connect_arguments(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """Give what `connect` takes to have these settings of the server in every session."""

    looks: tuple[Look, ...]
    """What is to be told of statements that did not fail."""

    def watch(self, engine: AsyncEngine) -> None:
        """Listen to the errors of an engine as far as the state cannot be read."""

    def say(self, connection: Connection, words: str) -> str:
        """Say one or several statements in one round trip, past SQLAlchemy; gives how the server answered the last one."""

    def begun(self, connection: Connection) -> None:
        """Take notice that a transaction has begun."""

    def commit(self, connection: Connection, first: str = "") -> None:
        """See `Dialect.commit`; `first` is a statement that is said in the same request, and may keep it from committing."""

    def roll_back(self, connection: Connection) -> None:
        """See `Dialect.roll_back`."""

    def state(self, connection: Connection) -> State:
        """See `Dialect.state`."""

    def sqlstate(self, error: Exception) -> str | None:
        """Give the SQLSTATE of an error; None when it has none."""

    def refused(self, error: DBAPIError) -> bool:
        """Tell whether the driver itself refused a statement, so that nothing was sent."""


class RolledBack(Exception):
    """COMMIT was answered by ROLLBACK: an error before had left the transaction aborted."""

    sqlstate = "25P02"


class Asyncpg:
    """asyncpg. It hides whether a transaction is aborted, and takes the answer ROLLBACK to a COMMIT for success."""

    name = "asyncpg"
    tells_last = True

    def __init__(self) -> None:
        """Load the driver. Raises DriverMissing."""
        loaded = _load("asyncpg", "postgresql")
        self.errors: tuple[type[Exception], ...] = (loaded.PostgresError, loaded.InterfaceError, loaded.InternalClientError)
        self.looks: tuple[Look, ...] = (_note_success,)

    def connect_arguments(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """Give the settings as asyncpg takes them."""
        return {"server_settings": {"application_name": "onceonly", **settings}, "timeout": CONNECTING}

    def watch(self, engine: AsyncEngine) -> None:
        """Note errors that abort a transaction."""
        event.listen(engine.sync_engine, "handle_error", _note_error)
        _keep_when_cancelled(engine)

    def say(self, connection: Connection, words: str) -> str:
        """Use the simple query protocol."""
        adapted: Any = connection.connection.dbapi_connection
        return str(adapted.run_async(lambda driver: driver.execute(words)))

    def begun(self, connection: Connection) -> None:
        """Forget what was noted about the transaction before."""
        connection.info.pop(_ABORTED, None)

    def commit(self, connection: Connection, first: str = "") -> None:
        """Say COMMIT, and make sure of the answer."""
        try:
            answer = self.say(connection, f"{first}COMMIT")
        except self.errors as error:
            raise DBAPIError("COMMIT", None, error) from error
        if answer != "COMMIT":
            raise InternalError("COMMIT", None, RolledBack(str(RolledBack.__doc__)))

    def roll_back(self, connection: Connection) -> None:
        """Say ROLLBACK."""
        self.say(connection, "ROLLBACK")

    def state(self, connection: Connection) -> State:
        """Ask asyncpg, and what was noted. What a handler did on the raw connection shows at the next statement, or COMMIT."""
        driver = connection.connection.driver_connection
        if driver is None or driver.is_closed():
            return State.LOST
        if not driver.is_in_transaction():
            return State.ENDED
        return State.ABORTED if connection.info.get(_ABORTED) else State.OPEN

    def sqlstate(self, error: Exception) -> str | None:
        """Read it from asyncpg's own error."""
        return _text(getattr(_cause(error), "sqlstate", None))

    def refused(self, error: DBAPIError) -> bool:
        """Answer no: asyncpg's own refusals have an SQLSTATE."""
        return False


class Psycopg:
    """psycopg, version 3. libpq keeps the state of the transaction as the server tells it."""

    name = "psycopg"
    tells_last = False

    def __init__(self) -> None:
        """Load the driver. Raises DriverMissing."""
        self._loaded = _load("psycopg", "psycopg")
        self.errors: tuple[type[Exception], ...] = (self._loaded.Error,)
        self.looks: tuple[Look, ...] = ()

    def connect_arguments(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """Give the settings as libpq takes them."""
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        return {"options": options, "application_name": "onceonly", "connect_timeout": CONNECTING}

    def watch(self, engine: AsyncEngine) -> None:
        """Keep what is cancelled."""
        _keep_when_cancelled(engine)

    def say(self, connection: Connection, words: str) -> str:
        """Use the simple query protocol."""
        adapted: Any = connection.connection.dbapi_connection
        return str(adapted.run_async(lambda driver: driver.execute(words)).statusmessage)

    def begun(self, connection: Connection) -> None:
        """Note nothing."""

    def commit(self, connection: Connection, first: str = "") -> None:
        """Refuse what is aborted; psycopg's own commit, which SQLAlchemy calls, would take the answer ROLLBACK for success."""
        if self.state(connection) is State.ABORTED:
            raise InternalError("COMMIT", None, RolledBack(str(RolledBack.__doc__)))
        if first:
            try:
                self.say(connection, f"{first}COMMIT")
            except self.errors as error:
                raise DBAPIError("COMMIT", None, error) from error

    def roll_back(self, connection: Connection) -> None:
        """Leave it to SQLAlchemy."""

    def state(self, connection: Connection) -> State:
        """Ask libpq."""
        driver = connection.connection.driver_connection
        if driver is None or driver.closed or driver.broken:
            return State.LOST
        status = self._loaded.pq.TransactionStatus(driver.info.transaction_status)
        return _BY_STATUS.get(status.name, State.LOST)

    def sqlstate(self, error: Exception) -> str | None:
        """Read it from psycopg's error."""
        return _text(getattr(_cause(error), "sqlstate", None))

    def refused(self, error: DBAPIError) -> bool:
        """Tell by psycopg's class: what it cannot adapt was never sent."""
        return isinstance(error.orig, self._loaded.DataError | self._loaded.ProgrammingError)


DRIVERS: dict[str, type[Asyncpg] | type[Psycopg]] = {
    "": Asyncpg,
    "asyncpg": Asyncpg,
    "psycopg": Psycopg,
    "psycopg_async": Psycopg,
}
_BY_STATUS = {"IDLE": State.ENDED, "INTRANS": State.OPEN, "INERROR": State.ABORTED, "ACTIVE": State.ABORTED}


def driver_named(name: str) -> Driver:
    """Give the driver; asyncpg for the empty name. Raises SetupError, DriverMissing."""
    if name not in DRIVERS:
        raise SetupError(f"onceonly does not work with the PostgreSQL driver {name}: use asyncpg or psycopg")
    return DRIVERS[name]()


def _load(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise DriverMissing(f"PostgreSQL's driver {module} is not installed: pip install 'onceonly[{extra}]'") from error


def _cause(error: Exception) -> Any:
    """Give the driver's own error: SQLAlchemy's adapter for asyncpg puts one of its own around it."""
    found = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return found.__cause__ if found.__cause__ is not None and hasattr(found.__cause__, "sqlstate") else found


def _text(state: object) -> str | None:
    return state if isinstance(state, str) else None


def _note_error(context: ExceptionContext) -> None:
    cause: Any = context.original_exception
    cause = getattr(cause, "__cause__", None) or cause
    came_from_server = getattr(cause, "severity", None) is not None  # what asyncpg refuses by itself is never sent
    if context.connection is not None and (came_from_server or isinstance(cause, asyncio.CancelledError)):
        context.connection.info[_ABORTED] = True


def _note_success(connection: Connection, *_: object) -> None:
    connection.info.pop(_ABORTED, None)  # an aborted transaction runs nothing but what makes it whole


def _keep_when_cancelled(engine: AsyncEngine) -> None:
    """Keep a connection whose statement was cancelled: both drivers have the server cancel it before they send the next one."""

    def keep(context: ExceptionContext) -> None:
        if context.engine is engine.sync_engine and isinstance(context.original_exception, asyncio.CancelledError):
            context.is_disconnect = False

    event.listen(engine.sync_engine, "handle_error", keep)
