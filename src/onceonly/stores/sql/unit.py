"""One unit of work: claims, business state and records in one database transaction."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from onceonly.drivers.sql import Database
from onceonly.drivers.transaction import DatabaseTransaction
from onceonly.model.errors import CommitRefused, Conflict, Failed
from onceonly.model.identity import claim_key
from onceonly.model.record import Record
from onceonly.ports.store import Resources
from onceonly.stores.sql.resources import SqlResources
from onceonly.stores.sql.statements import Found, delete_keys, row_of
from onceonly.stores.sql.tables import Tables


class Scope(NamedTuple):
    """Where a unit writes, for whom, and whether claims and records are kept."""

    database: Database
    tables: Tables
    endpoint: str
    history: bool


class SqlUnit:
    """A unit on an open database transaction, which ends with the unit."""

    def __init__(self, scope: Scope, transaction: DatabaseTransaction, found: Found, *, isolated: bool) -> None:
        self.key = ""
        self.new = found.new
        self.owed = found.owed
        self.done = found.done
        self.clashing = found.clashing
        self.resources: Resources
        self._resources = self.resources = SqlResources(scope.database, transaction, isolated=isolated)
        self._scope = scope
        self._transaction = transaction
        self._is_over = False

    async def commit(self, records: Sequence[Record]) -> None:
        """Write and commit; see the port."""
        if self._is_over:
            raise Failed("this unit was committed or given up before")
        self._is_over = True
        try:
            with self._scope.database.translate(locked=Conflict, refused=CommitRefused, committing=True):
                await self._transaction.commit(partial(self._write, tuple(records)))
        except BaseException:
            self._transaction.drop()
            raise

    def abandon(self) -> None:
        """Give up; see the port. It is rolled back in the background, before the store begins another unit."""
        self._is_over = True
        self._transaction.drop()

    def _write(self, records: tuple[Record, ...], connection: Connection) -> None:
        database, tables, endpoint, history = self._scope
        self._resources.flush()
        self._resources.check()  # before the records: outside of the claims' own transaction they must not be written
        if not history:
            return
        handled = {record.identity for record in records}
        unhandled = [claim_key(endpoint, message.identity) for message in self.new if message.identity not in handled]
        with database.translate(locked=Conflict):
            now = database.clock.now()
            rows = [row_of(endpoint, record, now) for record in records if record.effects]
            database.dialect.insert_last(connection, tables.records, rows)
            delete_keys(connection, tables.claims, database.dialect, sorted(unhandled))
        # Crash here, "before-commit": 1 nothing is visible, 2 the database rolls back, 3 it comes again, 4 it is new.
