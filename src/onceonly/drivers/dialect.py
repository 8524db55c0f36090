"""What differs between SQL databases, on one screen. A new database is one file that implements this."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from sqlalchemy import Connection, LargeBinary, Table
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import TypeEngine

from onceonly.model.identity import CLAIM_KEY_BYTES

KEY: TypeEngine[bytes] = LargeBinary(CLAIM_KEY_BYTES)
"""The type of a claim key; a database with a better one for 16 bytes adds its variant here."""


class Said(Enum):
    """What a database said for sure when it raised an error. Nothing of the statement happened, but for NOTHING."""

    LOCKED = "another transaction is in the way"
    CONSTRAINT = "a constraint refused the change"
    STATEMENT = "this statement can never work here"
    UNABLE = "the database cannot do it at the moment"
    NOTHING = "nothing that can be relied on"


class Dialect(Protocol):
    """One database system. Its functions run inside SQLAlchemy's greenlet, so they take synchronous connections."""

    name: str
    embedded: bool
    """Whether the database is a file of this process, whose tables are made at start."""

    single_writer: bool
    """Whether one writing transaction at a time is all there can be."""

    def engine(self, url: URL, *, timeout: float) -> AsyncEngine:
        """Make an engine of this library's own. Raises SetupError, DriverMissing."""

    def adopt(self, engine: AsyncEngine) -> AsyncEngine:
        """Give a view of a user's engine on which `begin` works; shares its pool and changes nothing of it."""

    async def prepare(self, engine: AsyncEngine, *, durable: bool) -> None:
        """Bring the database into the state that the promise needs, once, before its first transaction.

        Raises SetupError when it is not durable and cannot be made so.
        """

    def begin(self, connection: Connection, *, writing: bool) -> None:
        """Begin a database transaction in the driver; a writing one takes what it needs to be sure of its writes."""

    def in_transaction(self, connection: Connection) -> bool:
        """Read the driver's own transaction state: True while the one that was begun is open and not aborted."""

    def hold(self, connection: Connection) -> None:
        """Have the database refuse to commit the open database transaction, whoever asks, until `let_go`.

        It can be rolled back, and has savepoints. Does nothing where the database has no way to refuse it.
        """

    def let_go(self, connection: Connection) -> None:
        """Undo `hold`; harmless without one."""

    def insert_absent(self, table: Table, key: str, returning: Sequence[str]) -> ReturningInsert[Any]:
        """Build the statement that inserts the rows whose `key` is not there yet, and returns columns of these only."""

    def said(self, error: DBAPIError) -> Said:
        """Classify a driver's error by allow-list."""
