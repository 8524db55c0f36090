"""The conformance suites for authors of SQL dialects. Each has a rule for every requirement on what uses a dialect.

Bind every suite by a test class that derives from it, and override `open_database`. The suites create the tables. They need
SQLAlchemy. docs/how-to/systems.md has an example.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, TypeVar

from onceonly.sql.dialect import Dialect
from onceonly.sql.queue import NAMES_AT_ONCE
from onceonly.sql.store.documents import KEYS_AT_ONCE as DOCUMENTS_AT_ONCE
from onceonly.sql.store.statements import KEYS_AT_ONCE
from onceonly_conformance.dead_letter_suite import DeadLetterSuite
from onceonly_conformance.documents_subject import Moment
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.entity_suite import EntityStoreSuite
from onceonly_conformance.forgetful_suite import FORGOTTEN, NOT_KEPT, ForgetfulRecordsSuite, ForgetfulStoreSuite
from onceonly_conformance.on_sql import (
    ForgettingSqlSubject,
    ImpatientSqlSubject,
    SqlAttemptSubject,
    SqlDocumentsSubject,
    SqlRingSubject,
    SqlSubject,
    SqlTransactionSubject,
)
from onceonly_conformance.pending_suite import PendingRecordsSuite
from onceonly_conformance.register_suite import RegisterSuite
from onceonly_conformance.ring_suite import RingSuite
from onceonly_conformance.sql_guard_suite import SqlGuardSuite
from onceonly_conformance.sql_lock_suite import SqlLockSuite
from onceonly_conformance.store_suite import StoreSuite
from onceonly_conformance.suite import Suite
from onceonly_conformance.transaction_suite import AttemptSuite, EntitySuite, TransactionSuite
from onceonly_conformance.transport_suite import TransportSuite

__all__ = [
    "SqlDeadLetterSuite",
    "SqlDocumentsSuite",
    "SqlForgetfulStoreSuite",
    "SqlRegisterSuite",
    "SqlRingSuite",
    "SqlStoreSuite",
    "SqlSuite",
    "SqlTransactionSuite",
    "SqlTransportSuite",
]

_Subject = TypeVar("_Subject", bound=SqlSubject)


class SqlSuite(Suite):
    """The base class of all suites for dialects: the database."""

    many: ClassVar[int] = KEYS_AT_ONCE + 3

    def open_database(self) -> AbstractAsyncContextManager[str]:
        """Return the URL of a database for one rule, and clean up afterwards.

        Several rules may use the same database. The suite creates its missing tables, and empties all of them. They have no
        schema, and two have no prefix: `traces` and `required`.
        """
        raise NotImplementedError

    @asynccontextmanager
    async def _opened(self, kind: type[_Subject]) -> AsyncIterator[_Subject]:
        async with self.open_database() as url, kind.open(url) as subject:
            await subject.create()
            await subject.empty()
            yield subject


class SqlStoreSuite(SqlSuite, StoreSuite, PendingRecordsSuite, EntityStoreSuite, SqlGuardSuite, SqlLockSuite):
    """The rules of a store for units, claims, records, entities and locks. Override `open_database`."""

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[Any]:
        """Open the store on the database. The rules call it; do not override it."""
        async with self._opened(SqlSubject) as subject:
            yield subject

    @asynccontextmanager
    async def open_impatient(self) -> AsyncIterator[Any]:
        """Open the store with a short time-out. The rules call it; do not override it."""
        async with self._opened(ImpatientSqlSubject) as subject:
            yield SqlTransactionSubject(subject)


class SqlForgetfulStoreSuite(SqlSuite, ForgetfulRecordsSuite, ForgetfulStoreSuite, StoreSuite, PendingRecordsSuite):
    """The rules of a store that works with `DedupStore` or `Tokens` and deletes its claims. Override `open_database`."""

    waived: ClassVar[dict[str, str]] = {FORGOTTEN: NOT_KEPT}

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[Any]:
        """Open the store on the database. The rules call it; do not override it."""
        async with self._opened(ForgettingSqlSubject) as subject:
            yield subject

    open_forgetful_store = open_store


class SqlRingSuite(SqlSuite, RingSuite):
    """Claims in time buckets, which are deleted after the retention. Override `open_database`."""

    @asynccontextmanager
    async def open_ring(self) -> AsyncIterator[Any]:
        """Open the store and its ring on the database. The rules call it; do not override it."""
        async with self._opened(SqlRingSubject) as subject:
            yield subject


class SqlRegisterSuite(SqlSuite, RegisterSuite):
    """Reservations of artifacts, which commits consume. Override `open_database`."""

    @asynccontextmanager
    async def open_register(self) -> AsyncIterator[Any]:
        """Open the store and its register on the database. The rules call it; do not override it."""
        async with self._opened(SqlSubject) as subject:
            yield subject


class SqlTransportSuite(SqlSuite, TransportSuite):
    """The queue in the database. Override `open_database`."""

    many: ClassVar[int] = NAMES_AT_ONCE + 3
    destinations: ClassVar[int] = NAMES_AT_ONCE + 3

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[Any]:
        """Open the queue in the database. The rules call it; do not override it."""
        async with self._opened(SqlSubject) as subject:
            yield subject


class SqlDeadLetterSuite(SqlSuite, DeadLetterSuite):
    """The dead letters in the database. Override `open_database`."""

    @asynccontextmanager
    async def open_dead_letters(self) -> AsyncIterator[Any]:
        """Open the dead letters in the database. The rules call it; do not override it."""
        async with self._opened(SqlSubject) as subject:
            yield subject


class SqlTransactionSuite(SqlSuite, TransactionSuite, EntitySuite, AttemptSuite):
    """Transactions outside of handlers, control messages, and entities. Override `open_database`."""

    @asynccontextmanager
    async def open_transactions(self) -> AsyncIterator[Any]:
        """Open the transactions on the database. The rules call it; do not override it."""
        async with self._opened(SqlSubject) as subject:
            yield SqlTransactionSubject(subject)

    @asynccontextmanager
    async def open_attempts(self) -> AsyncIterator[Any]:
        """Open transactions that control messages finish. The rules call it; do not override it."""
        async with self._opened(SqlSubject) as subject:
            yield SqlAttemptSubject(subject)


class SqlDocumentsSuite(SqlSuite, DocumentsSuite):
    """Documents with compare-and-set in a table. Override `open_database` and `cut`."""

    many: ClassVar[int] = DOCUMENTS_AT_ONCE + 3

    def cut(self, url: str, moment: Moment) -> str | Dialect:
        """Return how to reach the same database so that the next write is cut off.

        `moment` selects whether it is cut off before or after it is applied. For a server, return the URL of a proxy in front
        of it. For an embedded database, return a dialect whose next commit of a transaction for `Purpose.WRITING` fails with
        an OSError.
        """
        raise NotImplementedError

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[Any]:
        """Open the documents in the database. The rules call it; do not override it."""
        async with self._opened(SqlDocumentsSubject) as subject:
            subject.cutting = self.cut
            yield subject
