"""Records in the message journal what happens outside of units: retries, duplicates, dead letters, and what a relay sends.

A failed unit is rolled back, and with it all that it wrote. So these entries are written afterwards, many at once. None of
them is written twice, except after a lost answer. A process that is killed loses those of its last second.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from types import TracebackType

from msgspec.structs import replace

from onceonly.formats.log_events import EventLogger, FailureLog
from onceonly.model.conversation import RELAYED, JournalEntry, JournalRun
from onceonly.model.dead_letter import letter_key
from onceonly.model.message import Message
from onceonly.model.record import Answer
from onceonly.ports.maintenance import MessageJournal
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.runtime.observe.observer import Observer, Observers, Point, PortCall
from onceonly.runtime.observe.outcomes import MessageOutcome, OutcomeKind, OutcomeObserver

WRITE_INTERVAL_SECONDS = 1.0
LAST_WRITE_SECONDS = 2.0
"""Seconds that the last write may take, at the end."""
MOST_WAITING = 10_000
"""Entries that wait to be written. Further ones are lost, and counted in the log."""
MOST_AT_ONCE = 200
"""Entries of one statement. The limit of rows may be exceeded by them."""

_DEAD = frozenset({OutcomeKind.DEAD_LETTER, OutcomeKind.REFUSED_OLD})
_ATTEMPTS = frozenset({OutcomeKind.RETRIED, OutcomeKind.DEAD_LETTER})
_log = EventLogger(logging.getLogger("onceonly.journal"))
_NOTHING = nullcontext()


@asynccontextmanager
async def recording(journal: MessageJournal, *, endpoint: str, environment: Environment = LIVE) -> AsyncIterator[Observer]:
    """Yield an observer of the endpoint's ports, and write what it has seen about once a second and at the end of the block.

    What cannot be written now is written later. An error is logged once until the next success.
    """
    recorder, ended = JournalRecorder(journal, endpoint=endpoint, environment=environment), asyncio.Event()
    writing = asyncio.create_task(_write_until(ended, recorder, environment))
    try:
        yield recorder.observer
    finally:
        ended.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(writing, LAST_WRITE_SECONDS)


async def _write_until(ended: asyncio.Event, recorder: "JournalRecorder", environment: Environment) -> None:
    while not ended.is_set():
        await pause(WRITE_INTERVAL_SECONDS, environment.timer, ended)
        await asyncio.sleep(0)  # adapters in memory never wait; others need their turn all the same
        await recorder.write()
    await recorder.write()  # what happened during the last one


class JournalRecorder:
    """Listens to outcomes, to runs of handlers and to relays, and collects entries of the journal."""

    def __init__(self, journal: MessageJournal, *, endpoint: str, environment: Environment = LIVE) -> None:
        self._journal, self._endpoint, self._clock = journal, endpoint, environment.clock
        self._outcomes = OutcomeObserver(self, runs=self)
        self.observer: Observer = Observers(self._outcomes, self)
        self._waiting: list[JournalEntry] = []
        self._lost = 0
        self._failures = FailureLog(_log, "message journal entries not stored, will be retried", endpoint=endpoint)

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        return _RelayedCall(self, call) if call.by_relay and call.point is Point.DISPATCH else _NOTHING

    def started(self, message: Message) -> None:
        """Wait for the end of the handler."""

    def ended(self, message: Message, error: BaseException | None) -> None:
        progress = self._outcomes.progress_of(message)
        if error is None and progress is not None:
            duration = _microseconds(progress.started_at, progress.ended_at)
            self._journal.ran(message.identity, JournalRun(attempt=progress.attempt, duration=duration))

    def settled(self, outcome: MessageOutcome) -> None:
        message = outcome.message
        if message is None:
            return
        self._journal.ran(message.identity, None)
        if outcome.outcome is OutcomeKind.HANDLED:
            return
        self._collect(
            JournalEntry(
                message=_without_content(message),
                outcome=outcome.outcome.value,
                at=self._clock.now(),
                attempt=outcome.attempt if outcome.outcome in _ATTEMPTS else 0,
                duration=_microseconds(outcome.started_at, outcome.ended_at) if outcome.started_at else None,
                error=outcome.error,
                letter=letter_key(self._endpoint, message) if outcome.outcome in _DEAD else "",
            )
        )

    def released(self, endpoint: str, message: Message) -> None:
        self._journal.ran(message.identity, None)

    def relayed(self, call: PortCall) -> None:
        for send, answer in zip(call.items, call.result, strict=True):
            if answer is Answer.TAKEN:
                self._collect(JournalEntry(message=_without_content(send.message), outcome=RELAYED, at=self._clock.now()))

    def _collect(self, entry: JournalEntry) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(entry)
        else:
            self._lost += 1

    async def write(self) -> None:
        """Write what waits. What fails is kept."""
        try:
            while self._waiting:
                some = self._waiting[:MOST_AT_ONCE]
                await self._journal.add(some)
                del self._waiting[: len(some)]
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it
            self._failures.failed(error)
            return
        self._failures.succeeded()
        if self._lost:
            _log.warning("message journal entries lost", extra={"endpoint": self._endpoint, "count": self._lost})
            self._lost = 0


class _RelayedCall:
    def __init__(self, recorder: JournalRecorder, call: PortCall) -> None:
        self._recorder, self._call = recorder, call

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._recorder.relayed(self._call)


def _without_content(message: Message) -> Message:
    """Leave out what no entry contains: many may wait in an outage."""
    return replace(message, body=b"", headers=())


def _microseconds(started_at: int, ended_at: int) -> int:
    return max(0, ended_at - started_at) // 1000
