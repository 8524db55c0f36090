"""Noticing statements on SQLAlchemy connections that are not this library's, whichever engine they belong to.

An event of statements for the class `Engine` would cost every engine a call for each part of each statement, this library's
engines included. So only the checkout of a connection is listened to, which costs a unit one call. The statements of an engine
are listened to from its first checkout in a handler on, through its dialect. An engine whose dialect has such listeners already
is left alone: adding one while another thread calls them is not safe.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakSet

from sqlalchemy import Engine, Pool, event
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.sql.statement_effects import does_write
from onceonly.sql.urls import written

Report = Callable[[str], None]
"""A function that receives what was used to write, such as the URL of a database without its password."""

_ENGINES: WeakSet[Engine] = WeakSet()
_DIALECTS: WeakSet[Dialect] = WeakSet()


def exempt(engine: AsyncEngine, *, own: bool) -> None:
    """Exempt an engine of this library: one of its `own`, or its view of a user's engine, but not that engine itself."""
    _ENGINES.add(engine.sync_engine)
    if own:
        _DIALECTS.add(engine.dialect)


class WriteWatch:
    """Reports writes of all other connections, while `is_watched` returns true in the thread or task that writes."""

    def __init__(self, is_watched: Callable[[], bool], report: Report) -> None:
        self._is_watched = is_watched
        self._report = report
        self._seen: WeakSet[Dialect] = WeakSet()
        self._lock = Lock()

    def start(self) -> None:
        event.listen(Pool, "checkout", self._checked_out)

    def stop(self) -> None:
        """Stop reporting. Listeners of engines that were seen stay, and do nothing."""
        event.remove(Pool, "checkout", self._checked_out)
        self._is_watched = _never

    def _checked_out(self, _driver: object, _record: object, fairy: Any) -> None:
        if not self._is_watched():
            return
        dialect = fairy._pool._dialect  # noqa: SLF001 - a pool has no public way to its engine
        if dialect in _DIALECTS or dialect in self._seen:
            return
        with self._lock:
            if dialect not in self._seen:
                self._seen.add(dialect)
                if not any(getattr(dialect.dispatch, name) for name in _EXECUTIONS):
                    for name in _EXECUTIONS:
                        event.listen(dialect, name, self._executed)

    def _executed(self, _cursor: object, statement: str, *rest: Any) -> None:
        if not self._is_watched():
            return
        engine = rest[-1].root_connection.engine
        if engine not in _ENGINES and does_write(statement):
            self._report(f"SQLAlchemy connection to {written(engine.url)}")


_EXECUTIONS = ("do_execute", "do_executemany", "do_execute_no_params")


def _never() -> bool:
    return False
