"""The toy file keeps every promise of documents, of what is built on them, and of artifacts."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import ClassVar

import pytest
from onceonly_toy.file import ToyArtifacts, ToyDocuments, ToyFile, create

from onceonly.ports.documents import Documents
from onceonly.ports.effects import ArtifactStore
from onceonly_conformance import (
    ArtifactStoreSuite,
    DocumentDedupSuite,
    DocumentsSuite,
    DocumentTokenSuite,
    DocumentTransactionSuite,
    Moment,
)


class CutFile(ToyFile):
    """A file whose next commit fails once, as on a broken disk: before it is done, or after."""

    def __init__(self, path: Path, moment: Moment) -> None:
        super().__init__(path)
        self._moment: Moment | None = moment

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit, and fail once."""
        moment, self._moment = self._moment, None
        if moment != "before":
            super().commit(connection)
        if moment is not None:
            raise sqlite3.OperationalError("disk I/O error")


class Place:
    """One file, under test. Each client opens it as a process of its own would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def documents(self) -> Documents:
        """Open the documents."""
        return ToyDocuments(ToyFile(self.path))

    async def cut(self, moment: Moment) -> Documents:
        """Open the documents with a client whose next write is cut off."""
        return ToyDocuments(CutFile(self.path, moment))

    async def missing(self) -> Documents:
        """Open a file that was never created."""
        return ToyDocuments(ToyFile(self.path.with_suffix(".missing")))

    async def artifacts(self) -> ArtifactStore:
        """Open the artifacts."""
        return ToyArtifacts(ToyFile(self.path))

    def now(self) -> int:
        """Return milliseconds since 1970."""
        return round(time() * 1000)

    async def pass_time(self, milliseconds: int) -> None:
        """Wait."""
        await asyncio.sleep(milliseconds / 1000)


class InAFile:
    """Opens an empty file for each rule."""

    lapse: ClassVar[int] = 100  # nothing is removed at its expiry

    @pytest.fixture(autouse=True)
    def path(self, tmp_path: Path) -> None:
        """Choose a file."""
        self.file = tmp_path / "shop.toy"

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[Place]:
        """Create an empty file."""
        await create(self.file.as_uri().replace("file:", "toy:"))
        yield Place(self.file)

    open_artifacts = open_documents


class TestDocuments(InAFile, DocumentsSuite):
    """Documents themselves."""


class TestDedupStore(InAFile, DocumentDedupSuite):
    """The dedup store on documents."""


class TestTokens(InAFile, DocumentTokenSuite):
    """The tokens on documents."""


class TestTransactions(InAFile, DocumentTransactionSuite):
    """The transactions on documents."""


class TestArtifacts(InAFile, ArtifactStoreSuite):
    """Artifacts."""
