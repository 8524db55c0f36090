"""One unit of work: claims or tokens, business state, entities, register rows and records in one database transaction."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.exc import IntegrityError

from onceonly.config.deduplication import ClaimMode
from onceonly.model.entities import Entities
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.token import Token
from onceonly.ports.store import BeginResult, Resources
from onceonly.sql.database import Database
from onceonly.sql.dialect import Limit, Purpose
from onceonly.sql.store.claims import record_claim, unclaim
from onceonly.sql.store.entities import Loaded, load, save
from onceonly.sql.store.late_rows import RecentLateRows
from onceonly.sql.store.register import spend
from onceonly.sql.store.resources import SqlResources
from onceonly.sql.store.shadow import Outcomes, ShadowReport
from onceonly.sql.store.statements import StoreScope, is_buried, records_of, row_of
from onceonly.sql.store.tokens import give
from onceonly.sql.transaction import DatabaseTransaction

Last = Callable[[Connection], None]
_UNIQUE_VIOLATION = "23505"
"""The SQLSTATE, of a driver's own error."""
_Result = TypeVar("_Result")


class UnitTransaction(Protocol):
    """The open database transaction of one unit."""

    @property
    def has_said_commit(self) -> bool:
        """Whether COMMIT may have been sent. If not, nothing of it is committed."""

    async def run_sync(self, function: Callable[[Connection], _Result]) -> _Result:
        """Call a function with the transaction's connection, and return its result. Raises what the function raises."""

    def block_commit(self, connection: Connection, *, of_messages: bool = False, isolated: bool = False) -> None:
        """Prepare it for handlers, after the claims; in `run_sync`. See `Dialect.block_commit`."""

    def insert_last(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows now or with the commit; in `run_sync`. See `Dialect.insert_last`."""

    async def commit(self, last: Callable[[Connection], None], *, limit: Limit | None = None) -> None:
        """Call `last` with the connection, and commit within the limit. If it raises, the transaction must be dropped."""

    def drop(self) -> None:
        """Roll back in the background. Harmless after a commit and when repeated."""


class UnitResources(Resources, Protocol):
    """What a unit gives its handlers, and what the unit asks about them at its end."""

    def flush(self) -> None:
        """Write what handlers have left; with the connection, once. Raises as `Unit.commit`."""

    def check(self) -> None:
        """Check that the unit can still be committed; with the connection. Raises CommitRefused, CommitFailed."""

    def own_settings(self, connection: Connection) -> AbstractContextManager[None]:
        """Enclose the library's own statements. What settings of a handler cause is CommitRefused."""

    def tell_committed(self) -> None:
        """Report the commit to those who wait for it."""


class UnitOpener(Protocol):
    """Opens transactions for units, and makes what their handlers have of them."""

    async def open(self, purpose: Purpose, isolation: str | None) -> UnitTransaction:
        """Open a transaction. Raises a driver's errors."""

    def resources(self, transaction: Any, entities: Entities, *, isolated: bool, messages: int) -> UnitResources:
        """Return what the handlers of a unit with that many messages get. `transaction` is what `open` has returned."""


class OwnConnections:
    """Opens transactions on connections of the store's database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._late_rows = RecentLateRows()

    async def open(self, purpose: Purpose, isolation: str | None) -> DatabaseTransaction:
        return await self._database.open(purpose, isolation=isolation)

    def resources(self, transaction: DatabaseTransaction, entities: Entities, *, isolated: bool, messages: int) -> SqlResources:
        return SqlResources(
            self._database, transaction, entities, isolated=isolated, messages=messages, late_rows=self._late_rows
        )


class Shadowed(NamedTuple):
    """What a unit in shadow mode found out about its messages, and where it reports that.

    `known` were claimed before. `refused` are in no time bucket.
    """

    report: ShadowReport
    known: Outcomes
    refused: Outcomes


class SqlUnit:
    """A unit on an open database transaction, which ends with the unit."""

    def __init__(  # noqa: PLR0913 - what a store sets of its unit
        self,
        scope: StoreScope,
        transaction: UnitTransaction,
        found: BeginResult,
        *,
        loaded: Loaded,
        isolated: bool,
        opener: UnitOpener | None = None,
        shadow: Shadowed | None = None,
    ) -> None:
        """Work in a transaction. `opener` is what has opened it, if not the store's database."""
        self.key = ""
        self.found = found
        self.resources: Resources
        self._loaded = dict(loaded)
        self._entities = Entities(loaded)
        chosen: UnitOpener = opener or OwnConnections(scope.database)
        self._resources = self.resources = chosen.resources(
            transaction, self._entities, isolated=isolated, messages=len(found.new)
        )
        self._scope = scope
        self._transaction = transaction
        self._is_over = False
        self._shadow = shadow

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Read the records of messages in the unit's transaction. Raises ConflictError, CommitFailed."""
        with self._scope.database.translate(locked=ConflictError, unknown=CommitFailed):
            return await self._transaction.run_sync(partial(records_of, scope=self._scope, identities=identities))

    async def load(self, unit: str) -> None:
        """Load one more entity, and lock it. Raises CommitRefused for a key that is too long, ConflictError, CommitFailed."""
        if unit in self._loaded:
            return
        with self._scope.database.translate(locked=ConflictError, unknown=CommitFailed):
            found = await self._transaction.run_sync(lambda connection: load(connection, self._scope, [unit]))
        self._loaded.update(found)
        self._entities.add(unit, found[unit])

    async def commit_attempt(self, records: Sequence[Record], *, last: Last, limit: Limit) -> None:
        """Commit a transaction or an execution: a ConflictError when a sweeper fenced it. Raises as `commit`."""
        try:
            await self.commit(records, last=last, limit=limit)
        except (CommitRefused, CommitFailed) as error:
            if records and _is_no_longer_unique(error.__cause__):  # an index of the caller's, or the tombstone
                async with self._scope.database.reading() as connection:
                    if await connection.run_sync(is_buried, self._scope, records[0].identity):
                        raise ConflictError("another process considered this transaction dead and cancelled it") from error
            raise

    async def commit(self, records: Sequence[Record], *, last: Last | None = None, limit: Limit | None = None) -> None:
        """Write, also what `last` writes, and commit within the limit; see the port."""
        if self._is_over:
            raise CommitFailed("this unit has already been committed or abandoned")
        self._is_over = True
        try:
            with self._scope.database.translate(locked=ConflictError, refused=CommitRefused, committing=True):
                await self._transaction.commit(partial(self._write, tuple(records), last), limit=limit)
        except BaseException as error:
            self._transaction.drop()
            if isinstance(error, OutcomeUnknown) and not self._transaction.has_said_commit:
                raise CommitFailed(f"nothing was committed: {error}") from error
            raise
        if self._shadow is not None:
            self._shadow.report.add({**self._shadow.refused, **self._shadow.known}, self.found.new, records)
        self._resources.tell_committed()

    def abandon(self) -> None:
        """Give up; see the port. It is rolled back in the background, before the store begins another unit."""
        self._is_over = True
        self._transaction.drop()

    def _write(self, records: tuple[Record, ...], last: Last | None, connection: Connection) -> None:
        self._resources.flush()
        self._resources.check()  # before the records: outside of the claims' own transaction they must not be written
        with self._resources.own_settings(connection):
            self._write_own(records, last, connection)
        # Crash here, "before-commit": 1 nothing is visible, 2 the database rolls back, 3 it comes again, 4 it is new.

    def _write_own(self, records: tuple[Record, ...], last: Last | None, connection: Connection) -> None:
        database = self._scope.database
        if self._loaded and (changes := self._entities.changes()):
            save(connection, self._scope, self._loaded, changes)
        with database.translate(locked=ConflictError):
            if attempts := [record.attempt for record in records if record.attempt]:
                spend(connection, self._scope, attempts)
            if self._scope.journal is not None:
                self._scope.journal.write(connection, self.found.new, records)
            if self._scope.claim_mode is not ClaimMode.NOTHING:
                self._keep(records, connection)
            if last is not None:
                last(connection)

    def _keep(self, records: tuple[Record, ...], connection: Connection) -> None:
        """Write the records, and free the messages that were not handled, by what `begin` took of them."""
        database, tables, endpoint, claim_mode = self._scope[:4]
        now = database.clock.now()
        handled = {record.identity for record in records}
        left = handled if self._shadow is None else handled.union(self._shadow.known)  # of these, the claims are others'
        unhandled = [message for message in self.found.new if message.identity not in left]
        if claim_mode is ClaimMode.TOKENS:
            issued = [token for record in records for token in record.issued]
            give(connection, self._scope, [*issued, *(Token(each.token, endpoint) for each in unhandled)])
        else:
            unclaim(connection, self._scope, unhandled)
        kept = [record for record in records if record.is_pending or record.issued]
        if self._shadow is not None:
            kept = [record for record in kept if record.identity not in self._shadow.known]
        claims = {message.identity: record_claim(self._scope, message) for message in self.found.new} if kept else {}
        rows = [row_of(endpoint, record, now, claims.get(record.identity)) for record in kept]
        if self._shadow is None:
            self._transaction.insert_last(connection, tables.records, rows)
        else:  # a record that an earlier crash left may have outlived its claim
            database.dialect.insert_absent(connection, tables.records, rows, key=["key"])


def _is_no_longer_unique(cause: BaseException | None) -> bool:
    return isinstance(cause, IntegrityError) or getattr(getattr(cause, "orig", None), "sqlstate", None) == _UNIQUE_VIOLATION
