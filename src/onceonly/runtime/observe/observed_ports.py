"""Ports whose every call is enclosed by an observer: one generic wrapper, and a table of the calls of each port."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar, cast

from onceonly.algorithms.effects import NoArtifacts
from onceonly.model.message import Delivery, Message, Send, Unreadable
from onceonly.ports.bundle import Ports, RelayPorts
from onceonly.ports.handlers import Handlers
from onceonly.ports.run_markers import NoRunMarkers
from onceonly.runtime.observe.observer import Observer, Point, PortCall, read_observers

_Port = TypeVar("_Port")

_NOTHING: Callable[..., Sequence[Any]] = lambda *_, **__: ()  # noqa: E731 - a value of the tables below
_FIRST: Callable[..., Sequence[Any]] = lambda items, *_, **__: items  # noqa: E731 - the same
_ONE: Callable[..., Sequence[Any]] = lambda item, *_, **__: () if item is None else (item,)  # noqa: E731 - the same


class ObservedCall(NamedTuple):
    """How one call of a port is observed.

    `items` selects, from the call's arguments, its subject. `when` is false for calls that do nothing. `opens` is the
    table of what the call returns, where that is observed as well; it has `abandon()`.
    """

    point: Point
    items: Callable[..., Sequence[Any]] = _FIRST
    when: Callable[..., bool] | None = None
    opens: "Mapping[str, ObservedCall] | None" = None
    names: Callable[[str, Sequence[Any]], Point] | None = None


def _is_for(endpoint: str, sends: Sequence[Send]) -> Point:
    return Point.RETRY_COPY if any(is_retry_copy(send, endpoint) for send in sends) else Point.DISPATCH


_UNIT = {"commit": ObservedCall(Point.COMMIT)}
_OPENED = {"commit": ObservedCall(Point.COMMIT, _ONE)}

STORE = {"begin": ObservedCall(Point.BEGIN, opens=_UNIT), "forget": ObservedCall(Point.FORGET)}
FENCE = {"fence": ObservedCall(Point.FENCE, _NOTHING)}
PENDING = {
    "undispatched": ObservedCall(Point.UNDISPATCHED, _NOTHING),
    "take": ObservedCall(Point.TAKE, _NOTHING),
    "find": ObservedCall(Point.FIND),
}
HANDLERS = {"handle": ObservedCall(Point.HANDLE, _ONE), "handle_batch": ObservedCall(Point.HANDLE)}
ADMISSION = {
    "admits": ObservedCall(Point.ADMITS),
    "prepare": ObservedCall(Point.PREPARE),
    "activate": ObservedCall(Point.ACTIVATE),
    "discard": ObservedCall(Point.DISCARD),
    "retire": ObservedCall(Point.RETIRE),
}
EFFECTS = {
    "register": ObservedCall(Point.REGISTER),
    "create": ObservedCall(Point.CREATE),
    "discard": ObservedCall(Point.DELETE),
    "clean": ObservedCall(Point.CLEAN),
    "call": ObservedCall(Point.CALL, when=lambda records: any(record.requests for record in records)),
    "responses": ObservedCall(Point.RESPONSE),
}
TRANSPORT = {
    "receive": ObservedCall(Point.RECEIVE, _NOTHING),
    "send": ObservedCall(Point.DISPATCH, names=_is_for),
    "ack": ObservedCall(Point.ACK),
    "release": ObservedCall(Point.RELEASE),
    "extend": ObservedCall(Point.EXTEND),
    "declare": ObservedCall(Point.DECLARE),
    "depth": ObservedCall(Point.DEPTH, _NOTHING),
}
DEAD_LETTERS = {
    "add": ObservedCall(Point.DEAD_LETTER, _ONE),
    "page": ObservedCall(Point.DEAD_PAGE, _NOTHING),
    "get": ObservedCall(Point.DEAD_GET, _NOTHING),
    "count": ObservedCall(Point.DEAD_COUNT, _NOTHING),
    "remove": ObservedCall(Point.DEAD_REMOVE),
}
RUN_MARKERS = {
    "begin": ObservedCall(Point.START, _ONE),
    "finish": ObservedCall(Point.START_ENDED, _ONE),
    "forget": ObservedCall(Point.START_ENDED, _ONE),
}
ATTEMPTS = {
    "entry": ObservedCall(Point.IDEMPOTENCY_ENTRY, _NOTHING),
    "record": ObservedCall(Point.RECORD, _ONE),
    "bury": ObservedCall(Point.BURY, _ONE),
}
TRANSACTIONS = {"open": ObservedCall(Point.OPEN, _ONE, opens=_OPENED), "entry": ObservedCall(Point.IDEMPOTENCY_ENTRY, _NOTHING)}
REMOTE_REQUESTS = {
    "put": ObservedCall(Point.REQUEST_PUT, _NOTHING),
    "open": ObservedCall(Point.REQUEST_OPEN, _ONE, opens=_OPENED),
    "entry": ObservedCall(Point.IDEMPOTENCY_ENTRY, _NOTHING),
    "bury": ObservedCall(Point.REQUEST_BURY, _NOTHING),
    "remove": ObservedCall(Point.REQUEST_REMOVE, _NOTHING),
}
JOURNALS = {"read": ObservedCall(Point.JOURNAL, _NOTHING), "write": ObservedCall(Point.NOTE, _ONE)}
"""What the maintenance tasks do is in the journal, and needs no other observer."""


class ObservedPort:
    """A port, or what a port has opened, with the calls of a table enclosed by an observer. All else is passed through."""

    def __init__(self, port: Any, table: Mapping[str, ObservedCall], endpoint: str, observer: Observer) -> None:
        self._port = port
        self._observing = table, endpoint, observer
        for name, watched in table.items():
            setattr(self, name, _enclosed((port, name), watched, endpoint, observer))

    def of_relay(self) -> "ObservedPort":
        """Return the same for a relay: its calls are marked as those of a relay."""
        table, endpoint, observer = self._observing
        return ObservedPort(self._port, table, endpoint, _MarksRelay(observer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def observed(ports: Ports, observer: Observer | None) -> Ports:
    """Return ports that do the same and let `observer` enclose every call; without one, the very same ports."""
    if observer is None:
        return ports

    def watched(port: _Port, table: Mapping[str, ObservedCall]) -> _Port:
        return cast("_Port", ObservedPort(port, table, ports.endpoint, observer))

    journals, controls, markers = ports.maintenance.journals, ports.controls, ports.run_markers
    return ports._replace(
        store=watched(ports.store, STORE),
        fence=watched(ports.fence, FENCE),
        pending=None if ports.pending is None else watched(ports.pending, PENDING),
        handlers=_observed_handlers(ports.handlers, ports.endpoint, observer),
        admission=watched(ports.admission, ADMISSION),
        effects=ports.effects if isinstance(ports.effects, NoArtifacts) else watched(ports.effects, EFFECTS),
        transport=watched(ports.transport, TRANSPORT),
        dead_letters=watched(ports.dead_letters, DEAD_LETTERS),
        maintenance=ports.maintenance if journals is None else ports.maintenance._replace(journals=watched(journals, JOURNALS)),
        transactions=None if ports.transactions is None else watched(ports.transactions, TRANSACTIONS),
        controls=None if controls is None else controls._replace(attempts=watched(controls.attempts, ATTEMPTS)),
        remote_requests=None if ports.remote_requests is None else watched(ports.remote_requests, REMOTE_REQUESTS),
        run_markers=markers if isinstance(markers, NoRunMarkers) else watched(markers, RUN_MARKERS),
    )


class _MarksRelay:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        call.by_relay = True
        return self._observer.around(call)


def by_relay(ports: RelayPorts) -> RelayPorts:
    """Return these ports of an endpoint for its relay. Its sends are marked, where they are observed."""
    transport: Any = ports.transport
    return ports._replace(transport=transport.of_relay()) if isinstance(transport, ObservedPort) else ports


def _observed_handlers(handlers: Handlers, endpoint: str, observer: Observer) -> Handlers:
    port, observers, read = ObservedPort(handlers, HANDLERS, endpoint, observer), read_observers(observer), handlers.read

    def reading(delivery: Delivery) -> Message | Unreadable:
        message = read(delivery)
        for each in observers:
            each.read(endpoint, delivery, message)
        return message

    if observers:
        setattr(port, "read", reading)  # noqa: B010 - as `ObservedPort` sets the others
    return cast("Handlers", port)


def _enclosed(called: tuple[Any, str], watched: ObservedCall, endpoint: str, observer: Observer) -> Callable[..., Any]:
    port, method = called[0], getattr(*called)
    point, items, when, opens, names = watched

    async def call(*arguments: Any, **named: Any) -> Any:
        if when is not None and not when(*arguments, **named):
            return await method(*arguments, **named)
        about = items(*arguments, **named)
        made = PortCall(point if names is None else names(endpoint, about), endpoint, about, port=port)
        enclosing = observer.around(made)
        if enclosing.__class__ is nullcontext:
            return await method(*arguments, **named)
        async with enclosing:
            made.result = result = await method(*arguments, **named)
        return result

    if opens is None:
        return call

    async def opening(*arguments: Any, **named: Any) -> Any:
        made = PortCall(point, endpoint, items(*arguments, **named), port=port)
        opened: Any = None
        try:
            async with observer.around(made):
                made.result = opened = await method(*arguments, **named)
        except BaseException:
            if hasattr(opened, "abandon"):
                opened.abandon()  # the observer raised, and only this function has the unit
            raise
        return ObservedPort(opened, opens, endpoint, observer) if hasattr(opened, "abandon") else opened

    return opening


def is_retry_copy(send: Send, endpoint: str) -> bool:
    """Return whether this send brings an incoming message back to its own endpoint.

    It carries what a copy must remember; one put off by its handler carries nothing, but comes from another source.
    """
    remembers = bool(send.attempts or send.alone or send.held or send.history)
    return remembers or (send.to == endpoint and send.message.source != endpoint)
