"""Documents and artifacts in one SQLite file. Each call opens the file anew, so several processes can share it.

An expired document stays until a worker deletes it.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from onceonly.documents.encoding import is_text
from onceonly.documents.limits import check_limits
from onceonly.errors import CommitFailed, CommitRefused, OutcomeUnknown, SetupError
from onceonly.model.artifact import Artifact
from onceonly.ports.documents import Change, Document, DocumentLimits, Version
from onceonly.ports.environment import Clock
from onceonly.systems.threads import in_thread

LIMITS = DocumentLimits(service="a toy file", key=1024, body=1024 * 1024)
TABLES = {
    "documents": "(key BLOB PRIMARY KEY, version TEXT NOT NULL, body BLOB NOT NULL)",
    "artifacts": "(name BLOB PRIMARY KEY, data BLOB NOT NULL)",
}
"""Keys and names are bytes of UTF-8, so that they are compared exactly."""
BUSY_SECONDS = 10.0

Result = TypeVar("Result")


class ToyFile:
    """The file. Writes are serialized by SQLite's lock, also between processes, and are on disk when they return."""

    def __init__(self, path: Path) -> None:
        """Use this path; opens nothing."""
        self.path = path

    async def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return the result of a read. Raises CommitFailed: a read changes nothing."""
        return await in_thread(self._read, work)

    async def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return the result of one transaction. Raises CommitFailed, OutcomeUnknown."""
        return await in_thread(self._write, work)

    def commit(self, connection: sqlite3.Connection) -> None:
        """End a transaction."""
        connection.execute("COMMIT")

    def connect(self, mode: str = "rw") -> sqlite3.Connection:
        """Open the file. It is created only where `mode` is "rwc"."""
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, uri=True)

    def _read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            with closing(self.connect()) as connection:
                return work(connection)
        except sqlite3.Error as error:
            raise CommitFailed(f"cannot read {self.path}: {error}") from error

    def _write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            connection = self.connect()
        except sqlite3.Error as error:
            raise CommitFailed(f"cannot open {self.path}: {error}") from error
        with closing(connection):  # rolls back what is not committed
            try:
                connection.execute("BEGIN IMMEDIATE")
                result = work(connection)
            except sqlite3.Error as error:
                raise CommitFailed(f"cannot write to {self.path}: {error}") from error
            try:
                self.commit(connection)
            except sqlite3.Error as error:
                raise OutcomeUnknown(f"no answer to a commit in {self.path}: {error}") from error
        return result

    def check(self) -> tuple[str, ...]:
        """Check that the file has its tables. Raises SetupError."""
        try:
            with closing(self.connect()) as connection:
                found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        except sqlite3.Error as error:
            raise SetupError(f"cannot use {self.path}: {error}. Run `onceonly schema create module:endpoint`.") from error
        if missing := TABLES.keys() - found:
            tables = " and ".join(sorted(missing))
            raise SetupError(f"{self.path} has no table {tables}. Run `onceonly schema create module:endpoint`.")
        return ()

    def create(self) -> None:
        """Create the file and its tables. Raises SetupError."""
        try:
            with closing(self.connect("rwc")) as connection:
                for table, columns in TABLES.items():
                    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} {columns}")
        except sqlite3.Error as error:
            raise SetupError(f"cannot create {self.path}: {error}. Check the folder and its permissions.") from error


class ToyDocuments:
    """Documents in the file. One call is one transaction, so either all of its changes are answered or none was made."""

    limits = LIMITS

    def __init__(self, file: ToyFile) -> None:
        """Use this file; opens nothing."""
        self._file = file

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read documents; see the port. Raises CommitFailed."""

        def work(connection: sqlite3.Connection) -> dict[str, Document]:
            found = {key: _document(connection, key) for key in keys if is_text(key)}
            return {key: document for key, document in found.items() if document is not None}

        return await self._file.read(work)

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write documents; see the port. Raises CommitRefused, CommitFailed, OutcomeUnknown."""
        check_limits(changes, self.limits)
        return await self._file.write(lambda connection: tuple(_change(connection, each) for each in changes))

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys in the order of their bytes; see the port. Raises CommitFailed."""
        statement = "SELECT key FROM documents WHERE key >= ? AND key > ? AND substr(key, 1, ?) = ? ORDER BY key LIMIT ?"
        first = prefix.encode()
        values = (first, after.encode(), len(first), first, limit)
        rows = await self._file.read(lambda connection: connection.execute(statement, values).fetchall())
        return tuple(key.decode() for (key,) in rows)

    async def check(self) -> tuple[str, ...]:
        """Check that the file is there; see the port. Raises SetupError."""
        return await in_thread(self._file.check)


class ToyArtifacts:
    """Artifacts in the file. Their content type and headers are not stored."""

    def __init__(self, file: ToyFile) -> None:
        """Use this file; opens nothing."""
        self._file = file

    async def create(self, artifact: Artifact) -> None:
        """Create an artifact; see the port.

        Raises CommitRefused for a name that has other data, CommitFailed, OutcomeUnknown.
        """

        def work(connection: sqlite3.Connection) -> bytes | None:
            statement = "INSERT INTO artifacts VALUES (?, ?) ON CONFLICT DO NOTHING"
            connection.execute(statement, (artifact.name.encode(), artifact.data))
            return _artifact(connection, artifact.name)

        if await self._file.write(work) != artifact.data:
            raise CommitRefused(f"the artifact {artifact.name!r} exists with other data")

    async def delete(self, name: str) -> None:
        """Delete an artifact; see the port. Raises CommitFailed, OutcomeUnknown."""
        await self._file.write(lambda connection: connection.execute("DELETE FROM artifacts WHERE name = ?", (name.encode(),)))

    async def read(self, name: str) -> bytes | None:
        """Return the data of an artifact; see the port. Raises CommitFailed."""
        return await self._file.read(lambda connection: _artifact(connection, name))

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """List names; see the port. Raises CommitFailed."""
        first = prefix.encode()
        statement, values = "SELECT name FROM artifacts WHERE substr(name, 1, ?) = ?", (len(first), first)
        rows = await self._file.read(lambda connection: connection.execute(statement, values).fetchall())
        return tuple(name.decode() for (name,) in rows)

    async def check(self) -> tuple[str, ...]:
        """Check that the file is there. Raises SetupError."""
        return await in_thread(self._file.check)


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock) -> AsyncIterator[ToyDocuments]:  # noqa: ARG001 - nothing here expires
    """Open the documents of toy:///path/of/file. Raises SetupError."""
    yield ToyDocuments(ToyFile(path_of(url)))


@asynccontextmanager
async def open_artifacts(url: str) -> AsyncIterator[ToyArtifacts]:
    """Open the artifacts of toy:///path/of/file. Raises SetupError."""
    yield ToyArtifacts(ToyFile(path_of(url)))


async def create(url: str) -> None:
    """Create the file of a URL where it is missing. Raises SetupError."""
    await in_thread(ToyFile(path_of(url)).create)


def path_of(url: str) -> Path:
    """Return the path that a URL names. Raises SetupError for a URL with anything else in it."""
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise SetupError("a toy URL has three slashes and a path, and no options. Write for example toy:///var/lib/shop.toy")
    return Path(unquote(parts.path))


def _document(connection: sqlite3.Connection, key: str) -> Document | None:
    row = connection.execute("SELECT body, version FROM documents WHERE key = ?", (key.encode(),)).fetchone()
    return None if row is None else Document(body=row[0], version=row[1])


def _change(connection: sqlite3.Connection, change: Change) -> Version | None:
    """Compare and set one document, inside a transaction."""
    known = _document(connection, change.key)
    if change.expected != ("" if known is None else known.version):
        return None
    key = change.key.encode()
    if change.body is None:
        connection.execute("DELETE FROM documents WHERE key = ?", (key,))
        return "" if known is not None else None
    version = uuid4().hex
    connection.execute("REPLACE INTO documents VALUES (?, ?, ?)", (key, version, change.body))
    return version


def _artifact(connection: sqlite3.Connection, name: str) -> bytes | None:
    row = connection.execute("SELECT data FROM artifacts WHERE name = ?", (name.encode(),)).fetchone()
    return None if row is None else bytes(row[0])
