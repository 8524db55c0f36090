"""The SQL adapters keep every promise of their ports on SQLite."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from onceonly.sql.queue import NAMES_AT_ONCE
from onceonly.sql.store.documents import KEYS_AT_ONCE as DOCUMENTS_AT_ONCE
from onceonly.sql.store.statements import KEYS_AT_ONCE
from onceonly_conformance.dead_letter_suite import DeadLetterSuite
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.entity_suite import EntityStoreSuite
from onceonly_conformance.forgetful_suite import FORGOTTEN, NOT_KEPT, ForgetfulRecordsSuite, ForgetfulStoreSuite
from onceonly_conformance.on_sql import SqlTransactionSubject
from onceonly_conformance.pending_suite import PendingRecordsSuite
from onceonly_conformance.register_suite import RegisterSuite
from onceonly_conformance.ring_suite import RingSuite
from onceonly_conformance.sql_guard_suite import SqlGuardSuite
from onceonly_conformance.sql_lock_suite import SqlLockSuite
from onceonly_conformance.store_suite import StoreSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.sql_documents_subjects import SqlitePlace, SqlPlace, make_documents_table
from tests.conformance.sql_subjects import ForgettingSubject, ImpatientSubject, SqlRings, SqlSubject, make_tables


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the tables once; each test works on a copy."""
    file = tmp_path_factory.mktemp("empty") / "subject.db"
    asyncio.run(make_tables(file))
    asyncio.run(make_documents_table(file))
    return file


class OnFile:
    """What needs a file of its own for each test."""

    many: ClassVar[int] = KEYS_AT_ONCE + 3

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, empty: Path) -> None:
        self.file = Path(shutil.copy(empty, tmp_path))


class TestSqliteStore(OnFile, StoreSuite, PendingRecordsSuite, EntityStoreSuite, SqlGuardSuite):
    """Business data, claims and records in one SQLite file."""

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[SqlSubject]:
        """Open a new file."""
        async with SqlSubject.open(self.file) as subject:
            yield subject


class TestSqliteLocks(OnFile, SqlLockSuite):
    """Statements that wait for a lock in SQLite."""

    @asynccontextmanager
    async def open_impatient(self) -> AsyncIterator[SqlTransactionSubject]:
        """Open it, and empty its tables."""
        async with ImpatientSubject.open(self.file) as subject:
            await subject.empty()
            yield SqlTransactionSubject(subject)


class TestSqliteForgettingStore(OnFile, ForgetfulRecordsSuite, ForgetfulStoreSuite, StoreSuite, PendingRecordsSuite):
    """The same for a store that another system remembers for."""

    waived: ClassVar[dict[str, str]] = {FORGOTTEN: NOT_KEPT}

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[SqlSubject]:
        """Open a new file."""
        async with ForgettingSubject.open(self.file) as subject:
            await subject.empty()
            yield subject

    open_forgetful_store = open_store


class TestSqliteRing(OnFile, RingSuite):
    """Claims that are forgotten in time, in one SQLite file."""

    waived: ClassVar[dict[str, str]] = {
        "test_there_is_one_leader_at_a_time": "one writer at a time is all there can be, so nothing is gained by one leader"
    }

    @asynccontextmanager
    async def open_ring(self) -> AsyncIterator[SqlRings]:
        """Open a new file."""
        async with SqlRings.open(self.file) as subject:
            yield subject


class TestSqliteRegister(OnFile, RegisterSuite):
    """Reservations in one SQLite file."""

    @asynccontextmanager
    async def open_register(self) -> AsyncIterator[SqlSubject]:
        """Open a new file."""
        async with SqlSubject.open(self.file) as subject:
            await subject.empty()
            yield subject


class TestSqliteQueue(OnFile, TransportSuite):
    """The queue inside SQLite."""

    many: ClassVar[int] = NAMES_AT_ONCE + 3
    destinations: ClassVar[int] = NAMES_AT_ONCE + 3

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[SqlSubject]:
        """Open a new file."""
        async with SqlSubject.open(self.file) as subject:
            yield subject


class TestSqliteDeadLetters(OnFile, DeadLetterSuite):
    """Dead letters in SQLite."""

    @asynccontextmanager
    async def open_dead_letters(self) -> AsyncIterator[SqlSubject]:
        """Open a new file."""
        async with SqlSubject.open(self.file) as subject:
            yield subject


class TestSqliteDocuments(OnFile, DocumentsSuite):
    """Documents in SQLite."""

    many: ClassVar[int] = DOCUMENTS_AT_ONCE + 3

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[SqlPlace]:
        """Open a new file."""
        async with SqlitePlace.open(f"sqlite:///{self.file}") as subject:
            yield subject
