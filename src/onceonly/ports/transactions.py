"""Transactions: units that a user opens, with a client's key kept in the same commit. Outcomes as in `ports.store`."""

from typing import NamedTuple, Protocol

from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.ports.environment import Clock
from onceonly.ports.store import Resources


class OpenTransaction(Protocol):
    """One open transaction, which ends by `commit` or `abandon`."""

    resources: Resources
    unit: str
    """Where its record will be, as `Record.unit` says it; empty where records are found without."""

    async def load(self, unit: str) -> None:
        """Load an entity, so that `resources` have it among their entities; once for each.

        Raises TransactionMisused for one more than the store can commit together, CommitRefused for a key that is too long or
        a state that is none, ConflictError, CommitFailed, OutcomeUnknown.
        """

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Make business state, the record if there is one, and the client's key with its answer final in one atomic step.

        Never later than `max_commit` after the opening, by the store's own clock where it has one: that is CommitFailed. A key
        that was committed meanwhile is a ConflictError, and so is an attempt that was buried. Raises ConflictError,
        CommitRefused, CommitFailed, OutcomeUnknown.
        """

    def abandon(self) -> None:
        """Return it up; nothing of it ever becomes visible. Awaits nothing."""


class Transactions(Protocol):
    """The transactions of one endpoint's store."""

    async def open(self, opening: TransactionAttempt) -> OpenTransaction | IdempotencyEntry:
        """Open a transaction, and take the client's key in it, if there is one; returns the entry if the key is committed.

        The entry has the records of its attempt that are not dispatched yet, from the same read or a later one.

        Another open transaction that has taken the same key is waited for, `opening.wait` at most, or shows as ConflictError
        here or at commit. Reaching the store is not counted as waiting. Raises ConflictError, CommitFailed, OutcomeUnknown.
        """

    async def entry(self, key: str) -> IdempotencyEntry | None:
        """Return what is committed under a client's key; a read that is linearizable with commits. The entry is as of `open`.

        Raises CommitFailed, OutcomeUnknown. Raises PermanentFailure, UpgradeRequired for a record that cannot be read.
        """


class Attempts(Protocol):
    """How attempts at transactions ended, for whoever gets a control message. Each read is linearizable with commits."""

    async def entry(self, key: str, endpoint: str) -> IdempotencyEntry | None:
        """Return what is committed under a client's key of this endpoint, by whichever attempt.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def record(self, identity: Identity, unit: str) -> Record | None:
        """Return the record of an attempt. One without effects was dispatched, or is the tombstone. None: not committed yet.

        With a client's key None may also mean that it was dispatched and forgotten. Raises CommitFailed, OutcomeUnknown.
        """

    async def bury(self, identity: Identity, unit: str) -> None:
        """Insert a tombstone, unless there is a record: from now on this attempt cannot be committed.

        It stays until the attempt's deadline and its last control message have passed. Raises ConflictError when there is a
        record, or another attempt was faster, CommitRefused, CommitFailed, OutcomeUnknown.
        """


class Controls(NamedTuple):
    """How the control messages of an endpoint travel.

    The look number n is `delays[n - 1]` milliseconds after the one before; the last of them ends with a tombstone. They go to
    the endpoint `to`, which asks `attempts`.
    """

    attempts: Attempts
    delays: tuple[int, ...]
    to: str
    clock: Clock
