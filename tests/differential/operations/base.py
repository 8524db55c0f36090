"""What every operation is, and where it runs."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from tests.differential.tools import Tools

SQLITE, ASYNCPG, PSYCOPG, MARIADB = "sqlite", "postgresql+asyncpg", "postgresql+psycopg", "mariadb"
EVERYWHERE = frozenset({SQLITE, ASYNCPG, PSYCOPG, MARIADB})
POSTGRESQL = frozenset({ASYNCPG, PSYCOPG})
SERVERS = POSTGRESQL | {MARIADB}


def plain(value: Any) -> Any:
    """Make a value that can be compared: MariaDB sums integers to decimals."""
    return int(value) if isinstance(value, Decimal) else value


def fail(what: str) -> None:
    """Raise an error that the handler catches."""
    raise LookupError(what)


@dataclass(frozen=True)
class Operation:
    """One thing that a handler does."""

    needs: ClassVar[str] = "session"
    """`session`, `connection` (which a session has, too), `driver` (which both have), or `context`."""
    where: ClassVar[frozenset[str]] = EVERYWHERE
    own_transaction: ClassVar[bool] = False
    """Whether it does something that belongs to one database transaction or connection."""

    async def run(self, to: Tools) -> None:
        """Do it."""
        raise NotImplementedError

    def note(self, to: Tools, value: Any) -> None:
        """Note what was read."""
        to.read(type(self).__name__, plain(value))
