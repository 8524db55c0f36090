"""Records and a client's key in the open `atomic()` block of one of Django's databases.

Each is a row that is written at once, so that it goes with the savepoint it was written in. `on_commit` reports what
is committed, and Django drops that callback with a savepoint as well. Nothing here commits.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections, transaction
from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from onceonly.integrations.django.borrowed import borrowed
from onceonly.integrations.django.configuration import is_test
from onceonly.model.errors import CommitFailed, ConflictError, LockTimeout, TransactionMisused
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.transaction import (
    MOST_RECORDS,
    IdempotencyEntry,
    TransactionAttempt,
    attempt_with_records,
)
from onceonly.sql.store.enlisted_keys import KeyTables, StoredAnswer, store_answer, take_key
from onceonly.sql.store.enlistment import shared_dialect
from onceonly.sql.store.statements import row_of
from onceonly.sql.store.tables import tables
from onceonly.sql.translation import translated
from onceonly.sql.urls import DatabaseAddress

if TYPE_CHECKING:
    from onceonly.endpoint import EnlistedKey

_KEYS = "_onceonly_keys"
Committed = Callable[[Sequence[Identity | Record]], None]
"""Called with records, in the thread that has committed them. Must not raise, and must not wait."""


def open_blocks(alias: str) -> list[object]:
    """Return the open `atomic()` blocks of a database in this thread, the outermost first, without that of a `TestCase`."""
    return [each for each in connections[alias].atomic_blocks if not each._from_testcase]  # noqa: SLF001 - as Django does


def check_atomic(alias: str, endpoint: str) -> None:
    """Check that the database has an open `atomic()` block, not counting that of a `TestCase`. Raises TransactionMisused."""
    if open_blocks(alias):
        return
    using = "" if alias == "default" else f"using={alias!r}"
    raise TransactionMisused(
        f"messages of endpoint {endpoint!r} are committed with the rows of a transaction of database {alias!r}, and none is "
        f"open: enclose both in `with transaction.atomic({using}):`{_hint()}"
    )


def _hint() -> str:
    """Return what to do in an event loop, whose thread has no open block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return ". In an `async def` view, await `apublish` or `asend`: they run in the thread that has the transaction"


class AtomicRecords:
    """Writes records in the open block of an alias. It is an `EnlistedTransaction`."""

    is_over = False

    def __init__(self, alias: str, endpoint: str, place: DatabaseAddress, committed: Committed) -> None:
        self.alias = alias
        self._endpoint = endpoint
        self._place = place
        self._committed = committed
        self._tables = tables(place.prefix, place.schema)
        self.last: Identity | None = None
        """The record that was written last."""

    def write(self, record: Record, now: int) -> None:
        """Insert a record. `now` is in milliseconds since 1970. Raises errors of SQLAlchemy and Django."""
        values = row_of(self._endpoint, record, now)
        borrowed(self.alias, self._place).execute(insert(self._tables.records), values)
        self._tell(record)
        self.last = record.identity

    def _tell(self, record: Record) -> Callable[[], None]:
        """Have the record reported after the commit, and return what is called then. In a test nothing is committed."""
        call = partial(self._committed, (record.identity if is_test() else record,))
        transaction.on_commit(call, using=self.alias, robust=True)
        return call


class BlockRecord(NamedTuple):
    """A record that the last statement of a block inserts if `call` is still among those after the commit, and its time."""

    call: Callable[[], None]
    record: Record
    now: int


class AtomicKey(AtomicRecords):
    """A client's key, and the records and the answer that are committed with it. It is an `EnlistedKeyTransaction`.

    `entry` is what is kept under a key that is known already.
    """

    is_own = False

    def __init__(self, alias: str, place: DatabaseAddress, committed: Committed, opening: TransactionAttempt) -> None:
        super().__init__(alias, opening.endpoint, place, committed)
        self.entry: IdempotencyEntry | None = None
        self.is_over = False
        self._opening = opening
        self._written = 0
        self._held: list[BlockRecord] = []
        self.attempt = opening.attempt
        self.answer: bytes | None = None
        self._deadline = 0

    @property
    def is_lost(self) -> bool:
        return False

    def set_answer(self, answer: bytes | None) -> None:
        self.answer = answer

    def hold_records(self) -> None:
        """Do nothing: the statement that stores the answer always inserts the records."""

    def take(self, now: int) -> None:
        """Insert the key, or read what is kept. Raises ConflictError, KeyReused, PermanentFailure, CommitFailed."""
        try:
            self._take(now)
        except DBAPIError as error:
            dialect = shared_dialect(self._place.url)
            failure = translated(error, dialect, locked=ConflictError, unknown=CommitFailed)
            if isinstance(failure, ConflictError):
                kind = LockTimeout if isinstance(failure, LockTimeout) else ConflictError
                raise kind(f"another transaction has this idempotency key: roll back and try again. {failure}") from error
            raise failure from error

    def _take(self, now: int) -> None:
        found = take_key(self._where(), self._opening, now)
        if isinstance(found, IdempotencyEntry):
            self.entry, self.answer = found, found.answer
        else:
            self._deadline = found + self._opening.max_commit

    def _where(self) -> KeyTables:
        return KeyTables(borrowed(self.alias, self._place), shared_dialect(self._place.url), self._tables)

    def write(self, record: Record, now: int) -> None:
        """Keep a record for the statement that stores the answer. Raises OverflowError for more than `MOST_RECORDS`."""
        if self._written >= MOST_RECORDS:
            raise OverflowError(f"a transaction with a key can send {MOST_RECORDS} messages. Send the others without the key")
        check_atomic(self.alias, self._endpoint)
        tell = self._tell(record)
        self._held.append(BlockRecord(tell, record, now))
        self._written += 1
        self.last = record.identity

    def held(self) -> list[BlockRecord]:
        """Return the records that the block has still: Django has dropped the call of one whose savepoint was rolled back."""
        if self.is_over:
            return []
        calls = {id(call) for _, call, *_ in connections[self.alias].run_on_commit}
        return [each for each in self._held if id(each.call) in calls]

    def finish(self) -> None:
        """Store answer and records by the last statement of the block. Raises CommitFailed if it is late; a driver's errors."""
        held, self.is_over = self.held(), True
        if self.entry is not None:
            return
        before, after = (attempt_with_records(self._opening.attempt, count) for count in (0, self._written))
        rows = [row_of(self._endpoint, each.record, each.now) for each in held]
        store_answer(self._where(), self._opening, StoredAnswer(before, after, self.answer, self._deadline), rows)


class OpenKey(NamedTuple):
    """A key that a block has taken, and what sends messages under it."""

    endpoint: object
    entry: "EnlistedKey"
    key: AtomicKey


def keys_of(alias: str) -> list[OpenKey]:
    """Return the keys of the open blocks of an alias, in this thread; the innermost is the last."""
    found: list[OpenKey] = connections[alias].__dict__.setdefault(_KEYS, [])
    return found
