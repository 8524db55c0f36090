"""The file of a SQLite database: whether a path still leads to the file that a connection has open.

An open file that is deleted or replaced takes commits like any other, and what they wrote is gone with it. So after each
COMMIT, before it is relied on, device and inode of the path are compared with what was opened. The write-ahead log and its
index are files too.
"""

import logging
import os
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from onceonly.formats.log_events import EventLogger

_log = EventLogger(logging.getLogger("onceonly.sqlite"))
_READONLY_DBMOVED = 1032  # https://www.sqlite.org/rescode.html#readonly_dbmoved: what SQLite calls it, where it looks
_FILE_SUFFIXES = ("", "-wal", "-shm")
_ANY_TABLE = "SELECT 1 FROM sqlite_master LIMIT 1"

Place = tuple[int, int] | None
"""Device and inode of a file; None where there is none."""


class FileReplaced(sqlite3.OperationalError):
    """The database file was deleted or replaced."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.sqlite_errorcode = _READONLY_DBMOVED
        self.sqlite_errorname = "SQLITE_READONLY_DBMOVED"


Files = list[Place]
"""The files that a connection opened. Those next to the database file are added once they are used."""


class OpenFile(NamedTuple):
    """A connection and its files."""

    connection: sqlite3.Connection
    files: Files


class DatabaseFile:
    """The file of one engine. All of it runs in threads of connections."""

    def __init__(self, path: str | Path) -> None:
        self._path = os.path.abspath(path)  # noqa: PTH100 - a resolved link would hide that it leads elsewhere now
        self._names = [self._path + suffix for suffix in _FILE_SUFFIXES]
        self._has_tables = False
        self._is_away = False

    def open(self, **options: Any) -> OpenFile:
        """Connect. Raises Moved where the file had tables before, and is now gone or has none."""
        before = place_of(self._path)
        if not self._has_tables:
            connection = sqlite3.connect(self._path, **options)
        elif before is None:
            raise self._moved(f"the database file {self._path} was deleted: restore it, or restart to create an empty one")
        else:
            connection = sqlite3.connect(f"file:{quote(self._path)}?mode=rw", **options, uri=True)
        try:
            self._look_for_tables(connection)  # this opens the files next to the database as well
            opened = OpenFile(connection, self.found())
            if before is not None:
                self._compare(opened.files, [before])
        except BaseException:
            connection.close()
            raise
        self._is_away = False
        return opened

    def commit(self, opened: OpenFile) -> None:
        """Commit what a connection has begun. Raises Moved where it went into a file that is not there any more."""
        opened.connection.commit()
        self.check(opened.files)
        if not self._has_tables:
            self._look_for_tables(opened.connection)

    def found(self) -> Files:
        """Return the files as they are, for a connection that was just used first."""
        return [place_of(name) for name in self._names]

    def check(self, files: Files) -> None:
        """Compare a connection's files with what is there, and note those that are seen first. Raises Moved."""
        found = self.found()
        self._compare(files, found)
        files[:] = found

    def _look_for_tables(self, connection: sqlite3.Connection) -> None:
        if connection.execute(_ANY_TABLE).fetchone() is not None:
            self._has_tables = True
        elif self._has_tables:
            raise self._moved(
                f"the database file {self._path} was replaced by an empty one: restore the right file, or restart"
            )

    def _compare(self, files: Files, found: Files) -> None:
        for name, before, now in zip(self._names, files, found, strict=False):
            if before is not None and before != now:
                what = "deleted" if now is None else "replaced"
                raise self._moved(f"the file {name} was {what} while in use: further commits to it are lost")

    def _moved(self, words: str) -> FileReplaced:
        if not self._is_away:
            self._is_away = True
            _log.error("database file deleted or replaced", extra={"file": self._path, "reason": words})
        return FileReplaced(words)


def place_of(path: str) -> Place:
    """Return where a path leads. Takes some microseconds."""
    try:
        found = os.stat(path)  # noqa: PTH116 - called for each commit
    except OSError:
        return None
    return found.st_dev, found.st_ino
