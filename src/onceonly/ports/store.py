"""Store, Unit, Fence and PendingRecords: where business data lives, and where commit is atomic.

Outcomes of a write, no others: it returns (applied), or raises ConflictError or CommitFailed (both definite: nothing happened)
or OutcomeUnknown (it may have happened). Anything else an adapter lets through is taken as OutcomeUnknown.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from onceonly.model.errors import HandlerExpired
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import ANYWAY, Undecidable

Work = Callable[[], Callable[[], object]]
"""What a thread does, and returns what it does last: by then it is available again."""


class SyncThread(Protocol):
    """The thread of one synchronous handler. Its time may end before the handler does."""

    @property
    def is_out(self) -> bool:
        """Whether the handler has ended in the thread. Until then, only the thread may use what the handler was given."""

    async def run(self, function: Callable[[], Any], start: "Callable[[Work], object] | None" = None) -> Any:
        """Call the function in the thread, and return its result. Raises what it raises.

        `start` has the work done by another thread, in which the unit is. A cancelled call may end before the function does:
        then `is_out` is false.
        """

    def on_expiry(self, function: Callable[[HandlerExpired], object]) -> None:
        """Call a function in the event loop when the time is over, with the error that the thread is to see."""

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """In the thread: have the event loop await this, and return the result. Raises HandlerExpired if its time is over."""


class Resources(Protocol):
    """What a unit offers to handlers. Only the endpoint that runs them looks inside."""

    def get(self, kind: type) -> object:
        """Return the unit's resource of this type, such as its `AsyncSession`. Raises LookupError for any other type."""

    def attempt(self, handler: str = "") -> AbstractAsyncContextManager[None]:
        """Enclose one handler's work. `handler` is its name, for messages.

        What `get` returns inside belongs to this handler: another one gets its own, and any use after the end raises
        RuntimeError. A later handler sees in the store what this one wrote, and nothing else of it.

        In an isolated unit the work is flushed and, when it raises, undone (a savepoint). In every unit the driver's own
        transaction state is read at the end: raises HandlerFailed when the handler left the transaction aborted, and
        CommitRefused when it ended it. A lost race, a lock time-out or an outage of the store raises ConflictError or
        CommitFailed. An isolated unit that can continue without this handler raises HandlerFailed, of kind LOCKED or UNKNOWN.
        A handler that needs the transaction for itself raises HandlerFailed, of kind ALONE, in a unit of several messages.
        """

    def leave(self, *, is_last: bool = False) -> Awaitable[Any] | None:
        """Write what an asynchronous handler has left, in its context: called when its function has returned.

        Return what has to be awaited for that, or None. `is_last` means that nothing else, such as middleware, uses the
        resources before the attempt ends.
        """

    def is_busy(self) -> bool:
        """Return whether a call to the store is in progress: a handler that waits now waits for the store. Awaits nothing."""

    async def run_sync(
        self,
        function: Callable[[Callable[[type], object]], Any],
        thread: SyncThread | None = None,
        *,
        is_last: bool = False,
    ) -> object:
        """Run a synchronous handler with the unit's synchronous resources: `function(get)`, where `get(kind)` finds them.

        It runs in `thread` if there is one and the resources can be used there, otherwise in the event loop. `is_last` is as of
        `leave`.
        """


class UndecidableMessage(NamedTuple):
    """A message that the store can neither claim nor know again, and why."""

    message: Message
    reason: Undecidable

    @property
    def is_wanted_anyway(self) -> bool:
        """Whether a person has sent it back to be handled all the same; a store claims it without its instant then."""
        return self.reason is not Undecidable.SLOT_NOT_READY and bool(self.message.extension(ANYWAY))


class BeginResult(Struct, frozen=True):
    """What `begin` found: five disjoint tuples, together all the messages it was asked for, and the ages of records."""

    new: tuple[Message, ...] = ()
    """Not handled before, and claimed by this unit; in the order asked."""
    pending: tuple[Record, ...] = ()
    """Handled before, with effects still to dispatch: a current read, made after the claim."""
    done: tuple[Message, ...] = ()
    """Handled before, nothing left to do."""
    mismatched: tuple[Message, ...] = ()
    """The identity was handled with another body."""
    undecidable: tuple[UndecidableMessage, ...] = ()
    """Not claimed. Whether they were handled cannot be decided, so they must not be handled now."""
    ages: tuple[int, ...] = ()
    """For each pending record, how many milliseconds ago it was committed, or taken by a relay. Empty if that is unknown.

    The clocks of processes differ, so an age can be negative.
    """


class Unit(Protocol):
    """One unit of work."""

    key: str
    """What its messages have in common: their entity's key, or empty where the store needs nothing of the kind."""
    found: BeginResult
    resources: Resources

    async def commit(self, records: Sequence[Record]) -> None:
        """Make business state, records and claims final in one atomic step.

        `records` holds one record for each handled message, also for those without effects (their claim stays, no record is
        kept). The claim of a message in `found.new` that has no record here is deleted in the same step. So is the register
        row of each attempt, if it has one; a row that is cancelled or gone is a ConflictError.
        Raises ConflictError, CommitRefused, CommitFailed, OutcomeUnknown.
        """

    def abandon(self) -> None:
        """Mark the unit as given up; nothing of it ever becomes visible, and its claims are gone. Awaits nothing."""


class Records(Protocol):
    """What removes finished records."""

    async def forget(self, records: Sequence[Record]) -> None:
        """Drop these records; where claims are the history, those stay. Not atomic across messages.

        Forgetting twice is fine. Raises CommitFailed, OutcomeUnknown.
        """


class Store(Records, Protocol):
    """The primary resource of one endpoint: what handling its messages needs."""

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Open a unit and claim these messages (distinct identities) in it, all or none.

        A claim of the same identity in another open unit is waited for, or shows as ConflictError here or at commit. `isolated`
        asks that each handler's work can be undone on its own. Raises ConflictError, CommitFailed, OutcomeUnknown.
        """

    def keeps(self, record: Record) -> bool:
        """Return whether something of this finished message is left to forget."""

    def unit_key(self, message: Message) -> str:
        """Return which messages may share a unit: those with equal keys. Empty for SQL, `message.unit` for documents."""


class Fence(Protocol):
    """What makes sure that a message, before it is given up or cleaned up after, is not committed by an earlier attempt."""

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Return the record of this message, or make sure that no earlier attempt can be committed.

        `message` is the message itself, where the caller has it. A store whose claims depend on more than the identity needs
        it, and raises ConflictError without it. A store that keeps claims returns an empty record for a message that is
        done. `unit` may be that of an attempt at a transaction or an execution. Its identity is not a message's and it holds no
        claim: from now on its commit is a ConflictError. Raises ConflictError while an attempt is under way that cannot be
        overtaken, CommitFailed, OutcomeUnknown.
        """


class PendingRecords(Protocol):
    """The records with effects still to dispatch, searched: by relays, operators and remote executions.

    Optional: a store that cannot be searched has none. Its records are found by the messages that come again, and by control
    messages.
    """

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        """List records stored before `older_than` (milliseconds since 1970), oldest first, at most `limit`.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        """Return records stored before `older_than`, and for `lease` milliseconds let no other call give them.

        At most `limit`, in an order of the store's own that never changes; with `after` those behind that record, whether it
        is still there or not. What another call is taking at this moment is passed over. It only saves sending the same twice:
        nothing is locked, whoever dispatches need not have taken, and a record that is taken may be read, dispatched and
        deleted by any process. Where claims go with their records, these have the fingerprints of their messages.
        Raises CommitFailed, OutcomeUnknown.
        """

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Return the committed records of these, in the order asked; those without one are left out.

        Raises CommitFailed, OutcomeUnknown.
        """
