"""Dedup store, tokens and things keep every promise: in memory, on documents in memory, and in a folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from memory_effect_subjects import MemoryDedup, MemoryDocumentsPlace, MemoryThingsPlace, MemoryTokenPlace

from onceonly.effects.folder import FolderThings
from onceonly.testing.dedup_suite import DedupSubject, DedupSuite
from onceonly.testing.on_documents import dedup_and_token_subjects
from onceonly.testing.things_suite import ThingsSuite
from onceonly.testing.token_suite import TokenSubject, TokenSuite


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


class TestDedupOnMemoryDocuments(DedupSuite):
    """The one for every service, on documents in memory."""

    @asynccontextmanager
    async def open_dedup(self) -> AsyncIterator[DedupSubject]:
        """Open a new world."""
        yield dedup_and_token_subjects(MemoryDocumentsPlace()).dedup


class TestTokensOnMemoryDocuments(TokenSuite):
    """The one for every service, on documents in memory."""

    @asynccontextmanager
    async def open_tokens(self) -> AsyncIterator[TokenSubject]:
        """Open a new world."""
        yield dedup_and_token_subjects(MemoryDocumentsPlace()).tokens


class TestMemoryThings(ThingsSuite):
    """The ones that the model checker makes and unmakes."""

    @asynccontextmanager
    async def open_things(self) -> AsyncIterator[MemoryThingsPlace]:
        """Open a new world."""
        yield MemoryThingsPlace()


class Folder:
    """Files in a folder, as a subject."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def things(self) -> FolderThings:
        """Open the folder."""
        return FolderThings(self._folder)


class TestFolderThings(ThingsSuite):
    """Files in a local folder."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @asynccontextmanager
    async def open_things(self) -> AsyncIterator[Folder]:
        """Open an empty folder."""
        yield Folder(self.folder)
