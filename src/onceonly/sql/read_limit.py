"""A limit for reads that their caller gives up: a server ends them as well, so that they do not add up there.

A cancelled task ends its statement on most connections. It cannot on a MariaDB connection of an application's own engine, nor
behind a proxy that numbers connections differently, and a process that was killed cancels nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SECONDS: ContextVar[float | None] = ContextVar("onceonly_read_limit", default=None)


@contextmanager
def limited_reads(seconds: float) -> Iterator[None]:
    """Let servers end a SELECT of this task that takes longer, where a cancellation may not do it."""
    token = _SECONDS.set(seconds)
    try:
        yield
    finally:
        _SECONDS.reset(token)


def read_limit() -> float | None:
    """Return the limit of this task, in seconds, or None."""
    return _SECONDS.get()
