"""The store on documents keeps the promises of its port, on documents in memory and in SQLite."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from document_store_subjects import WEEK, DocumentStores, SqlDocumentStores
from sql_documents_subjects import make_documents_table

from onceonly.testing.forgetful_suite import FORGOTTEN, NOT_KEPT, ForgetfulStoreSuite
from onceonly.testing.samples import message
from onceonly.testing.store_suite import StoreSuite

NOT_SEARCHED = "documents are not searched: a record's message comes again until it is finished"
NO_MESSAGES = "a document store begins units for messages only: they name the document"
WAIVED = {
    "test_a_unit_without_messages_commits_its_writes": NO_MESSAGES,
    "test_a_resource_of_an_unknown_kind_is_a_lookup_error": NO_MESSAGES,
    "test_undispatched_lists_the_oldest_first": NOT_SEARCHED,
    "test_undispatched_lists_only_what_is_older": NOT_SEARCHED,
    "test_undispatched_lists_at_most_the_limit": NOT_SEARCHED,
    "test_take_gives_each_record_once_within_the_lease": NOT_SEARCHED,
    "test_take_gives_only_what_is_older": NOT_SEARCHED,
    "test_take_gives_only_the_endpoints_own": NOT_SEARCHED,
    "test_take_goes_on_behind_a_record_that_may_be_gone": NOT_SEARCHED,
    "test_what_is_taken_is_listed_found_and_forgotten_all_the_same": NOT_SEARCHED,
    "test_find_gives_records_in_the_order_asked": NOT_SEARCHED,
    "test_find_leaves_out_what_has_no_record": NOT_SEARCHED,
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
