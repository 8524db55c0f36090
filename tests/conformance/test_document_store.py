"""The store on documents keeps the promises of its port, on documents in memory and in SQLite."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from onceonly_conformance.forgetful_suite import FORGOTTEN, NOT_KEPT, ForgetfulStoreSuite
from onceonly_conformance.pending_suite import PendingRecordsSuite
from onceonly_conformance.samples import message
from onceonly_conformance.store_suite import StoreSuite
from tests.conformance.document_store_subjects import WEEK, DocumentStores, SearchedDocumentStores, SqlDocumentStores
from tests.conformance.sql_documents_subjects import make_documents_table

NO_MESSAGES = "a document store begins units for messages only: they name the document"
WAIVED = {
    "test_a_unit_without_messages_commits_its_writes": NO_MESSAGES,
    "test_a_resource_of_an_unknown_kind_is_a_lookup_error": NO_MESSAGES,
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the table once; each test works on a copy."""
    file = tmp_path_factory.mktemp("empty") / "documents.db"
    asyncio.run(make_documents_table(file))
    return file


class OnFile:
    """What needs a file of its own for each test."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, empty: Path) -> None:
        self.file = Path(shutil.copy(empty, tmp_path))


class TestDocumentStoreInMemory(StoreSuite):
    """With history."""

    waived: ClassVar[dict[str, str]] = WAIVED

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[DocumentStores]:
        """Open a new world."""
        yield DocumentStores(history=WEEK)


class TestPendingOnDocuments(PendingRecordsSuite):
    """What a relay finds, with history."""

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[SearchedDocumentStores]:
        """Open a new world."""
        yield SearchedDocumentStores(history=WEEK)


class TestDocumentStoreInSqlite(OnFile, StoreSuite):
    """With history."""

    waived: ClassVar[dict[str, str]] = WAIVED

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[SqlDocumentStores]:
        """Open a new file."""
        async with SqlDocumentStores.open(f"sqlite:///{self.file}", history=WEEK) as subject:
            yield subject


class TestForgetfulStore(StoreSuite, ForgetfulStoreSuite):
    """Without history."""

    waived: ClassVar[dict[str, str]] = {**WAIVED, FORGOTTEN: NOT_KEPT}

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[DocumentStores]:
        """Open a new world."""
        yield DocumentStores(history=None)

    open_forgetful_store = open_store


class TestForgetfulStoreInSqlite(OnFile, ForgetfulStoreSuite):
    """Without history."""

    @asynccontextmanager
    async def open_forgetful_store(self) -> AsyncIterator[SqlDocumentStores]:
        """Open a new file."""
        async with SqlDocumentStores.open(f"sqlite:///{self.file}", history=None) as subject:
            yield subject


async def test_a_resource_that_documents_do_not_offer_is_a_lookup_error() -> None:
    """So the endpoint can say at start what it cannot inject."""
    unit = await (await DocumentStores(history=WEEK).store()).begin([message()])
    with pytest.raises(LookupError, match="StoreSuite"):
        unit.resources.get(StoreSuite)
