"""asyncpg's connection as one handler sees it: each statement is looked at, and nothing works after the handler has ended.

No event of SQLAlchemy sees what is executed on the driver's own connection. So a handler gets an object with the same methods.
"""

from collections.abc import Callable
from typing import Any

from onceonly.sql.dialect import DriverScope

_WITH_TEXT = frozenset({"copy_from_query", "execute", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval", "prepare"})
"""Methods whose first argument is SQL."""
_WITHOUT_TEXT = frozenset({"copy_from_table", "copy_records_to_table", "copy_to_table"})
"""Other methods that use the transaction."""
_REFUSING = frozenset({"cursor", "transaction"})
"""Methods that asyncpg refuses in a transaction that it has not begun itself."""
_READING = frozenset(
    {
        *("get_reset_query", "get_server_pid", "get_server_version", "get_settings", "is_closed", "is_in_transaction"),
        *("get_attributes", "get_query_loggers", "get_name"),
    }
)
"""Methods that send nothing. All others may change the session: the connection is closed after the unit."""


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
    if name in _WITH_TEXT:

        def with_text(self: Any, query: str, *arguments: Any, **options: Any) -> Any:
            if name == "prepare":
                self._scope.leave("prepare() of the driver's connection")
            first = self._scope.before_driver(query)
            if not self._driver.is_in_transaction():
                self._scope.check_transaction()
            call = getattr(self._driver, name)
            if first is not None:
                return _after(first, call, query, *arguments, **options)
            return call(query, *arguments, **options)

        return with_text

    def without_text(self: Any, *arguments: Any, **options: Any) -> Any:
        call = getattr(self._driver, name)
        if name in _READING or name in _REFUSING:
            return call(*arguments, **options)
        if name not in _WITHOUT_TEXT:
            self._scope.leave(f"{name}() of the driver's connection")
        first = self._scope.before_use()
        return call(*arguments, **options) if first is None else _after(first, call, *arguments, **options)

    return without_text


async def _after(first: Any, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    await first
    return await call(*arguments, **options)
