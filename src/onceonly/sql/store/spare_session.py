"""Whether a session can serve the next handler as well: nothing tells it from a new one, and nothing else refers to it.

To make a session, begin its transaction and close it takes SQLAlchemy longer than to add an object. A handler that only adds
objects leaves a session that has used no connection. When the rows of these objects were taken, it is as it was when it was
made. If only the unit refers to it, and to its transaction, it cannot be used after its handler or compared with the next one.
"""

import sys
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any
from weakref import getweakrefcount

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionEvents

_REPLACED = frozenset({"identity_map", "_new", "_deleted"})
"""Attributes of a session that change when an object is added, and that are empty after `expunge_all`."""
_listeners = attrgetter(*(name for name in vars(SessionEvents) if not name.startswith("_") and name != "dispatch"))
_references: Callable[[object], int] | None = getattr(sys, "getrefcount", None)
"""CPython's own count. Where there is none each handler gets a new session."""


class SpareSession:
    """A session, and what it was when it was made."""

    __slots__ = ("_counts", "_get_async", "_get_sync", "_silent", "_values", "_values_async", "session")

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    def look(self) -> None:
        """Look at the session when it is new and its transaction has begun. The caller must keep no reference of its own."""
        session = self.session
        synchronous = session.sync_session
        self._get_async, self._get_sync = itemgetter(*vars(session)), itemgetter(*(vars(synchronous).keys() - _REPLACED))
        self._values_async = _copied(self._get_async(vars(session)))
        self._values = _copied(self._get_sync(vars(synchronous)))
        self._silent = _listeners(synchronous.dispatch)
        is_heard = any(self._silent)
        # A class with a constructor of its own may keep anything.
        is_plain = type(session).__init__ is AsyncSession.__init__ and type(synchronous).__init__ is Session.__init__
        del session, synchronous
        self._counts = self._count() if is_plain and not is_heard else ()

    def is_as_new(self) -> bool:
        """Return whether the session is as it was, and nothing refers to it that did not refer to it then.

        The caller must keep no reference of its own, and must have called `expunge_all`.
        """
        counts = self._count()
        if not counts or counts != self._counts:
            return False
        session = self.session
        synchronous = session.sync_session
        now_async, now = vars(session), vars(synchronous)
        if len(now_async) != len(self._values_async) or len(now) != len(self._values) + len(_REPLACED):
            return False
        if self._get_async(now_async) != self._values_async or self._get_sync(now) != self._values:
            return False
        transaction = synchronous.get_transaction()
        if transaction is None or transaction.connections or synchronous.identity_map:
            return False
        return bool(_listeners(synchronous.dispatch) == self._silent)

    def _count(self) -> tuple[int, ...]:
        """Count the references to the session, to the synchronous one inside, and to its transaction; weak ones too."""
        if _references is None:
            return ()
        session = self.session
        synchronous = session.sync_session
        transaction = synchronous.get_transaction()
        return (
            *(_references(session), _references(synchronous), _references(transaction)),
            *(getweakrefcount(session), getweakrefcount(synchronous), getweakrefcount(transaction)),
        )


def _copied(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy those that a handler can change in place, such as `info`."""
    return tuple(dict(each) if isinstance(each, dict) else each for each in values)
