"""Documents in SQL databases as subjects of their suite, and how the answers of their writes are lost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import Connection

from onceonly.adapters.sqlite.dialect import SQLite
from onceonly.ports.documents import Documents
from onceonly.sql.database import Database, open_database
from onceonly.sql.dialect import Limit, Purpose
from onceonly.sql.schema import create
from onceonly.sql.store import DOCUMENTS_SCHEMA, SqlDocuments
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.documents_subject import Moment
from tests.servers.cutting_commits import Cutter, cutting
from tests.servers.proxy import Inspector
from tests.sql.emptying import empty

WRITES = (b"INSERT", b"UPDATE", b"DELETE")
EXECUTE, PARSE, BIND = b"E", b"P", b"B"
BEGIN, COMMIT, ROLLBACK = b"BEGIN ", b"COMMIT\0", b"ROLLBACK"
HEADER = 5


class SqlPlace:
    """The documents of one SQL database, named by its URL; `through` is the URL of a proxy in front of it."""

    def __init__(self, url: str, cutter: Cutter | None = None, through: str = "") -> None:
        self.clock = ManualClock()
        self.url = url
        self._cutter = cutter
        self._through = through
        self._opened: list[Database] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Self]:
        """Empty the documents of a server, and put a proxy in front of it; close every connection at the end."""
        async with cutting(url, kind=StatementCutter if url.startswith("postgresql") else Cutter) as (cutter, through):
            subject = cls(url, cutter, through)
            try:
                await subject.empty()
                yield subject
            finally:
                await subject.close()

    async def database(self, url: str = "", *, prefix: str = "") -> Database:
        """Open the database as a process of its own would."""
        self._opened.append(await open_database(url or self.url, clock=self.clock, prefix=prefix))
        return self._opened[-1]

    async def documents(self) -> Documents:
        """Open the documents."""
        return SqlDocuments(await self.database())

    async def cut(self, moment: Moment) -> Documents:
        """Open them through the proxy, which cuts off the next write."""
        assert self._cutter is not None
        documents = SqlDocuments(await self.database(self._through))
        await documents.load(["what is said at the first connection is over now"])
        moments = iter([moment])
        self._cutter.decide = lambda: next(moments, "")
        return documents

    async def missing(self) -> Documents:
        """Open tables that nobody made."""
        return SqlDocuments(await self.database(prefix="nobodys_"))

    def now(self) -> int:
        """Return the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and have those deleted whose time it was."""
        self.clock.advance(milliseconds)
        await SqlDocuments(await self.database()).remove_expired()

    async def empty(self) -> None:
        """Delete every document."""
        database = await self.database()
        await empty(database, DOCUMENTS_SCHEMA.tables(database.prefix, database.schema).sorted_tables)

    async def close(self) -> None:
        """Close every connection."""
        for opened in self._opened:
            await opened.close()


class SqlitePlace(SqlPlace):
    """The documents in one SQLite file. It has no wire: its commit itself is cut off."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Self]:
        """Open a file that has the table."""
        subject = cls(url)
        try:
            yield subject
        finally:
            await subject.close()

    async def cut(self, moment: Moment) -> Documents:
        """Open the file with a dialect whose next commit fails as a broken disk does."""
        database = await self.database()
        database.dialect = CutSQLite(moment)
        return SqlDocuments(database)


class CutSQLite(SQLite):
    """Fails at its first commit of a write, before or after it is done."""

    def __init__(self, moment: Moment) -> None:
        self._moment: Moment | None = moment
        self._writes = False

    def begin(self, connection: Connection, purpose: Purpose, *, isolation: str | None) -> None:
        """Begin, and remember what for."""
        self._writes = purpose is Purpose.WRITING
        super().begin(connection, purpose, isolation=isolation)

    def commit(self, connection: Connection, limit: Limit | None = None) -> None:
        """Commit, and fail."""
        if not self._writes or self._moment is None:
            return
        moment, self._moment = self._moment, None
        if moment == "after":
            connection.exec_driver_sql("COMMIT")
        raise OSError("the disk is gone")


class StatementCutter(Cutter):
    """Cuts PostgreSQL's connections also at a writing statement that is no part of a transaction."""

    def inspector(self) -> Inspector:
        """Read along."""
        reading = Reading()
        return lambda data: self.decide() if reading.ends_write(data) else ""


class Reading:
    """Reads along what one client of PostgreSQL says, as the protocol has it (chapter 55 of its manual)."""

    def __init__(self) -> None:
        self._writes: set[bytes] = set()
        self._is_open = False
        self._is_write = False

    def ends_write(self, data: bytes) -> bool:
        """Tell whether the server writes for good when it gets this: a COMMIT, or a writing statement on its own."""
        ends = False
        for kind, body in _messages(data):
            if kind == PARSE:
                name, statement = body.split(b"\0")[:2]
                self._writes = self._writes | {name} if statement.startswith(WRITES) else self._writes - {name}
            elif kind == BIND:
                self._is_write = body.split(b"\0")[1] in self._writes
            ends = ends or (kind == EXECUTE and self._is_write and not self._is_open) or (COMMIT in body and self._is_open)
            if BEGIN in body or ROLLBACK in body or COMMIT in body:
                self._is_open = BEGIN in body
        return ends


def _messages(data: bytes) -> list[tuple[bytes, bytes]]:
    """Take apart what a client sends at once; what is no whole message is left out."""
    found: list[tuple[bytes, bytes]] = []
    while len(data) >= HEADER:
        end = 1 + int.from_bytes(data[1:HEADER], "big")
        found.append((data[:1], data[HEADER:end]))
        data = data[end:]
    return found


async def make_documents_table(place: Path | str) -> None:
    """Make the table."""
    url = place if isinstance(place, str) else f"sqlite:///{place}"
    database = await open_database(url, clock=ManualClock())
    try:
        await create(database, DOCUMENTS_SCHEMA)
    finally:
        await database.close()
