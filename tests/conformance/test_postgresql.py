"""The SQL adapters keep every promise of their ports on PostgreSQL, with both drivers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar

import pytest

from onceonly.sql.queue import NAMES_AT_ONCE
from onceonly.sql.store.documents import KEYS_AT_ONCE as DOCUMENTS_AT_ONCE
from onceonly.sql.store.statements import KEYS_AT_ONCE
from onceonly_conformance.dead_letter_suite import DeadLetterSuite
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.entity_suite import EntityStoreSuite
from onceonly_conformance.forgetful_suite import ForgetfulRecordsSuite, ForgetfulStoreSuite
from onceonly_conformance.on_sql import SqlTransactionSubject
from onceonly_conformance.pending_suite import PendingRecordsSuite
from onceonly_conformance.register_suite import RegisterSuite
from onceonly_conformance.ring_suite import RingSuite
from onceonly_conformance.sql_guard_suite import SqlGuardSuite
from onceonly_conformance.sql_lock_suite import SqlLockSuite
from onceonly_conformance.store_suite import StoreSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.sql_documents_subjects import SqlPlace, make_documents_table
from tests.conformance.sql_subjects import ForgettingSubject, ImpatientSubject, SqlRings, SqlSubject, make_tables

DRIVERS = ("postgresql", "postgresql+psycopg")


@pytest.fixture(scope="module", params=DRIVERS)
def url(request: pytest.FixtureRequest, postgresql_url: str) -> str:
    """Make the tables once for each driver; each test empties them."""
    schema = str(request.param).replace("+", "_")
    place = f"{request.param}:{postgresql_url.partition(':')[2]}?schema={schema}"
    asyncio.run(make_tables(place))
    asyncio.run(make_documents_table(place))
    return place


class OnServer:
    """What needs empty tables for each test."""

    many: ClassVar[int] = KEYS_AT_ONCE + 3

    kind: ClassVar[type[SqlSubject]] = SqlSubject

    @pytest.fixture(autouse=True)
    def _place(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SqlSubject]:
        """Open the database, and empty its tables."""
        async with self.kind.open(self.url) as subject:
            await subject.empty()
            yield subject


class TestPostgresqlStore(OnServer, StoreSuite, PendingRecordsSuite, EntityStoreSuite, SqlGuardSuite):
    """Business data, claims and records in PostgreSQL."""

    open_store = OnServer.opened


class TestPostgresqlLocks(OnServer, SqlLockSuite):
    """Statements that wait for a lock in PostgreSQL."""

    kind: ClassVar[type[SqlSubject]] = ImpatientSubject

    @asynccontextmanager
    async def open_impatient(self) -> AsyncIterator[SqlTransactionSubject]:
        """Open it, and empty its tables."""
        async with self.opened() as subject:
            yield SqlTransactionSubject(subject)


class TestPostgresqlForgettingStore(OnServer, ForgetfulRecordsSuite, ForgetfulStoreSuite):
    """A store that another system remembers for; on SQLite it is put through the rules of other stores as well."""

    kind: ClassVar[type[SqlSubject]] = ForgettingSubject
    open_forgetful_store = open_store = OnServer.opened


class TestPostgresqlRing(OnServer, RingSuite):
    """Claims that are forgotten in time, in PostgreSQL."""

    @asynccontextmanager
    async def open_ring(self) -> AsyncIterator[SqlRings]:
        """Open the database, and empty its tables."""
        async with SqlRings.open(self.url) as subject:
            await subject.empty()
            yield subject


class TestPostgresqlRegister(OnServer, RegisterSuite):
    """Reservations in PostgreSQL."""

    open_register = OnServer.opened


class TestPostgresqlQueue(OnServer, TransportSuite):
    """The queue inside PostgreSQL."""

    many: ClassVar[int] = NAMES_AT_ONCE + 3
    destinations: ClassVar[int] = NAMES_AT_ONCE + 3

    open_transport = OnServer.opened


class TestPostgresqlDeadLetters(OnServer, DeadLetterSuite):
    """Dead letters in PostgreSQL."""

    open_dead_letters = OnServer.opened


class TestPostgresqlDocuments(OnServer, DocumentsSuite):
    """Documents in PostgreSQL."""

    many: ClassVar[int] = DOCUMENTS_AT_ONCE + 3

    def open_documents(self) -> AbstractAsyncContextManager[SqlPlace]:
        """Open the database, and empty its table."""
        return SqlPlace.open(self.url)
