"""The SQL adapters keep every promise of their ports on MariaDB."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar, cast

import pytest
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import registry

from onceonly.ports.store import Resources
from onceonly.sql.queue import NAMES_AT_ONCE
from onceonly.sql.queue import SCHEMA as QUEUE_SCHEMA
from onceonly.sql.schema import create, create_user_tables
from onceonly.sql.store import SCHEMA as STORE_SCHEMA
from onceonly.sql.store.documents import KEYS_AT_ONCE as DOCUMENTS_AT_ONCE
from onceonly.sql.store.statements import KEYS_AT_ONCE
from onceonly_conformance.dead_letter_suite import DeadLetterSuite
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.entity_suite import EntityStoreSuite
from onceonly_conformance.forgetful_suite import ForgetfulStoreSuite
from onceonly_conformance.on_sql import SqlTransactionSubject
from onceonly_conformance.pending_suite import PendingRecordsSuite
from onceonly_conformance.register_suite import RegisterSuite
from onceonly_conformance.ring_suite import RingSuite
from onceonly_conformance.sql_guard_suite import SqlGuardSuite
from onceonly_conformance.sql_lock_suite import SqlLockSuite
from onceonly_conformance.store_suite import StoreSuite
from onceonly_conformance.transaction_suite import AttemptSuite, EntitySuite, TransactionSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.sql_documents_subjects import SqlPlace, make_documents_table
from tests.conformance.sql_subjects import TRACES, ForgettingSubject, ImpatientSubject, SqlRings, SqlSubject
from tests.conformance.transaction_subjects import SqlAttempting, SqlTransacting
from tests.sql.emptying import empty

USERS = MetaData()
TRACE = registry(metadata=USERS).mapped(type("Trace", (), {"__table__": TRACES.to_metadata(USERS)}))


class MariaDBSubject(SqlSubject):
    """Everything there is in one MariaDB database."""

    async def refuse(self, resources: Resources) -> None:
        """Leave a row with too long a key in the session: MariaDB has no constraint that only COMMIT checks."""
        cast("AsyncSession", resources.get(AsyncSession)).add(TRACE(key="x" * 201))

    async def empty(self) -> None:
        """Delete every row of every table."""
        database = await self.database()
        kinds = (STORE_SCHEMA.tables, QUEUE_SCHEMA.tables)
        own = [table for tables in kinds for table in tables(database.prefix, database.schema).sorted_tables]
        await empty(database, (TRACES, *own))


async def make_tables(url: str) -> None:
    """Make all tables."""
    async with MariaDBSubject.open(url) as subject:
        database = await subject.database()
        await create(database, STORE_SCHEMA)
        await create(database, QUEUE_SCHEMA)
        await create_user_tables(database, USERS)


@pytest.fixture(scope="module")
def url(mariadb_url: str) -> str:
    """Make the tables once; each test empties them."""
    asyncio.run(make_tables(mariadb_url))
    asyncio.run(make_documents_table(mariadb_url))
    return mariadb_url


class OnServer:
    """What needs empty tables for each test."""

    many: ClassVar[int] = KEYS_AT_ONCE + 3

    kind: ClassVar[type[MariaDBSubject]] = MariaDBSubject

    @pytest.fixture(autouse=True)
    def _place(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MariaDBSubject]:
        """Open the database, and empty its tables."""
        async with self.kind.open(self.url) as subject:
            await subject.empty()
            yield subject


@pytest.mark.slow
class TestMariaDBStore(OnServer, StoreSuite, PendingRecordsSuite, EntityStoreSuite, SqlGuardSuite):
    """Business data, claims and records in MariaDB."""

    open_store = OnServer.opened


class ImpatientMariaDBSubject(ImpatientSubject, MariaDBSubject):
    """A store whose statements do not wait for long."""


class TestMariaDBLocks(OnServer, SqlLockSuite):
    """Statements that wait for a lock in MariaDB."""

    kind: ClassVar[type[MariaDBSubject]] = ImpatientMariaDBSubject

    @asynccontextmanager
    async def open_impatient(self) -> AsyncIterator[SqlTransactionSubject]:
        """Open it, and empty its tables."""
        async with self.opened() as subject:
            yield SqlTransactionSubject(subject)


class ForgettingMariaDBSubject(ForgettingSubject, MariaDBSubject):
    """A store that another system remembers for."""


@pytest.mark.slow
class TestMariaDBForgettingStore(OnServer, ForgetfulStoreSuite):
    """A store that another system remembers for; on SQLite it is put through the rules of other stores as well."""

    kind: ClassVar[type[MariaDBSubject]] = ForgettingMariaDBSubject
    open_forgetful_store = OnServer.opened


class MariaDBRings(SqlRings, MariaDBSubject):
    """A store that forgets soon."""


@pytest.mark.slow
class TestMariaDBRing(OnServer, RingSuite):
    """Claims that are forgotten in time, in MariaDB."""

    @asynccontextmanager
    async def open_ring(self) -> AsyncIterator[MariaDBRings]:
        """Open the database, and empty its tables."""
        async with MariaDBRings.open(self.url) as subject:
            await subject.empty()
            yield subject


class TestMariaDBRegister(OnServer, RegisterSuite):
    """Reservations in MariaDB."""

    open_register = OnServer.opened


@pytest.mark.slow
class TestMariaDBQueue(OnServer, TransportSuite):
    """The queue inside MariaDB."""

    many: ClassVar[int] = NAMES_AT_ONCE + 3
    destinations: ClassVar[int] = NAMES_AT_ONCE + 3

    open_transport = OnServer.opened


@pytest.mark.slow
class TestMariaDBDeadLetters(OnServer, DeadLetterSuite):
    """Dead letters in MariaDB."""

    open_dead_letters = OnServer.opened


class TestMariaDBDocuments(OnServer, DocumentsSuite):
    """Documents in MariaDB."""

    many: ClassVar[int] = DOCUMENTS_AT_ONCE + 3

    def open_documents(self) -> AbstractAsyncContextManager[SqlPlace]:
        """Open the database, and empty its table."""
        return SqlPlace.open(self.url)


class TestTransactionsInMariadb(TransactionSuite, EntitySuite, AttemptSuite):
    """Transactions of a user's."""

    @pytest.fixture(autouse=True)
    def _place(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def open_transactions(self) -> AsyncIterator[SqlTransacting]:
        """Open the database, and empty it."""
        async with MariaDBSubject.open(self.url) as subject:
            await subject.empty()
            yield SqlTransacting(subject)

    @asynccontextmanager
    async def open_attempts(self) -> AsyncIterator[SqlAttempting]:
        """Open the database, and empty it."""
        async with MariaDBSubject.open(self.url) as subject:
            await subject.empty()
            yield SqlAttempting(subject)
