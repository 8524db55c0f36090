"""The one seam around every port call: logs, spans, metrics and crash injection hang here, so adapters contain none of it."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Message, Send, Unreadable
from onceonly.model.record import Record
from onceonly.model.transaction import TransactionAttempt


class Point(StrEnum):
    """The port calls by name; crash points are `before-` and `after-` these."""

    RECEIVE = "receive"
    REGISTER = "register"
    BEGIN = "begin"
    ADMITS = "admits"
    HANDLE = "handle"
    PREPARE = "prepare"
    CREATE = "create"
    COMMIT = "commit"
    DISCARD = "discard"
    DELETE = "delete"
    ACTIVATE = "activate"
    CALL = "call"
    RESPONSE = "response"
    DISPATCH = "dispatch"
    CLEAN = "clean"
    RETIRE = "retire"
    FORGET = "forget"
    ACK = "ack"
    RELEASE = "release"
    RETRY_COPY = "retry-copy"
    DEAD_LETTER = "dead-letter"
    EXTEND = "extend"
    DECLARE = "declare"
    DEPTH = "depth"
    UNDISPATCHED = "undispatched"
    TAKE = "take"
    FIND = "find"
    FENCE = "fence"
    OPEN = "open"
    IDEMPOTENCY_ENTRY = "idempotency-entry"
    JOURNAL = "journal"
    NOTE = "note"
    RECORD = "record"
    BURY = "bury"
    REQUEST_PUT = "request-put"
    REQUEST_OPEN = "request-open"
    REQUEST_BURY = "request-bury"
    REQUEST_REMOVE = "request-remove"
    START = "start"
    START_ENDED = "start-ended"
    DEAD_PAGE = "dead-page"
    DEAD_GET = "dead-get"
    DEAD_COUNT = "dead-count"
    DEAD_REMOVE = "dead-remove"


class PortCall(Struct):
    """One port call: its name, whose it is, and about which items (messages, records, sends, deliveries, letters).

    `result` is what the call returned, there once it has returned. `port` is the object that is called. `by_relay` is true for
    what a relay sends.
    """

    point: Point
    endpoint: str
    items: Sequence[Any] = ()
    result: Any = None
    port: Any = None
    by_relay: bool = False

    @property
    def count(self) -> int:
        """How many items it is about; for `receive`, how many came."""
        return len(self.result or ()) if self.point is Point.RECEIVE else len(self.items)

    @property
    def identities(self) -> tuple[Identity, ...]:
        """The messages it is about, as far as the items say (a delivery does not)."""
        return tuple(identity for item in self.items if (identity := _identity(item)) is not None)


class Observer(Protocol):
    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        """Return what encloses this call. It must not swallow the call's exception."""


@runtime_checkable
class ReadObserver(Protocol):
    """An observer that also sees which message each delivery brings. Reading is not a port call."""

    def read(self, endpoint: str, delivery: Delivery, message: Message | Unreadable) -> None:
        """Receive what was read. It must not raise."""


class Observers:
    """Several observers as one; the first is outermost."""

    def __init__(self, *observers: Observer) -> None:
        self.flat: tuple[Observer, ...] = tuple(
            one for each in observers for one in (each.flat if isinstance(each, Observers) else (each,))
        )
        """Those that are not several themselves."""

    @property
    def read_observers(self) -> tuple[ReadObserver, ...]:
        return tuple(found for each in self.flat for found in read_observers(each))

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        """Enclose the call in all of them that have something to enclose it in."""
        only: AbstractAsyncContextManager[object] = _NOTHING
        several: list[AbstractAsyncContextManager[object]] = []
        for observer in self.flat:  # most calls are enclosed by one of them
            context = observer.around(call)
            if context.__class__ is nullcontext:
                continue
            if only is not _NOTHING:
                several = several or [only]
                several.append(context)
            only = context
        return _Nested(several) if several else only


class _Nested:
    """Encloses a call in several contexts, none of which swallows its exception. This is on the hot path."""

    __slots__ = ("_contexts", "_entered")

    def __init__(self, contexts: Sequence[AbstractAsyncContextManager[object]]) -> None:
        self._contexts, self._entered = contexts, 0

    async def __aenter__(self) -> None:
        try:
            for context in self._contexts:
                await context.__aenter__()
                self._entered += 1
        except BaseException as error:
            await self._leave(error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raised = await self._leave(error)
        if raised is not None and raised is not error:
            raise raised

    async def _leave(self, error: BaseException | None) -> BaseException | None:
        """Leave what was entered, the innermost first. Returns the error by then."""
        for context in reversed(self._contexts[: self._entered]):
            try:
                if error is None:
                    await context.__aexit__(None, None, None)
                else:
                    await context.__aexit__(type(error), error, error.__traceback__)
            except BaseException as other:  # noqa: BLE001 - the others see it, and it is raised at the end
                error = other
        return error


_NOTHING = nullcontext()


def read_observers(observer: Observer) -> tuple[ReadObserver, ...]:
    if isinstance(observer, Observers):
        return observer.read_observers
    return (observer,) if isinstance(observer, ReadObserver) else ()


def _identity(item: object) -> Identity | None:
    match item:
        case Identity():
            return item
        case Message() | Record() | TransactionAttempt():
            return item.identity
        case Send():
            return item.message.identity
        case DeadLetter(message=Message() as message):
            return message.identity
        case _:
            return None
