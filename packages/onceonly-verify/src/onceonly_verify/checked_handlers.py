"""The handlers of checked endpoints: every run leaves its own mark in what it commits and in what it sends."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation
from onceonly.formats.cloudevents import message_of, take_apart
from onceonly.model.artifact import Artifact
from onceonly.model.entities import Entities
from onceonly.model.errors import (
    BudgetExceeded,
    CommitFailed,
    ConflictError,
    HandlerAbandoned,
    HandlerFailed,
    LockTimeout,
    OnceOnlyError,
    PermanentFailure,
    StoreUnavailable,
    UpgradeRequired,
    VersionConflict,
)
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Delivery, Failure, FailureKind, Headers, Message, Send, Unreadable
from onceonly.model.record import Decision
from onceonly.model.remote import HTTP, REQUEST, RemoteRequest, Response, Verb, asks
from onceonly.model.retry import RetryDecision
from onceonly.ports.documents import DocumentAddress
from onceonly.ports.environment import Clock
from onceonly.ports.store import Resources
from onceonly_verify.driver import CheckerDriver
from onceonly_verify.names import effect_text, mark_text, name_of, reason_blaming
from onceonly_verify.programs import Programs
from onceonly_verify.time_steps import PLACE, SteppedClock, note_failure, note_retry
from onceonly_verify.workload import BLOB, DONE, GARBLED, UNDECLARED, USERS, VARIED, WITH_TOKENS, Batched, End, Flaw, Workload

FAILED = {End.FAILS: FailureKind.EXCEPTION, End.OUTLASTS: FailureKind.TIMEOUT, End.LATER: FailureKind.LATER}
"""How a handler fails that no error of the store ends."""
RAISED: Mapping[End, type[OnceOnlyError]] = {
    End.LOCKED: LockTimeout,
    End.RUINS: CommitFailed,
    End.LOSES: ConflictError,
    End.OUTRUN: VersionConflict,
    End.NEWER: UpgradeRequired,
    End.UNABLE: StoreUnavailable,
    End.HOPELESS: PermanentFailure,
}
"""What an adapter raises that ends a handler's unit."""


ROWS = DocumentAddress("", ("rows",))
"""The document of the application with the rows of all entities."""


class EventClock:
    """A clock that stands still: under the checker, time passes by events."""

    def now(self) -> int:
        return 0


def clock_of(workload: Workload, driver: CheckerDriver) -> Clock:
    return SteppedClock(driver) if workload.timing else EventClock()


class CheckedHandlers:
    """Handlers of one endpoint whose every run leaves its own mark in what it commits and in what it sends."""

    def __init__(self, workload: Workload, driver: CheckerDriver, *, programs: Programs, endpoint: str) -> None:
        self.driver = driver
        """What all adapters of this run share."""
        self.workload = workload
        self._programs = programs
        self._endpoint = endpoint
        self._attempts: dict[Identity, int] = {}
        self.board: Any = None
        """What marks running handlers in the shared counters, where there are any."""

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read the CloudEvent, as an endpoint does: with an identity, and where tokens are used with a token."""
        message = _read(delivery.headers, delivery.body, self.workload.entity(name_of(delivery.body.decode())))
        if message is None:
            return Unreadable(reason=Flaw.UNNAMED.value)
        if message.extension(GARBLED):
            return Unreadable(reason=Flaw.UNREADABLE.value, message=message)
        if self.workload.deduplication in WITH_TOKENS and not message.token:
            return Unreadable(reason=Flaw.UNENTITLED.value, message=message)
        self._attempts[message.identity] = max(delivery.attempts, self._attempts.get(message.identity, 0))
        return message

    def runs_alone(self, _message: Message) -> bool:
        """Return False: no handler here needs a database transaction of its own."""
        return False

    def needs_response(self, message: Message) -> bool:
        """Return whether the message follows a request up."""
        return asks(message)

    def batches(self, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Group them: all together where handlers take batches."""
        if not self.workload.batched:
            return [(message,) for message in messages]
        return [tuple(messages)] if messages else []

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Write a row, then end as the checker chooses."""
        (decision,) = await self.handle_batch((message,), resources, (attempt,), (response,))
        return decision

    async def handle_batch(
        self, messages: Sequence[Message], resources: Resources, attempts: Sequence[str], responses: Sequence[Response | None]
    ) -> Sequence[Decision]:
        """Write a row for each message, then end as the checker chooses for each: one that fails ends the run of all."""
        marks = [(claim_key(self._endpoint, each.identity), self._attempts[each.identity]) for each in messages]
        with self.board.running(marks) if self.board else nullcontext():
            runs = [await self._choose(message, resources, is_only=len(messages) == 1) for message in messages]
        async with resources.attempt():
            for message, (end, mark) in zip(messages, runs, strict=True):
                await self._write(message, resources, mark)
                if end is End.FAILS:
                    self._note(note_failure, message.body.decode(), self._attempts[message.identity] + 1)
            if len(messages) > 1 and self.workload.batched is Batched.SETS_ASIDE:
                self._set_aside(messages, [end for end, _ in runs])
            for message, (end, _) in zip(messages, runs, strict=True):
                self._fail(end, message.body.decode(), resources)
        return [self._decide(*each) for each in zip(messages, runs, attempts, responses, strict=True)]

    async def _choose(self, message: Message, resources: Resources, *, is_only: bool) -> tuple[End, str]:
        """Have the checker choose how the run ends for a message; returns the mark of the run as well.

        A supervisor cannot tell which message of a batch ended the process.
        """
        text = message.body.decode()
        run = (claim_key(self._endpoint, message.identity), self._attempts[message.identity])
        self._note(note_retry, text, run[1])
        end = await self.driver.choose(name_of(text), run if is_only else None)
        if end is End.NOT_NOW:
            raise BudgetExceeded
        if end is End.LOCKED_OUT:
            raise LockTimeout(reason_blaming("another transaction has the lock, and this one was rolled back", text))
        if end is End.SPOILS:
            await _spoil(resources, text)
        return end, mark_text(self.driver.token()) + (f"-{end.name}" if end in VARIED else "")

    def _set_aside(self, messages: Sequence[Message], ends: Sequence[End]) -> None:
        """Fail with those that fail for a reason of their own."""
        failures = {
            message.identity: _failure(end, message.body.decode())
            for message, end in zip(messages, ends, strict=True)
            if end in {End.FAILS, End.LATER}
        }
        if failures:
            raise HandlerFailed(next(iter(failures.values())), by_message=failures)

    def _decide(self, message: Message, run: tuple[End, str], attempt: str, response: Response | None) -> Decision:
        text, (end, mark) = message.body.decode(), run
        if end is End.MISNAMES:
            attempt = f"not {attempt}"
        self._check(message, response)
        effects = self.effects(message.identity, text, mark, message.extensions if self.workload.handed_on else ())
        if end is End.UNDECLARED:
            events = (replace(each, message=replace(each.message, type=UNDECLARED), to="") for each in effects)
            return Decision(tuple(events))
        urls = tuple(f"{attempt}/{index}" for index in range(self._requests))
        followed = tuple(_following(each, url) for each, url in zip(effects, urls, strict=False))
        asked = tuple(Artifact(kind=HTTP, name=url, data=each.message.body) for each, url in zip(followed, urls, strict=True))
        return Decision(
            (*followed, *effects[len(followed) :]),
            (*self._artifacts(text, mark, attempt), *asked),
            tuple(RemoteRequest(Verb.POST, url) for url in urls),
        )

    def decide_retry(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Judge by the workload's policy, with a chance that is always the same."""
        now = clock_of(self.workload, self.driver).now()
        decided: RetryDecision = self._programs.retry.decide_retry(
            self.workload.retry, failure, attempts=attempts, history=history, now=now, fraction=0
        )
        return decided

    def effects(
        self, identity: Identity, text: str, mark: str, extensions: tuple[tuple[str, str], ...] = ()
    ) -> tuple[Send, ...]:
        """Return what an attempt at this message sends."""
        targets = self.workload.decided(self._endpoint, mark)
        blank = Message(id="", source=self._endpoint, type=DONE, body=b"", extensions=extensions)
        return tuple(
            self._effect(identity, index, effect_text(name_of(text), index, mark), Send(message=blank, to=target))
            for index, target in enumerate(targets)
        )

    def _fail(self, end: End, text: str, resources: Any) -> None:
        """Raise what the run ends with, or have its commit refused; nothing if it works."""
        if end in RAISED:
            raise RAISED[end](reason_blaming("the store failed", text))
        if end in FAILED:
            failure = _failure(end, text)
            raise HandlerAbandoned(failure) if end is End.OUTLASTS else HandlerFailed(failure)
        if end is End.REFUSED:
            resources.get(self._programs.stores.Notebook).refuse(reason_blaming("a deferred constraint", text))

    async def _write(self, message: Message, resources: Resources, mark: str) -> None:
        """Add a row: to the notebook, or to those that are the state of the entity, and to a document of the application."""
        text = message.body.decode()
        if message.unit:
            entities: Any = resources.get(Entities)
            entities.write(message.unit, encode_rows((*decode_rows(entities.read(message.unit)), (text, mark))))
            if self.workload.application:
                await self._write_document(resources, (text, mark))
        else:
            notebook: Any = resources.get(self._programs.stores.Notebook)
            notebook.write(text, mark)

    async def _write_document(self, resources: Resources, row: tuple[str, str]) -> None:
        """Add a row to the document that all entities share. Like `context.documents`, ask for a retry if it is not read."""
        documents: Any = resources.get(self._programs.application.ApplicationDocuments)
        try:
            found = await documents.get(ROWS)
        except CommitFailed as error:
            raise HandlerFailed(_failure(End.LATER, row[0])) from error
        if problem := documents.put(ROWS, encode_rows((*decode_rows(found), row))):
            raise RuntimeError(problem)

    def _note(self, function: Callable[..., Any], text: str, count: int) -> None:
        """Note a run of a handler with its instant, where the delays of retries are checked."""
        if count and self.workload.timing and self.workload.timing.retry_after:
            self.driver.at_once(PortOperation("note", PLACE, function, (self._endpoint, name_of(text), count)))

    @property
    def _requests(self) -> int:
        return self.workload.requests if self._endpoint == self.workload.endpoints[0] else 0

    def _check(self, message: Message, response: Response | None) -> None:
        """Make sure that what follows a request up finds its response, and that attributes which were handed on arrive.

        Raises RuntimeError, which nothing expects.
        """
        if self.workload.handed_on and not {*USERS} <= {*message.extensions}:
            raise RuntimeError(f"{message.body!r} came without the attributes that its sender handed on")
        if asks(message) and (response is None or response.body != message.body):
            raise RuntimeError(f"{message.body!r} was given the response {response!r}")

    def _artifacts(self, text: str, mark: str, attempt: str) -> tuple[Artifact, ...]:
        count = self.workload.artifacts if self._endpoint == self.workload.endpoints[0] else 0
        return tuple(
            Artifact(kind=BLOB, name=f"{attempt}/{index}", data=effect_text(name_of(text), index, mark).encode())
            for index in range(count)
        )

    def _effect(self, identity: Identity, index: int, text: str, sending: Send) -> Send:
        fresh = self._programs.identity.outgoing_id(self._endpoint, identity, index)
        return replace(sending, message=replace(sending.message, id=fresh, body=text.encode()))


def _failure(end: End, text: str) -> Failure:
    return Failure(kind=FAILED[end], reason=reason_blaming("the handler failed", text), delay=1.0 if end is End.LATER else 0.0)


def _following(effect: Send, url: str) -> Send:
    """Return a message that follows up a request."""
    return replace(effect, message=replace(effect.message, extensions=((REQUEST, url),)))


async def _spoil(resources: Resources, text: str) -> None:
    """Fail for a reason that may be the unit's: of an isolated unit the savepoint is intact, and any other unit is lost."""
    why = reason_blaming("a statement failed", text)
    try:
        async with resources.attempt():
            raise LockTimeout(why)  # noqa: TRY301 - the resources are to see it
    except HandlerFailed as error:  # only an isolated unit takes this error for the message's own
        raise HandlerFailed(Failure(kind=FailureKind.UNKNOWN, reason=why)) from error
    except LockTimeout as error:
        raise CommitFailed(why) from error


def encode_rows(rows: tuple[tuple[str, str], ...]) -> bytes:
    return msgspec.json.encode(rows)


def decode_rows(state: bytes | None) -> tuple[tuple[str, str], ...]:
    return msgspec.json.decode(state, type=tuple[tuple[str, str], ...]) if state else ()


@lru_cache(maxsize=10_000)
def _read(headers: Headers, body: bytes, unit: str) -> Message | None:
    event = take_apart(headers, body)
    if not event.attributes.get("id"):
        return None
    message = message_of(event, source=event.attributes["source"], id=event.attributes["id"])
    return replace(message, unit=unit) if unit else message
