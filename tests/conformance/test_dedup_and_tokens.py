"""Dedup store, tokens, transactions and artifacts keep every promise: in memory, on documents, and in a folder."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from onceonly.adapters.folder.artifacts import FolderArtifacts
from onceonly_conformance.artifact_suite import ArtifactStoreSuite
from onceonly_conformance.dedup_suite import DedupSubject, DedupSuite
from onceonly_conformance.on_documents import (
    DocumentDedupSuite,
    DocumentProjectionSuite,
    DocumentTokenSuite,
    DocumentTransactionSuite,
)
from onceonly_conformance.token_suite import TokenSubject, TokenSuite
from tests.conformance.memory_effect_subjects import MemoryArtifactsPlace, MemoryDedup, MemoryTokenPlace
from tests.conformance.memory_subjects import MemoryPlace
from tests.conformance.sql_documents_subjects import SqlitePlace, SqlPlace, make_documents_table


class TestMemoryDedup(DedupSuite):
    """The one that the model checker explores."""

    @asynccontextmanager
    async def open_dedup(self) -> AsyncIterator[DedupSubject]:
        """Open a new world."""
        yield MemoryDedup()


class TestMemoryTokens(TokenSuite):
    """The one that the model checker explores."""

    @asynccontextmanager
    async def open_tokens(self) -> AsyncIterator[TokenSubject]:
        """Open a new world."""
        yield MemoryTokenPlace()


class InMemory:
    """Documents in memory."""

    service: ClassVar[str] = "memory"

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[MemoryPlace]:
        """Open a new world."""
        yield MemoryPlace()


class TestProjectionsInMemoryDocuments(InMemory, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInMemoryDocuments(InMemory, DocumentDedupSuite):
    """The one for every service, in memory."""


class TestTokensInMemoryDocuments(InMemory, DocumentTokenSuite):
    """The ones for every service, in memory."""


class TestTransactionsInMemoryDocuments(InMemory, DocumentTransactionSuite):
    """The ones for every service, here."""


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the table once; each test works on a copy."""
    file = tmp_path_factory.mktemp("empty") / "documents.db"
    asyncio.run(make_documents_table(file))
    return file


class InSqlite:
    """Documents in a SQLite file of their own."""

    service: ClassVar[str] = "sqlite"

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, empty: Path) -> None:
        self.file = Path(shutil.copy(empty, tmp_path))

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[SqlPlace]:
        """Open a new file."""
        async with SqlitePlace.open(f"sqlite:///{self.file}") as subject:
            yield subject


class TestProjectionsInSqlite(InSqlite, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInSqlite(InSqlite, DocumentDedupSuite):
    """The one for every service, in SQLite."""


class TestTokensInSqlite(InSqlite, DocumentTokenSuite):
    """The ones for every service, in SQLite."""


class TestTransactionsInSqliteDocuments(InSqlite, DocumentTransactionSuite):
    """The ones for every service, here."""


@pytest.fixture(scope="module")
def postgresql_place(postgresql_url: str) -> str:
    """Make the table once; each test empties it."""
    place = f"{postgresql_url}?schema=dedup_and_tokens"
    asyncio.run(make_documents_table(place))
    return place


class InPostgresql:
    """Documents in PostgreSQL."""

    service: ClassVar[str] = "postgresql"

    @pytest.fixture(autouse=True)
    def _place(self, postgresql_place: str) -> None:
        self.url = postgresql_place

    def open_documents(self) -> AbstractAsyncContextManager[SqlPlace]:
        """Open the database, and empty its table."""
        return SqlPlace.open(self.url)


class TestProjectionsInPostgresql(InPostgresql, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInPostgresql(InPostgresql, DocumentDedupSuite):
    """The one for every service, in PostgreSQL."""


class TestTokensInPostgresql(InPostgresql, DocumentTokenSuite):
    """The ones for every service, in PostgreSQL."""


class TestTransactionsInPostgresqlDocuments(InPostgresql, DocumentTransactionSuite):
    """The ones for every service, here."""


@pytest.fixture(scope="module")
def mariadb_place(mariadb_url: str) -> str:
    """Make the table once; each test empties it."""
    asyncio.run(make_documents_table(mariadb_url))
    return mariadb_url


class InMariadb:
    """Documents in MariaDB."""

    service: ClassVar[str] = "mariadb"

    @pytest.fixture(autouse=True)
    def _place(self, mariadb_place: str) -> None:
        self.url = mariadb_place

    def open_documents(self) -> AbstractAsyncContextManager[SqlPlace]:
        """Open the database, and empty its table."""
        return SqlPlace.open(self.url)


class TestProjectionsInMariadb(InMariadb, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInMariadb(InMariadb, DocumentDedupSuite):
    """The one for every service, in MariaDB."""


class TestTokensInMariadb(InMariadb, DocumentTokenSuite):
    """The ones for every service, in MariaDB."""


class TestTransactionsInMariadbDocuments(InMariadb, DocumentTransactionSuite):
    """The ones for every service, here."""


class TestMemoryArtifacts(ArtifactStoreSuite):
    """The ones that the model checker makes and unmakes."""

    @asynccontextmanager
    async def open_artifacts(self) -> AsyncIterator[MemoryArtifactsPlace]:
        """Open a new world."""
        yield MemoryArtifactsPlace()


class Folder:
    """Files in a folder, as a subject."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def artifacts(self) -> FolderArtifacts:
        """Open the folder."""
        return FolderArtifacts(self._folder)


class TestFolderArtifacts(ArtifactStoreSuite):
    """Files in a local folder."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @asynccontextmanager
    async def open_artifacts(self) -> AsyncIterator[Folder]:
        """Open an empty folder."""
        yield Folder(self.folder)
