"""The toy database keeps every promise that is built on its dialect."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from onceonly_toysql.dialect import ToySql
from sqlalchemy import Connection

from onceonly.sql.dialect import Dialect, Limit, Purpose
from onceonly_conformance import Moment
from onceonly_conformance.sql import (
    SqlDeadLetterSuite,
    SqlDocumentsSuite,
    SqlForgetfulStoreSuite,
    SqlRegisterSuite,
    SqlRingSuite,
    SqlStoreSuite,
    SqlTransactionSuite,
    SqlTransportSuite,
)


class CutFile(ToySql):
    """A file whose next commit of a write fails, as on a broken disk: before it is done, or after."""

    def __init__(self, moment: Moment) -> None:
        self._moment: Moment | None = moment
        self._writes = False

    def begin(self, connection: Connection, purpose: Purpose, *, isolation: str | None) -> None:
        """Begin, and remember the purpose."""
        self._writes = purpose is Purpose.WRITING
        super().begin(connection, purpose, isolation=isolation)

    def commit(self, connection: Connection, limit: Limit | None = None) -> None:
        """Commit, and fail once."""
        if self._writes and self._moment is not None:
            moment, self._moment = self._moment, None
            if moment == "after":
                connection.exec_driver_sql("COMMIT")
            raise OSError("the disk is gone")


class InAFile:
    """Opens an empty file for each rule."""

    @pytest.fixture(autouse=True)
    def path(self, tmp_path: Path) -> None:
        """Choose a file."""
        self.file = tmp_path / "shop.db"

    @asynccontextmanager
    async def open_database(self) -> AsyncIterator[str]:
        """Return the URL of the file."""
        yield f"toysql:///{self.file}"


class TestStore(InAFile, SqlStoreSuite):
    """Units, claims and records."""


class TestForgetfulStore(InAFile, SqlForgetfulStoreSuite):
    """The same beside a dedup store or tokens."""


class TestRing(InAFile, SqlRingSuite):
    """Time buckets."""

    waived: ClassVar[dict[str, str]] = {"test_there_is_one_leader_at_a_time": "one transaction writes at a time"}


class TestRegister(InAFile, SqlRegisterSuite):
    """Reservations."""


class TestTransport(InAFile, SqlTransportSuite):
    """The queue."""


class TestDeadLetters(InAFile, SqlDeadLetterSuite):
    """Dead letters."""


class TestTransactions(InAFile, SqlTransactionSuite):
    """Transactions and entities."""


class TestDocuments(InAFile, SqlDocumentsSuite):
    """Documents."""

    def cut(self, url: str, moment: Moment) -> Dialect:
        """Return a dialect that fails."""
        return CutFile(moment)
