"""A SQLAlchemy connection on Django's own driver connection: what is executed on it is committed by Django.

Statements go through Django's cursor. So Django refuses them in a broken transaction, shows them in its query log, and closes
a connection that has failed. Nothing here begins, ends or closes anything.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from threading import local
from typing import Any

from django.db import connections
from django.db.utils import Error
from sqlalchemy import Connection, Engine, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from onceonly.integrations.django.configuration import server_url
from onceonly.model.errors import SchemaMissing, SetupError
from onceonly.sql.database import place_of
from onceonly.sql.store.enlistment import check_connection, shared_dialect
from onceonly.sql.urls import DatabaseAddress

NO_AUTOCOMMIT = (
    "the connection of database {alias!r} is not in autocommit mode, so `transaction.atomic()` would not commit: remove "
    "AUTOCOMMIT = False from DATABASES, and calls of set_autocommit(False)"
)
_KEPT = "_onceonly_borrowed"
_HARMLESS = frozenset({"commit", "rollback", "close"})
"""Methods of the driver that SQLAlchemy calls for connections of its own. Here they do nothing."""


class _Cursor:
    """Django's cursor, which raises the driver's own errors, as SQLAlchemy expects."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, statement: str, parameters: Any = None) -> Any:
        with _drivers_errors():
            return self._cursor.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Any) -> Any:
        with _drivers_errors():
            return self._cursor.executemany(statement, parameters)

    def fetchone(self) -> Any:
        with _drivers_errors():
            return self._cursor.fetchone()

    def fetchmany(self, size: int | None = None) -> Any:
        with _drivers_errors():
            return self._cursor.fetchmany() if size is None else self._cursor.fetchmany(size)

    def fetchall(self) -> Any:
        with _drivers_errors():
            return self._cursor.fetchall()


class _BorrowedConnection:
    """The driver's connection of one of Django's. While `is_silent`, statements are not shown in Django's query log."""

    def __init__(self, django: Any) -> None:
        self.django = django
        self.driver = django.connection
        self.is_silent = False

    def cursor(self, *_arguments: Any, **_options: Any) -> _Cursor:
        return _Cursor(self.django.create_cursor() if self.is_silent else self.django.cursor())

    def __getattr__(self, name: str) -> Any:
        return _nothing if name in _HARMLESS else getattr(self.driver, name)


def borrowed(alias: str, place: DatabaseAddress) -> Connection:
    """Return the connection on that of Django's alias, which has an open transaction. `place` says where the tables are.

    Raises SetupError and SchemaMissing the first time, if they are not there.
    """
    django = connections[alias]
    kept: tuple[_BorrowedConnection, Connection] | None = getattr(django, _KEPT, None)
    if kept is not None and kept[0].driver is django.connection and not kept[1].closed and not kept[1].invalidated:
        return kept[1]
    lent = _BorrowedConnection(django)
    lent.is_silent = True
    try:
        connection = _connected(_engine(django, place), lent)
        check_connection(connection, place, shared_dialect(place.url))
    except SchemaMissing as error:
        raise SchemaMissing(f"database {alias!r} lacks tables of onceonly: run `manage.py migrate`. {error}") from error
    finally:
        lent.is_silent = False
    setattr(django, _KEPT, (lent, connection))
    return connection


@contextmanager
def borrowed_anyway(alias: str, *, is_silent: bool = False) -> Iterator[Connection]:
    """Lend the connection of an alias for a block, whether it has a transaction and tables or not.

    With `is_silent`, its statements are not shown in Django's query log.
    """
    django = connections[alias]
    django.ensure_connection()
    lent = _BorrowedConnection(django)
    lent.is_silent = is_silent
    yield _connected(_engine(django, place_of_alias(alias)), lent)


def place_of_alias(alias: str) -> DatabaseAddress:
    """Return where migrations create the tables: where the connection finds those without a schema."""
    return place_of(server_url(alias))


def driver_error(error: BaseException) -> DBAPIError | None:
    """Return an error of Django's ORM, or of SQLAlchemy, in the form that dialects classify. None for any other."""
    if isinstance(error, DBAPIError):
        return error
    cause = error.__cause__
    return DBAPIError("", None, cause) if isinstance(error, Error) and cause is not None else None


def is_lost(alias: str, error: DBAPIError) -> bool:
    """Return whether an error means that the connection of an alias is gone."""
    django = connections[alias]
    if error.connection_invalidated or django.connection is None or django.closed_in_transaction:
        return True
    if error.orig is None:
        return False
    return bool(_dialect(django.Database).is_disconnect(error.orig, django.connection, None))


def check_driver(django: Any) -> None:
    """Check that Django uses a driver with which its connection can be borrowed. Raises SetupError."""
    name = django.Database.__name__
    if name not in _DIALECTS:
        raise SetupError(
            f"the driver {name} of database {django.alias!r} is not supported: use psycopg 3, mysqlclient, PyMySQL or SQLite"
        )


_DIALECTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "psycopg": ("postgresql+psycopg", {"use_native_hstore": False}),
    "MySQLdb": ("mysql+mysqldb", {}),
    "pymysql": ("mysql+pymysql", {}),
    "sqlite3": ("sqlite+pysqlite", {}),
    "sqlite3.dbapi2": ("sqlite+pysqlite", {}),
}
"""The dialect of SQLAlchemy and its options, by the name of Django's driver."""


def _engine(django: Any, place: DatabaseAddress) -> Engine:
    check_driver(django)
    return _engine_of(django.Database, place.url.host, place.url.port, django.settings_dict["NAME"])


@lru_cache(64)
def _engine_of(driver: Any, *_where: object) -> Engine:
    """Return the engine for a database, which SQLAlchemy asks for its version only once."""
    name, options = _DIALECTS[driver.__name__]
    if driver.__name__.startswith("sqlite3"):
        options = {"paramstyle": "format"}  # that of Django's cursor
    # `_initialize` is private. SQLAlchemy would otherwise change settings and functions of Django's connections. A test
    # notices if it disappears.
    return create_engine(
        f"{name}://", module=driver, creator=_lend, poolclass=NullPool, pool_reset_on_return=None, _initialize=False, **options
    )


def _dialect(driver: Any) -> Any:
    return _engine_of(driver).dialect


_LENDING = local()


def _lend() -> object:
    return _LENDING.connection


def _connected(engine: Engine, lent: _BorrowedConnection) -> Connection:
    _LENDING.connection = lent
    try:
        connection = engine.connect()
    finally:
        del _LENDING.connection
    if getattr(engine.dialect, "server_version_info", None) is None:
        engine.dialect.initialize(connection)
    return connection


@contextmanager
def _drivers_errors() -> Iterator[None]:
    try:
        yield
    except Error as error:
        if error.__cause__ is None:  # Django's own, such as that of a broken transaction
            raise
        raise error.__cause__ from None


def _nothing(*_arguments: Any, **_options: Any) -> None:
    """Do nothing."""
