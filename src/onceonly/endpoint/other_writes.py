"""Noticing a handler that writes through a connection of its own, which its unit does not commit.

Such a write stays when the unit is rolled back, and is repeated when the message is handled again. What can be seen without a
cost for every statement is: Django's connections, and connections of SQLAlchemy engines that are taken during the handler. Each
handler is named once in a process. Django is not imported unless the application has imported it.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.sql.statement_effects import does_write

_log = EventLogger(logging.getLogger("onceonly"))
_logged = LoggedKeys()


class HandlerName:
    """A handler of an endpoint, and whether it was found to write elsewhere.

    One object serves all runs of the handler. A run's context then equals that of the run before.
    """

    __slots__ = ("endpoint", "handler", "is_reported")

    def __init__(self, endpoint: str, handler: str) -> None:
        self.endpoint = endpoint
        self.handler = handler
        self.is_reported = False


RUNNING: ContextVar[HandlerName | None] = ContextVar("onceonly_running_handler", default=None)
"""The handler that runs in this task or thread."""
IN_UNIT = "_onceonly_unit"
"""Set on a connection of Django whose transaction is a unit's, so that writes through it are part of the unit."""


def is_watched() -> bool:
    """Return whether a handler runs here that was not reported yet."""
    running = RUNNING.get()
    return running is not None and not running.is_reported


def report(used: str) -> None:
    """Log that the handler that runs here wrote through `used`, unless this was logged before."""
    running = RUNNING.get()
    if running is None or running.is_reported:
        return
    running.is_reported = True
    if _logged.add(running.endpoint, running.handler):
        fields = {"endpoint": running.endpoint, "handler": running.handler, "used": used}
        _log.warning("handler writes outside of its transaction", extra=fields)


class OtherWrites:
    """Watches the libraries that this process has imported, each from the first call of `start` that finds it."""

    def __init__(self) -> None:
        self._watches_sqlalchemy = self._watches_django = False

    def start(self) -> None:
        """Watch what is imported by now. A call that finds nothing new costs two look-ups."""
        if not self._watches_sqlalchemy and "sqlalchemy.ext.asyncio" in sys.modules:
            self._watches_sqlalchemy = True
            from onceonly.sql.other_connections import WriteWatch  # noqa: PLC0415 - only where SQLAlchemy is there

            WriteWatch(is_watched, report).start()
        if not self._watches_django and "django.db" in sys.modules:
            self._watches_django = _watch_django(sys.modules["django.db"])


OTHER_WRITES = OtherWrites()


@contextmanager
def watching(handler: HandlerName) -> Iterator[None]:
    """Watch what a handler of a host does in this block. Nothing is watched when it is left."""
    OTHER_WRITES.start()
    running = RUNNING.set(handler)
    try:
        yield
    finally:
        RUNNING.reset(running)


def _watch_django(db: Any) -> bool:
    """Add a wrapper to all connections of Django that exist here, and to those that are opened later.

    A library may import Django without settings, such as the SDK of Sentry. Then it has opened none.
    """
    if not hasattr(db, "connections"):
        return False  # it is being imported
    if import_module("django.conf").settings.configured:
        for connection in db.connections.all(initialized_only=True):
            _wrap(connection=connection)
    signals: Any = import_module("django.db.backends.signals")
    signals.connection_created.connect(_wrap, dispatch_uid="onceonly", weak=False)
    return True


def _wrap(*, connection: Any, **_: object) -> None:
    """Put the wrapper first: a wrapper of the application's that is removed is the last one."""
    if _note_write not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _note_write)


def _note_write(execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: Any) -> Any:  # noqa: PLR0917 - Django's
    if is_watched() and does_write(str(sql)):
        django = context["connection"]
        if not getattr(django, IN_UNIT, False):
            report(f'Django connection "{django.alias}"')
    return execute(sql, params, many, context)
