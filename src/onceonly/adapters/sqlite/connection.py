"""aiosqlite's connection, with one visit to its thread for each statement.

The driver visits the thread to make a cursor, to execute, to fetch and to close; each visit wakes two threads. Here a statement
executes, fetches and closes in one. A longer result is fetched part by part, as before.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import aiosqlite

from onceonly.adapters.sqlite.file import DatabaseFile, OpenFile

AHEAD = 1000
"""Rows that are fetched with their statement."""
POLL_SECONDS = 0.001  # between two looks at a thread that ends
INTERRUPT_SECONDS = 0.05
"""Seconds between two interrupts of a statement that was given up."""
_ITERATED = 64  # rows at once for who iterates; the driver's own default


class SQLiteConnection(aiosqlite.Connection):
    """A connection of aiosqlite's whose cursors visit its thread as seldom as they can, and whose commits are on its file."""

    def __init__(self, file: DatabaseFile, options: dict[str, Any]) -> None:
        """Prepare; it is made when it is awaited."""
        self._file = file
        self._opened: OpenFile | None = None
        self.only_reads = False
        """Whether the transaction only reads. Then a statement whose task is cancelled is ended."""

        def connect() -> sqlite3.Connection:
            self._opened = file.open(**options)
            return self._opened.connection

        super().__init__(connect, _ITERATED)

    async def _connect(self) -> "SQLiteConnection":
        """Connect. Where that fails, wait until its thread has ended: the driver leaves it to outlive the event loop."""
        try:
            await super()._connect()
        except Exception:
            while self._thread.is_alive():  # noqa: ASYNC110 - the end of a thread has no event
                await asyncio.sleep(POLL_SECONDS)
            raise
        return self

    def stop(self) -> asyncio.Future[Any] | None:
        """Have its thread close the connection and end; see the driver.

        A caller that is cancelled while it connects never has the connection, and the driver closes only what it has. Since
        Python 3.13, SQLite's module warns of each connection that is left to the garbage collector.
        """
        if self._connection is None:
            self._tx.put_nowait((None, self._close_unused))
        return super().stop()

    def _close_unused(self) -> None:
        if self._opened is not None:
            self._opened.connection.close()

    async def commit(self) -> None:
        """Commit. Raises Moved where its file was deleted or replaced."""
        await self._execute(self._commit)  # type: ignore[no-untyped-call]

    def _commit(self) -> None:
        assert self._opened is not None  # noqa: S101 - for the type checker: `_execute` refuses what is not connected
        self._file.commit(self._opened)

    def cursor(self) -> "Cursor":  # type: ignore[override]
        """Return a cursor, to be awaited or entered as that of `aiosqlite`. SQLite's own is made when it executes."""
        return Cursor(self)


class Cursor(aiosqlite.Cursor):
    """A cursor that has its rows, up to `AHEAD` of them, when its statement was executed."""

    def __init__(self, connection: SQLiteConnection) -> None:
        self.iter_chunk_size = _ITERATED
        self._conn = self._own = connection
        self._open: sqlite3.Cursor | None = None
        self._rows: list[Any] = []
        self._description: Any = None
        self._rowcount = -1
        self._lastrowid: int | None = None
        self._arraysize = 1
        self._row_factory: Any = None

    def __await__(self) -> Generator[Any, None, "Cursor"]:
        """Return itself: there is nothing to wait for."""
        return self
        yield

    async def execute(self, sql: str, parameters: Any = None) -> "Cursor":
        return await self._visit(lambda cursor: cursor.execute(sql, () if parameters is None else parameters))

    async def executemany(self, sql: str, parameters: Iterable[Any]) -> "Cursor":
        return await self._visit(lambda cursor: cursor.executemany(sql, parameters))

    async def executescript(self, sql_script: str) -> "Cursor":
        return await self._visit(lambda cursor: cursor.executescript(sql_script))

    async def fetchone(self) -> Any:
        return next(iter(await self.fetchmany(1)), None)

    async def fetchmany(self, size: int | None = None) -> Sequence[Any]:
        wanted = self._arraysize if size is None else size
        if len(self._rows) < wanted and self._open is not None:
            self._rows += await self._in_thread(self._fetch, max(AHEAD, wanted))
        rows, self._rows = self._rows[:wanted], self._rows[wanted:]
        return rows

    async def fetchall(self) -> Sequence[Any]:
        rows, self._rows = self._rows, []
        return rows if self._open is None else rows + await self._in_thread(self._fetch, None)

    async def close(self) -> None:
        """Drop what was not fetched."""
        self._rows = []
        if self._open is not None:
            await self._in_thread(self._close)

    @property
    def rowcount(self) -> int:
        """Return how many rows the statement changed; -1 for one that changes none."""
        return self._rowcount

    @property
    def lastrowid(self) -> int | None:
        """Return the number of the row that was inserted last."""
        return self._lastrowid

    @property
    def arraysize(self) -> int:
        """Return how many rows `fetchmany` gives when it is not told."""
        return self._arraysize

    @arraysize.setter
    def arraysize(self, value: int) -> None:
        self._arraysize = value

    @property
    def description(self) -> Any:
        return self._description

    @property
    def row_factory(self) -> Any:
        """Return what makes rows of this cursor, when it is not the connection's."""
        return self._row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._row_factory = factory

    @property
    def connection(self) -> sqlite3.Connection:
        return self._conn._conn  # noqa: SLF001 - the driver's own cursor gives the same

    async def _in_thread(self, work: Callable[..., Any], *arguments: object) -> Any:
        return await self._execute(work, *arguments)  # type: ignore[no-untyped-call]

    async def _visit(self, run: Callable[[sqlite3.Cursor], object]) -> "Cursor":
        self._rows = []  # also when it fails
        reading = _Reading() if self._own.only_reads else None
        try:
            self._rows = await self._in_thread(self._run, run, reading)
        except asyncio.CancelledError:
            if reading is not None:
                reading.end(self.connection)
            raise
        return self

    # what follows runs in the connection's thread

    def _run(self, run: Callable[[sqlite3.Cursor], object], reading: "_Reading | None") -> list[Any]:
        if reading is None:
            return self._run_to_the_end(run)
        try:
            return [] if reading.is_given_up else self._run_to_the_end(run)
        finally:
            reading.ended()

    def _run_to_the_end(self, run: Callable[[sqlite3.Cursor], object]) -> list[Any]:
        self._close()
        self._open = self.connection.cursor()
        if self._row_factory is not None:
            self._open.row_factory = self._row_factory
        try:
            run(self._open)
            self._description = self._open.description
            rows = self._fetch(AHEAD)
        except BaseException:
            self._close()
            raise
        return rows

    def _fetch(self, size: int | None) -> list[Any]:
        assert self._open is not None  # noqa: S101 - for the type checker: only an open one is fetched from
        rows: list[Any] = []
        if self._description is not None:
            rows = self._open.fetchall() if size is None else self._open.fetchmany(size)
        self._rowcount, self._lastrowid = self._open.rowcount, self._open.lastrowid
        if size is None or len(rows) < size:
            self._close()
        return rows

    def _close(self) -> None:
        cursor, self._open = self._open, None
        if cursor is not None:
            cursor.close()


class _Reading:
    """A statement that reads, in the connection's thread, and that is ended when its task is cancelled."""

    def __init__(self) -> None:
        self.is_given_up = False
        self._is_over = False
        self._lock = threading.Lock()

    def ended(self) -> None:
        with self._lock:
            self._is_over = True

    def end(self, connection: sqlite3.Connection) -> None:
        """Interrupt the statement, in the event loop, until it has ended: the thread may be just about to begin it."""
        self.is_given_up = True
        with self._lock:  # the thread does not begin its next statement, which must not be interrupted
            if self._is_over:
                return
            connection.interrupt()
        asyncio.get_running_loop().call_later(INTERRUPT_SECONDS, self.end, connection)


def connecting(file: DatabaseFile) -> Callable[..., SQLiteConnection]:
    """Make what gives connections to a file, each made when it is awaited, as aiosqlite's own `connect` does."""
    return lambda _database, **options: SQLiteConnection(file, options)


def connect(database: str | Path, **options: Any) -> SQLiteConnection:
    """Return one connection, made when it is awaited."""
    return SQLiteConnection(DatabaseFile(database), options)
