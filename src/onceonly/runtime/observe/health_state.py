"""The vitals of one process: how its endpoints find their store and their transport, told by the calls they make anyway.

Nothing is asked for it: a worker receives all the time, the relay looks into the store every few seconds where that can be
searched, and the janitor reads its journal there once a minute.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from onceonly.model.errors import (
    BudgetExceeded,
    CommitRefused,
    ConflictError,
    HandlerFailed,
    OnceOnlyError,
    QueueMissing,
    RetryableError,
)
from onceonly.model.health import EndpointHealth, Trouble
from onceonly.model.maintenance_journal import MaintenanceJournal
from onceonly.ports.environment import Clock
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.logs import Logs
from onceonly.runtime.observe.observer import Point, PortCall

FAILURE_FADES_MS = 60_000
"""Milliseconds after which a call that failed, and was not made again, says nothing if others of its kind work."""
POLL_SECONDS = 1.0
"""Seconds between two looks whether something has changed."""
_NOTHING = nullcontext()
_PARTS = {
    "transport": (Point.RECEIVE, Point.DISPATCH, Point.RETRY_COPY, Point.ACK, Point.RELEASE, Point.EXTEND, Point.DECLARE),
    "store": (
        *(Point.REGISTER, Point.BEGIN, Point.COMMIT, Point.FORGET, Point.UNDISPATCHED, Point.TAKE, Point.FIND, Point.FENCE),
        *(Point.OPEN, Point.IDEMPOTENCY_ENTRY, Point.RECORD, Point.BURY, Point.JOURNAL, Point.START, Point.START_ENDED),
        *(Point.REQUEST_PUT, Point.REQUEST_OPEN, Point.REQUEST_BURY, Point.REQUEST_REMOVE),
    ),
    "dead letters": (Point.DEAD_LETTER,),
    "deduplication": (Point.ADMITS, Point.PREPARE, Point.ACTIVATE, Point.DISCARD, Point.RETIRE),
    "blobs or other services": (Point.CREATE, Point.DELETE, Point.CLEAN, Point.CALL, Point.RESPONSE),
    "janitor": (Point.NOTE,),
}
_STOPS_NOTHING = frozenset({"janitor", "dead letters", "blobs or other services"})  # of those, only what needs them waits
PART_OF = {point: part for part, points in _PARTS.items() for point in points}
"""Which calls show the state of which system."""
_SEARCHES = frozenset({Point.TAKE, Point.FIND, Point.UNDISPATCHED})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[EndpointHealth, ...]).decode


class CallEndListener(Protocol):
    def ended(self, call: PortCall, error: BaseException | None) -> None:
        """Take it in."""


class NoLogs:
    def ended(self, call: PortCall, error: BaseException | None) -> None:
        """Pass it over."""


class HealthObserver:
    """An observer that knows what works and what does not, for each endpoint here. It hands all calls on to `logs`.

    An endpoint works once a call of the name `first` has: a worker's receives, a relay's takes records.
    """

    def __init__(self, logs: CallEndListener | None = None, *, clock: Clock = LIVE.clock, first: Point = Point.RECEIVE) -> None:
        self._logs = logs or Logs()
        self._clock = clock
        self._first = first
        self._since = clock.now()
        self._working: set[str] = set()
        self._troubles: dict[tuple[str, str, Point], Trouble] = {}
        self._journals: dict[str, MaintenanceJournal] = {}
        self._failed_at: dict[tuple[str, str, Point], int] = {}
        self._searched: set[str] = set()
        """The endpoints whose store a relay searches all the time. Any other is called for messages only."""

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        """Watch this call; what handlers raise is not a problem of the endpoint."""
        return _NOTHING if call.point is Point.HANDLE else _HealthCall(self, call)

    def endpoints(self) -> tuple[EndpointHealth, ...]:
        now = self._clock.now()
        names = self._working | {endpoint for endpoint, _, _ in self._troubles} | set(self._journals)
        return tuple(
            EndpointHealth(endpoint=name, works=name in self._working, troubles=self._troubles_of(name, now))
            for name in sorted(names)
        )

    def ended(self, call: PortCall, error: BaseException | None) -> None:
        self._logs.ended(call, error)
        part = PART_OF.get(call.point)
        journal = (
            next(iter(call.items), None) if call.point is Point.NOTE else call.result if call.point is Point.JOURNAL else None
        )
        if journal is not None and error is None:
            self._journals[call.endpoint] = journal
        if call.point in _SEARCHES:
            self._searched.add(call.endpoint)
        if part is not None and error is None:
            self._succeeded(call, part)
        elif part is not None and is_trouble(error):
            self._failed((call.endpoint, part, call.point), f"{call.point} fails: {type(error).__name__}: {error}")

    def _succeeded(self, call: PortCall, part: str) -> None:
        if call.point is self._first:
            self._working.add(call.endpoint)
        if not self._troubles:
            return  # the hot path
        old = self._clock.now() - FAILURE_FADES_MS
        is_quiet = call.point is self._first and call.endpoint not in self._searched
        for key, trouble in tuple(self._troubles.items()):
            is_over = key[1] == part and (key[2] is call.point or trouble.since < old)
            is_over |= key[1] == "store" and is_quiet and self._failed_at[key] < old
            if is_over and key[0] == call.endpoint:
                del self._troubles[key]

    def _failed(self, key: tuple[str, str, Point], reason: str) -> None:
        self._failed_at[key] = self._clock.now()
        if key not in self._troubles:
            stops = key[1] not in _STOPS_NOTHING
            self._troubles[key] = Trouble(part=key[1], reason=reason, since=self._clock.now(), stops=stops)

    def _troubles_of(self, endpoint: str, now: int) -> tuple[Trouble, ...]:
        calls = [trouble for key, trouble in self._troubles.items() if key[0] == endpoint]
        journal = self._journals.get(endpoint)
        return (*calls, *(journal.troubles(now, since=self._since) if journal is not None else ()))


class _HealthCall:
    """Encloses one call, with as little work as can be: this is the hot path."""

    __slots__ = ("_call", "_health_observer")

    def __init__(self, health_observer: HealthObserver, call: PortCall) -> None:
        self._health_observer, self._call = health_observer, call

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._health_observer.ended(self._call, error)


def is_trouble(error: BaseException | None) -> bool:
    """Distinguish an outage, a wrong set-up or a bug from a lost race and a message's own failure."""
    if not isinstance(error, Exception) or isinstance(error, ConflictError | CommitRefused | HandlerFailed | BudgetExceeded):
        return False
    return isinstance(error, RetryableError | QueueMissing) or not isinstance(error, OnceOnlyError)


async def keep_written(health_observer: HealthObserver, path: Path, *, every: float = POLL_SECONDS) -> None:
    """Leave them in a file whenever they have changed, until cancelled."""
    written = health_observer.endpoints()
    while True:
        await asyncio.sleep(every)
        if health_observer.endpoints() != written:
            written = write_health(health_observer, path)


def write_health(health_observer: HealthObserver, path: Path) -> tuple[EndpointHealth, ...]:
    """Leave them in a file, for the parent of this process: it reads either what was there or these."""
    temporary, found = path.with_suffix(".new"), health_observer.endpoints()
    temporary.write_bytes(_encode(found))
    temporary.replace(path)
    return found


def read_health(path: Path) -> tuple[EndpointHealth, ...]:
    """Read what a process left; nothing where it has not said anything yet."""
    try:
        return _decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return ()
