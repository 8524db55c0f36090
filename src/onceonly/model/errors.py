"""The error tree: one root, three families that a user treats differently.

    OnceOnlyError
      SetupError       fix the set-up: nothing can work until a person changes something
      RetryableError         the operation may be tried again from the start
        CommitFailed           definite: nothing happened
          CommitRefused    the store refused this unit's own changes (a constraint, a foreign commit)
            PermanentFailure         trying again does not help: the entity's key or document cannot serve, or is full
          StoreUnavailable           the store cannot do it at the moment: its disk is full, or this user may not
          HandlerAbandoned     a handler's thread did not end in time, so nothing of its unit may be committed
          UpgradeRequired      a newer version wrote what has to be read: its processes can, this one cannot
        OutcomeUnknown          it may have happened: never compensate, never retry in place
        DispatchPending         it is committed, but its messages are not dispatched: repeat it with the same key
      ConflictError         definite: someone else won
        VersionConflict           someone else changed the same entity first: a smaller unit would have lost as well
        LockTimeout      another transaction held a lock for longer than this unit waits

`Reject` and `RetryLater` are raised by users' handlers; `HandlerFailed` and `BudgetExceeded` carry a handler's end to the
algorithm. Adapters classify by allow-list: what the server did not say for sure is `OutcomeUnknown`.

At the end are functions that read exceptions of users' code: the text of one, and what a group holds.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from onceonly.model.identity import Identity
from onceonly.model.message import Failure


class OnceOnlyError(Exception):
    """The base class of all errors that this library raises."""

    during: Identity | None = None
    """The message whose handler ran, or that was committed alone, when this error ended its unit. None: no such message."""


class SetupError(OnceOnlyError):
    """The set-up is wrong. The message states what to change."""


class WrongEventLoop(SetupError):
    """A connection of the user's own engine belongs to another event loop. It stays there, so no retry helps."""


class DriverMissing(SetupError):
    """The URL names a system whose driver is not installed."""


class SchemaMissing(SetupError):
    """The database has no onceonly tables, or older ones."""


class SchemaTooNew(SetupError):
    """The database was upgraded by a newer onceonly."""


class QueueMissing(SetupError):
    """The endpoint's input queue was never declared."""


class InvalidHandler(SetupError):
    """A handler's signature cannot be served, or two handlers take one type."""


class InvalidEffect(SetupError):
    """A handler tried to send a message that cannot be sent: too large, not serializable, or without a destination."""


class TransactionMisused(SetupError):
    """A transaction was used in an invalid way: outside its block, twice, or from another task."""


class InvalidKey(SetupError):
    """A client's idempotency key is empty or too long. The client has to change it."""


class KeyReused(InvalidKey):
    """A client's idempotency key was used before, for another request. Nothing happened now."""


class RetryableError(OnceOnlyError):
    """The operation did not succeed now. Start again from the beginning."""


class CommitFailed(RetryableError):
    """Definite: nothing happened."""


class UnsafeSettings(CommitFailed):
    """Definite: a server's settings were changed while it was in use. Nothing begins there until they are corrected."""


class CommitRefused(CommitFailed):
    """Definite: the store refused the changes of this unit, so some message in it is to blame."""


class PermanentFailure(CommitRefused):
    """Definite: every attempt fails until a person changes something. The entity cannot be read, or not be stored."""


class StoreUnavailable(CommitFailed):
    """Definite: nothing happened, because the store cannot do this now, such as write to a full disk."""


class HandlerAbandoned(CommitFailed):
    """Definite: nothing happened. The thread of a handler still runs after its time, so its unit is rolled back as a whole."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class UpgradeRequired(CommitFailed):
    """Definite: nothing happened, because a newer onceonly wrote the data. Its processes can read it."""


class OutcomeUnknown(RetryableError):
    """The operation may have happened or not. Only a later read or a retry shows it."""


class DispatchPending(RetryableError):
    """The transaction is committed, but not all of its messages are dispatched. Repeat it with the same idempotency key."""


class PeerAway(OutcomeUnknown):
    """A service that is asked over HTTP does not answer. No message is to blame.

    `peer` is its URL. `delay` are the seconds after which it wants to be asked again, or 0 if it has named none. `needed_by`
    are the messages of the unit that are known to need it.
    """

    def __init__(self, words: str, peer: str, delay: float = 0.0) -> None:
        super().__init__(words)
        self.peer = peer
        self.delay = delay
        self.needed_by: frozenset[Identity] = frozenset()


class ConflictError(OnceOnlyError):
    """Definite: another attempt won, and nothing of this attempt happened."""


class LockTimeout(ConflictError):
    """Definite: another transaction held a lock for longer than this unit waits. No message is to blame."""


class VersionConflict(ConflictError):
    """Definite: another worker changed the same entity first. A smaller unit would not have been faster."""


class HandlerExpired(OnceOnlyError):
    """Raised in the thread of a `def` handler that uses its unit after its time is over. The unit has been rolled back."""


class Reject(OnceOnlyError):
    """Raised by a handler: store this message as a dead letter at once, with this reason."""


class RetryLater(OnceOnlyError):
    """Raised by a handler: handle this message again after `delay` seconds, without counting a failure."""

    def __init__(self, delay: float, reason: str = "") -> None:
        super().__init__(reason or f"asked to be retried in {delay:g} s")
        self.delay = delay

    def __reduce__(self) -> tuple[type["RetryLater"], tuple[float, str]]:
        """Return what `pickle` and `copy` create an equal error from."""
        return type(self), (self.delay, str(self))


class BudgetExceeded(OnceOnlyError):
    """The time budget of this batch is used: leave the message out of the unit, uncounted."""


class HandlerFailed(OnceOnlyError):
    """A handler failed; `failure` describes how.

    `by_message` is for the handler of a batch: the failures of those of its messages that it knows to have failed. Their
    batch is undone as a whole. It is empty where any message of the batch may be the cause.
    """

    def __init__(self, failure: Failure, *, by_message: Mapping[Identity, Failure] = MappingProxyType({})) -> None:
        super().__init__(failure.reason)
        self.failure = failure
        self.by_message = by_message


class WorkerStopped(OnceOnlyError):
    """The worker ended without a stop request: a handler does not end, or one of its tasks was cancelled."""


class HandlerStuck(BaseException):
    """A handler did not end within its time and the grace time: its worker has to end.

    It is not an `Exception`, so nothing on the way treats it as a failure that can be retried.
    """


def error_text(error: BaseException) -> str:
    """Return the class and the text of an error, as reasons and logs contain them."""
    return f"{type(error).__name__}: {text_of(error)}"


USERS_ERRORS = (Exception, BaseExceptionGroup, KeyboardInterrupt, SystemExit)
"""What code of the user's may raise that is its own failure and must not end the process."""


def text_of(error: BaseException) -> str:
    """Return the text of an exception. Whatever its `__str__` raises, this returns."""
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 - `SystemExit` from there would end the worker
        return f"(its text raised {type(broken).__name__})"


def leaves(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions in a group and in the groups inside it, each once. Another exception is its own only leaf."""
    return tuple(_leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], set[int]()  # a stack: groups can be nested deeper than Python recurses
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(reversed(each.exceptions))
        else:
            yield each
