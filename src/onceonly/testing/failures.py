"""What handlers raised during a test."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from onceonly.endpoint.limits import CancelledFromInside
from onceonly.model.errors import CommitRefused, HandlerFailed, InvalidEffect, Reject, RetryLater
from onceonly.model.identity import Identity
from onceonly.model.message import FailureKind, Message
from onceonly.runtime.observe.observer import Point, PortCall

_OWN = frozenset({FailureKind.EXCEPTION, FailureKind.TIMEOUT, FailureKind.COMMIT})


@dataclass(frozen=True)
class HandlerFailure:
    """One failed attempt of a handler.

    * `exception`: what the handler raised. `TimeoutError` if it took longer than its time-out. The exception of SQLAlchemy, or
      `CommitRefused`, if the store rejected its changes at the commit.
    * `message`: the message that it handled.
    * `handler`: its module and qualified name.
    """

    exception: Exception
    message: Message
    handler: str


class FailureRecorder:
    """An observer that records what handlers raise. A unit that is run again in the same batch is one attempt.

    `Reject` and `RetryLater` are decisions of a handler and are not recorded.
    """

    def __init__(self, handler_of: Callable[[Message], str]) -> None:
        self.failures: list[HandlerFailure] = []
        self._handler_of = handler_of
        self._batch: dict[Identity, int] = {}
        self._handled: list[Message] = []

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        if call.point is Point.RECEIVE:
            self._batch.clear()
        if call.point is Point.BEGIN:
            self._handled.clear()
        try:
            yield
        except HandlerFailed as error:
            is_one = call.point is Point.HANDLE and len(call.items) == 1  # of several, another run finds which one it is
            if is_one and (raised := _raised(error)) is not None:
                self._record(call.items[0], raised)
            raise
        except CommitRefused as error:
            at_commit = self._handled if call.point is Point.COMMIT else ()
            rejected = call.items if call.point is Point.HANDLE else at_commit
            if len(rejected) == 1:  # of several, another pass finds which one it is
                self._record(rejected[0], error.__cause__ if isinstance(error.__cause__, Exception) else error)
            raise
        if call.point is Point.HANDLE:
            self._handled.extend(call.items)

    def _record(self, message: Message, exception: Exception) -> None:
        failure = HandlerFailure(exception, message, self._handler_of(message))
        known = self._batch.setdefault(message.identity, len(self.failures))
        self.failures[known : known + 1] = [failure]


def _raised(error: HandlerFailed) -> Exception | None:
    """Return what a test should see, or None for what is not a failure of the handler."""
    cause, failure = error.__cause__, error.failure
    if failure.kind is FailureKind.TIMEOUT:
        raised = TimeoutError(failure.reason)
        raised.__cause__ = cause
        return raised
    if failure.kind not in _OWN and not isinstance(cause, InvalidEffect):
        return None
    if isinstance(cause, Exception) and not isinstance(cause, CancelledFromInside | Reject | RetryLater):
        return cause
    return error
