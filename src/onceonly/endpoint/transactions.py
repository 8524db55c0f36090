"""Transaction: a unit that a user opens outside of any handler, such as in a web request or a script."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from enum import Enum
from math import ceil
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast

from onceonly.algorithms.transaction import TransactionPorts, before_commit, begin, complete, enclosed, transact
from onceonly.config.endpoint import DAY_SECONDS, LONGEST_COMMIT, MARGIN_SECONDS
from onceonly.endpoint.entities import HeldEntities
from onceonly.endpoint.message_builder import OUTSIDE_OPTIONS, MessageBuilder, Origin, SendOptions, check_options
from onceonly.endpoint.sender import OutsideSender
from onceonly.formats.bodies import BodyError, decode_answer, encode_answer, request_fingerprint
from onceonly.model.destination import Destination
from onceonly.model.errors import ConflictError, DispatchPending, InvalidEffect, InvalidKey, SetupError, TransactionMisused
from onceonly.model.message import Send
from onceonly.model.record import Effect, Record
from onceonly.model.transaction import LONGEST_KEY, BlockDecision, IdempotencyEntry, TransactionAttempt, scoped_key
from onceonly.model.wording import an, in_words
from onceonly.ports.store import Resources
from onceonly.ports.transactions import OpenTransaction
from onceonly.runtime.environment import Environment

if TYPE_CHECKING:
    from onceonly.sql.store.transactions import Session

_Resource = TypeVar("_Resource")
_Entity = TypeVar("_Entity")


class TransactionRequest(NamedTuple):
    """What a user asked for, checked: the client's key or "", what was asked under it, and the times in milliseconds."""

    key: str
    fingerprint: bytes
    max_commit: int
    wait: int | None = None
    is_dispatched_first: bool = False

    def until_dispatched(self, waits: bool) -> "TransactionRequest":  # noqa: FBT001 - the option's value
        """Return it with the option of that name. Raises TransactionMisused if the caller could not repeat it."""
        if waits and not self.key:
            raise TransactionMisused(
                "until_dispatched=True needs idempotency_key=: the call is repeated until its messages are dispatched, and "
                "without a key it would be done again"
            )
        return self._replace(is_dispatched_first=waits)


class TransactionContext(NamedTuple):
    """What a transaction of this process works with. `dispatch` sends what is committed, and returns whether all was taken.

    `left_to_relay` has the relay of this process send it, and returns False if there is none. It is None where no relay can
    find records.
    `max_commit` is the longest, in milliseconds, that an attempt may take where control messages decide its outcome; else 0.
    `expect` sets for how many seconds a transaction may be silent, where nothing else in the process has.
    """

    endpoint: str
    ports: TransactionPorts
    dispatch: Callable[[Sequence[Record]], Awaitable[bool]]
    builder: MessageBuilder
    environment: Environment
    session: type[Any] | None
    max_commit: int = 0
    expect: Callable[[float], None] | None = None
    left_to_relay: Callable[[Sequence[Record]], bool] | None = None


OpenContext = Callable[[], TransactionContext | AbstractAsyncContextManager[TransactionContext]]
"""Gives what is open already, or what opens it for one transaction."""


class _Stage(Enum):
    NEW = "is not open yet: use it inside its `async with` block"
    OPEN = "is already open: one transaction serves one block"
    OVER = "has ended: open a new transaction for further changes"


class Transaction(OutsideSender):
    """One transaction, for one `async with` block and the task that entered it.

    Everything in the block is committed at its end, or nothing if the block raises. If the client's key was committed before,
    `is_known` is true and `answer` is the stored answer. All other calls are rejected: leave the block.
    """

    def __init__(self, asked: TransactionRequest, open_context: OpenContext) -> None:
        self._asked = asked
        self._open_context = open_context
        self._stage = _Stage.NEW
        self._task: asyncio.Task[Any] | None = None
        self._stack: AsyncExitStack | None = None
        self._effects: list[Effect] = []
        self._answer: bytes | None = None
        self._is_known = False
        self._is_dispatched = False
        self._opened: OpenTransaction | None = None
        self._held: HeldEntities
        self._enclosed: AbstractAsyncContextManager[None]
        self._context: TransactionContext
        self._opening: TransactionAttempt
        self._resources: Resources

    @property
    def sql(self) -> "Session":
        """The transaction's SQLAlchemy `AsyncSession`, opened on first use. It rejects commit, rollback and begin.

        Raises TransactionMisused. Raises SetupError if the store is not a SQL database.
        """
        self._check()
        if self._context.session is None:
            raise SetupError(
                f"tx.sql: the store of endpoint {self._context.endpoint!r} is not a SQL database: use tx.entity(...)"
            )
        session: Any = self._resources.get(self._context.session)
        return cast("Session", session)

    @property
    def is_known(self) -> bool:
        """Whether the client's key was committed before, by any attempt."""
        return self._is_known

    @property
    def is_dispatched(self) -> bool:
        """Whether the broker has taken all messages that are committed under the key, or by this transaction.

        False while the block runs, and when they are left to a relay: of this process, or after a failed attempt of any one.
        """
        return self._is_dispatched

    @property
    def answer(self) -> Any:
        """The client's answer: bytes or a JSON value. None until it is set or found under the client's key.

        Set it to bytes, or to a value that can be written as JSON. It is encoded at once, so reading it returns what every
        retry receives. Raises TransactionMisused. Raises InvalidEffect for a value that cannot be encoded.
        """
        return decode_answer(self._answer)

    @answer.setter
    def answer(self, answer: object) -> None:
        self._check()
        try:
            self._answer = encode_answer(answer)
        except BodyError as error:
            raise InvalidEffect(f"the answer cannot be stored: {error}") from error

    async def entity(self, kind: type[_Entity], key: object, *, fresh: _Entity | None = None) -> _Entity:
        """Return an entity. The commit saves its changes. Later calls return the same object.

        `key` is a str, an int, a UUID or an enum of these. For a missing entity, the result is `fresh` or else a new one: all
        defaults, and the key in the one field without a default.

        A store that is not a SQL database commits one entity in one transaction: a second one raises TransactionMisused.
        Raises TransactionMisused, CommitRefused, ConflictError, CommitFailed.
        """
        self._check()
        found = await self._held.open(kind, key, fresh)
        self._check()
        return found

    def delete(self, entity: object) -> None:
        """Delete an entity that `entity` returned, with the commit. Raises TransactionMisused."""
        self._check()
        self._held.delete(entity)

    def get(self, kind: type[_Resource]) -> _Resource:
        """Return the resource that a handler receives by this annotation, such as an `AsyncConnection`.

        Raises TransactionMisused. Raises LookupError for a type that the store does not have.
        """
        self._check()
        found: Any = self._resources.get(kind)
        return cast("_Resource", found)

    async def __aenter__(self) -> Self:
        """Open it.

        Raises KeyReused, ConflictError (not done: try again), CommitFailed (the same), SetupError, TransactionMisused.

        OutcomeUnknown only where another attempt has the key, and how that ended could not be read. For a known key, messages
        that are not dispatched yet are dispatched first; DispatchPending if that fails and `until_dispatched` is set.
        """
        await self._prepare()
        try:
            found = await begin(self._opening, self._context.ports)
            if isinstance(found, IdempotencyEntry):
                self._answer, self._is_known = found.answer, True
                await self._dispatch(found.records, is_new=False)
            else:
                self._enclosed = enclosed(found)
                await self._enclosed.__aenter__()
                self._set_opened(found)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, if the block ended well.

        Raises ConflictError (not done: try again), CommitRefused, CommitFailed, OutcomeUnknown.

        A ConflictError is also what is raised when another attempt with the same key was committed first: what the block has
        returned is not the answer then. The next attempt gets that. DispatchPending, with `until_dispatched` only.
        """
        try:
            if self._opened is not None and error is None:
                await self._complete(self._opened, await self._leave())
            elif self._opened is not None:
                await self._enclosed.__aexit__(kind, error, trace)
        finally:
            await self._end()

    async def run(self, function: "Callable[[Transaction], Awaitable[object]]") -> Any:
        """Run a function as `Endpoint.transact` does."""
        if not callable(function):
            if inspect.iscoroutine(function):
                function.close()
            raise TransactionMisused(
                f"transact needs an async function, not {an(type(function).__name__)}: pass the function itself, uncalled"
            )

        async def block(opened: OpenTransaction) -> BlockDecision:
            self._set_opened(opened)
            answer = await _call_function(function, self)
            if answer is not None:
                self.answer = answer
            return self._decide()

        await self._prepare()
        try:
            done = await transact(self._opening, block, self._context.ports)
            self._stage = _Stage.OVER
            await self._dispatch(done.records, is_new=not done.is_known)
        finally:
            await self._end()
        return decode_answer(done.answer)

    async def _prepare(self) -> None:
        """Get what a transaction needs; from now on it belongs to this task."""
        if self._stage is not _Stage.NEW:
            raise TransactionMisused(f"this transaction {self._stage.value}")
        self._stage, self._task = _Stage.OPEN, asyncio.current_task()
        try:
            with before_commit():
                self._context = context = await self._opened_context()
        except BaseException:
            self._stage = _Stage.OVER
            raise
        if context.max_commit and self._asked.max_commit > context.max_commit:
            await self._end()
            raise TransactionMisused(
                f"max_commit is {self._asked.max_commit} ms; the control messages of endpoint "
                f"{context.endpoint!r} allow {context.max_commit} ms. Make it shorter, or raise "
                "control=ControlMessages(max_commit=...)"
            )
        if context.expect is not None:  # a server ends it then: a process that is stopped for ever keeps no key
            context.expect(self._asked.max_commit / 1000 + MARGIN_SECONDS)
        self._opening = TransactionAttempt(
            endpoint=context.endpoint,
            attempt=context.environment.ids.new_id(),
            max_commit=self._asked.max_commit,
            wait=self._asked.wait,
            key=self._asked.key,
            fingerprint=self._asked.fingerprint,
        )

    async def _opened_context(self) -> TransactionContext:
        context = self._open_context()
        if isinstance(context, TransactionContext):
            return context
        self._stack = AsyncExitStack()
        return await self._stack.enter_async_context(context)

    def _set_opened(self, opened: OpenTransaction) -> None:
        self._opened, self._resources, self._held = opened, opened.resources, HeldEntities(opened)

    async def _leave(self) -> BlockDecision:
        """Leave the block; what cannot be kept ends it as if the block had raised that."""
        try:
            decided = self._decide()
        except Exception as error:
            await self._enclosed.__aexit__(type(error), error, error.__traceback__)
            raise
        await self._enclosed.__aexit__(None, None, None)
        return decided

    async def _complete(self, opened: OpenTransaction, decided: BlockDecision) -> None:
        self._stage = _Stage.OVER
        done = await complete(self._opening, opened, decided, self._context.ports)
        if done.is_known:
            raise ConflictError("another request with this idempotency key was committed first: retry to get its answer")
        await self._dispatch(done.records)

    async def _dispatch(self, records: Sequence[Record], *, is_new: bool = True) -> None:
        """Send what is committed, or leave it to a relay. Raises DispatchPending if the caller waits for it.

        A relay of this process gets what this transaction has committed. What a known key has left it finds by itself, once it
        is old: it may be sending that now.
        """
        context, waits = self._context, self._asked.is_dispatched_first
        if not waits and context.left_to_relay is not None and context.left_to_relay(records if is_new else ()):
            self._is_dispatched = not records
            return
        self._is_dispatched = await context.dispatch(records)
        if waits and not self._is_dispatched:
            raise DispatchPending(
                f"a transaction of endpoint {context.endpoint!r} is committed, but not all of its messages are dispatched: "
                "repeat it with the same idempotency key"
            )

    async def _end(self) -> None:
        self._stage = _Stage.OVER
        if self._stack is not None:
            await self._stack.aclose()

    def _decide(self) -> BlockDecision:
        self._held.save()
        return BlockDecision(tuple(self._effects), self._answer)

    def _capture(self, body: object, to: str | Destination, options: SendOptions) -> None:
        check_options(options, OUTSIDE_OPTIONS)
        self._check()
        cause = (("replyto", self._context.endpoint if to else ""),)
        origin = Origin(self._opening.identity, len(self._effects))
        now = self._context.environment.clock.now()
        send = self._context.builder.build(body, to, options, origin, now=now, cause=cause)
        if options.get("id") is not None:
            self._check_id(send)
        self._effects.append(send)

    def _check_id(self, send: Send) -> None:
        """Refuse one id for two messages: receivers would handle the first, and store the second as a dead letter."""
        for other in self._effects:
            known = other.message
            if known.id == send.message.id and (known.type, known.fingerprint) != (send.message.type, send.message.fingerprint):
                raise InvalidEffect(f"id={known.id!r} was used for another message of this transaction. Give each its own id")

    def _check(self) -> None:
        """Refuse what is not done in the block, by its task, for the first time."""
        if self._stage is not _Stage.OPEN:
            raise TransactionMisused(f"this transaction {self._stage.value}")
        if _this_task() is not self._task:
            raise TransactionMisused("a transaction can be used only in the task that opened it")
        if self._is_known:
            raise TransactionMisused(
                "this idempotency key was used before, so nothing can be changed under it: check tx.is_known "
                "first, and return tx.answer"
            )


async def _call_function(function: "Callable[[Transaction], Awaitable[object]]", tx: Transaction) -> object:
    """Run the function of `transact`. Raises TransactionMisused if it does not take one argument or returns no awaitable."""
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        made = function(tx)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # from its body
        raise TransactionMisused(f"transact cannot call {name} with the transaction as its only argument: {error}") from error
    if not inspect.isawaitable(made):
        raise TransactionMisused(
            f"transact needs an async function, but {name} returned {an(type(made).__name__)}: define it with `async def`"
        )
    return await made


def _this_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without an event loop
        return None


def asked(
    key: str | None,
    request: object,
    max_commit: object,
    *,
    scope: str | None = None,
    wait: float | None = None,
    retention: timedelta | None,
) -> TransactionRequest:
    """Check what a user asks for, of an endpoint that keeps answers for `retention`. Raises InvalidKey, TransactionMisused."""
    if wait is not None and not 0 < wait <= DAY_SECONDS:
        raise TransactionMisused(f"wait must be a number of seconds above 0, at most a day, not {wait!r}")
    if not isinstance(max_commit, timedelta) or not timedelta(milliseconds=1) <= max_commit <= LONGEST_COMMIT:
        raise TransactionMisused(f"max_commit must be a timedelta of 1 ms to {LONGEST_COMMIT}, not {max_commit!r}")
    if retention is not None and retention <= max_commit:
        raise TransactionMisused(
            f"max_commit of {in_words(max_commit)} is not shorter than the retention of "
            f"{in_words(retention)}: the answer could be deleted before the transaction commits. Make it "
            "shorter"
        )
    milliseconds = max_commit // timedelta(milliseconds=1)
    if key is None:
        return TransactionRequest("", b"", milliseconds)
    checked = _checked_key(key)
    if scope is not None:
        checked = scoped_key(_checked_scope(scope), checked)
    try:
        return TransactionRequest(
            checked,
            request_fingerprint(request, scope),
            milliseconds,
            None if wait is None else ceil(wait * 1000),
        )
    except BodyError as error:
        raise TransactionMisused(f"request= must be bytes or a value that JSON can represent: {error}") from error


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidKey(f"idempotency key must be a string, not {type(key).__name__}")
    try:
        length = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidKey("idempotency key is not valid UTF-8") from error
    if not 1 <= length <= LONGEST_KEY:
        raise InvalidKey(f"idempotency key has {length} bytes; it must have 1 to {LONGEST_KEY}. Hash longer keys on the client")
    return key


def _checked_scope(scope: object) -> str:
    """Check the scope of a key. The application sets it, so a wrong value is not the client's error."""
    if not isinstance(scope, str) or not scope:
        raise TransactionMisused(f"scope= must be a string that is not empty, or None, not {scope!r}")
    try:
        scope.encode()
    except UnicodeEncodeError as error:
        raise TransactionMisused(f"scope= must be valid UTF-8, not {scope!r}") from error
    return scope
