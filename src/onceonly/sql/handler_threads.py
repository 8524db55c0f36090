"""A synchronous handler in a thread of its own, with SQLAlchemy's asynchronous drivers.

SQLAlchemy runs its synchronous code in a greenlet. What has to be awaited is switched to the greenlet's parent, which awaits it
and switches back. Since 2.0.31 any greenlet with the attribute `__sqlalchemy_greenlet_provider__` may take part (see its change
log). Here the parent is in the handler's thread, and the event loop awaits what it receives. So the event loop makes every call
of a driver, and everything else happens in the thread.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import cache
from sys import exc_info
from typing import Any
from weakref import WeakSet

import sqlalchemy
from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]  # its types are another package
from sqlalchemy import Engine, event, util
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.formats.log_events import EventLogger

_PROVIDER = "__sqlalchemy_greenlet_provider__"
_LOST = "onceonly_on_lost"
_KEPT: WeakSet[Engine] = WeakSet()

_await: Callable[[Awaitable[Any]], Any] = getattr(util, "await_", None) or util.await_only  # the older name
_log = EventLogger(logging.getLogger("onceonly"))


class _Question:
    """Something to await, which only the test of the seam gets to see."""

    def __await__(self) -> Any:
        raise NotImplementedError


@cache
def is_supported() -> bool:
    """Return whether the installed SQLAlchemy switches to the parent of such a greenlet. Otherwise handlers need the loop."""
    question = _Question()

    def ask() -> object:
        return _await(question)

    try:
        asking = _greenlet(ask)
        is_fit = asking.switch() is question and asking.switch("answer") == "answer"
    except Exception:  # noqa: BLE001 - however another version of SQLAlchemy fails
        is_fit = False
    if not is_fit:
        extra = {"sqlalchemy": sqlalchemy.__version__}
        _log.warning("handler threads not supported, def handlers run in the event loop", extra=extra)
    return is_fit


def in_greenlet(function: Callable[[], Any], wait_for: Callable[[Awaitable[Any]], Any], on_lost: Callable[[], object]) -> Any:
    """Call a function in the current thread, and have `wait_for` await what its SQL needs.

    Calls `on_lost` when an error has made the connection unusable: the event loop has to close it.
    """
    work = _greenlet(function)
    setattr(work, _LOST, on_lost)
    left = work.switch()
    while not work.dead:
        try:
            answer = wait_for(left)
        except BaseException:  # noqa: BLE001 - it is the handler's to see
            left = work.throw(*exc_info())
        else:
            left = work.switch(answer)
    return left


def keep_in_threads(engine: AsyncEngine) -> None:
    """Keep threads of handlers from closing a connection after an error: closing it needs the event loop.

    Call it when all others have registered their listeners: the last one decides.
    """
    if engine.sync_engine not in _KEPT:
        _KEPT.add(engine.sync_engine)
        event.listen(engine.sync_engine, "handle_error", _keep)


def _keep(context: ExceptionContext) -> None:
    on_lost = getattr(getcurrent(), _LOST, None)
    if on_lost is not None and context.is_disconnect:
        context.is_disconnect = False
        on_lost()


def _greenlet(function: Callable[[], Any]) -> Any:
    parent = getcurrent()
    made = greenlet(function, parent)
    made.gr_context = parent.gr_context
    setattr(made, _PROVIDER, True)
    return made
