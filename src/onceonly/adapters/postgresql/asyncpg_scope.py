"""asyncpg's connection as one handler sees it: each statement is looked at, and nothing works after the handler has ended.

No event of SQLAlchemy sees what is executed on the driver's own connection. So a handler gets an object with the same methods.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from onceonly.sql.dialect import DriverScope

_WITH_TEXT = frozenset({"copy_from_query", "execute", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval", "prepare"})
"""Methods whose first argument is SQL."""
_WITHOUT_TEXT = frozenset({"copy_from_table", "copy_records_to_table", "copy_to_table"})
"""Other methods that use the transaction."""
_REFUSED = frozenset({"cursor", "transaction"})
"""Methods that asyncpg refuses in a transaction that it has not begun itself, as soon as their result is used."""
REFUSED = (
    "of the driver's connection is not allowed here: onceonly has begun the transaction. "
    "Use begin_nested() of the session or the connection for savepoints, and its stream() for large results"
)
_READING = frozenset(
    {
        *("get_reset_query", "get_server_pid", "get_server_version", "get_settings", "is_closed", "is_in_transaction"),
        *("get_attributes", "get_query_loggers", "get_name"),
    }
)
"""Methods that send nothing. All others may change the session: the connection is closed after the unit."""


@cache
def enclosed_class(asyncpg: Any) -> Callable[[object, DriverScope], object]:
    """Return the class of such objects. `isinstance` takes them for connections, as it does those of asyncpg's pool."""
    made = {"__slots__": ("_driver", "_scope"), "__init__": _init, "__repr__": _repr}
    for name in dir(asyncpg.Connection):
        if not name.startswith("_") and callable(getattr(asyncpg.Connection, name)):
            made[name] = _method(name)
    kind: Callable[[object, DriverScope], object] = type("HandlerConnection", (asyncpg.connection._ConnectionProxy,), made)  # noqa: SLF001 - what `isinstance` asks for
    return kind


def _init(self: Any, driver: object, scope: DriverScope) -> None:
    self._driver, self._scope = driver, scope


def _repr(self: Any) -> str:
    return f"<{self._driver!r} in one handler>"


def _method(name: str) -> Callable[..., Any]:
    if name in _READING:
        return _reading(name)
    if name in _WITH_TEXT:
        return _with_text(name)
    return _without_text(name) if name in _WITHOUT_TEXT else _other(name)


# What these return is awaited later. The handler may have ended by then, so all checks happen when it is awaited.


def _with_text(name: str) -> Callable[..., Any]:
    async def with_text(self: Any, query: str, *arguments: Any, **options: Any) -> Any:
        if name == "prepare":
            self._scope.leave("prepare() of the driver's connection")
        first = self._scope.before_driver(query)
        if not self._driver.is_in_transaction():
            self._scope.check_transaction()
        if first is not None:
            await first
        return await getattr(self._driver, name)(query, *arguments, **options)

    return with_text


def _without_text(name: str) -> Callable[..., Any]:
    async def without_text(self: Any, *arguments: Any, **options: Any) -> Any:
        if (first := self._scope.before_use()) is not None:
            await first
        return await getattr(self._driver, name)(*arguments, **options)

    return without_text


def _reading(name: str) -> Callable[..., Any]:
    def reading(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self._driver, name)(*arguments, **options)

    return reading


def _other(name: str) -> Callable[..., Any]:
    def other(self: Any, *arguments: Any, **options: Any) -> Any:
        self._scope.check_use()
        if name in _REFUSED:
            raise RuntimeError(f"{name}() {REFUSED}")
        self._scope.leave(f"{name}() of the driver's connection")
        first = self._scope.before_use()
        call = getattr(self._driver, name)
        return call(*arguments, **options) if first is None else _after(first, call, *arguments, **options)

    return other


async def _after(first: Any, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    await first
    return await call(*arguments, **options)
