"""What belongs to one database transaction or connection."""

from dataclasses import dataclass

from sqlalchemy import select, text, update

from tests.differential.models import Account
from tests.differential.operations.base import (
    MARIADB,
    POSTGRESQL,
    SQLITE,
    Operation,
)
from tests.differential.tools import Tools


@dataclass(frozen=True)
class SetLocal(Operation):
    """SET LOCAL of a setting, such as the tenant of row-level security."""

    needs = "connection"
    where = POSTGRESQL
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Set the tenant to this message."""
        await (await to.connection()).execute(text(f"SET LOCAL diff.tenant = 'm{to.message}'"))


@dataclass(frozen=True)
class SetConfig(Operation):
    """`set_config(..., true)`, in a SELECT."""

    needs = "connection"
    where = POSTGRESQL
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Set the tenant to this message."""
        query = text("SELECT set_config('diff.tenant', :tenant, true)")
        self.note(to, (await (await to.connection()).execute(query, {"tenant": f"m{to.message}"})).scalar())


@dataclass(frozen=True)
class ReadSettings(Operation):
    """The settings that another message may have changed."""

    needs = "connection"
    where = POSTGRESQL

    async def run(self, to: Tools) -> None:
        """Read them."""
        query = text(
            "SELECT NULLIF(current_setting('diff.tenant', true), ''), current_user, current_setting('search_path'),"
            " current_setting('session_replication_role'), current_setting('statement_timeout'),"
            " current_setting('constraint_exclusion')"
        )
        self.note(to, tuple((await (await to.connection()).execute(query)).one()))


@dataclass(frozen=True)
class SetSearchPath(Operation):
    """SET LOCAL search_path."""

    needs = "connection"
    where = POSTGRESQL
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Have names found in another schema, too."""
        await (await to.connection()).execute(text("SET LOCAL search_path = public, pg_catalog"))


@dataclass(frozen=True)
class SetReplicationRole(Operation):
    """SET LOCAL session_replication_role, which turns triggers and foreign keys off."""

    needs = "connection"
    where = POSTGRESQL
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Turn them off."""
        await (await to.connection()).execute(text("SET LOCAL session_replication_role = replica"))


@dataclass(frozen=True)
class SetByDriver(Operation):
    """SET LOCAL on the driver's own connection."""

    needs = "driver"
    where = POSTGRESQL
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Set the tenant to this message."""
        await to.ask_driver(f"SET LOCAL diff.tenant = 'd{to.message}'")


@dataclass(frozen=True)
class TemporaryTable(Operation):
    """A temporary table with a name that every message uses."""

    needs = "connection"
    where = POSTGRESQL
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Create it and write to it. PostgreSQL drops it at COMMIT."""
        connection = await to.connection()
        await connection.execute(text("CREATE TEMPORARY TABLE IF NOT EXISTS diff_temporary (n integer) ON COMMIT DROP"))
        await connection.execute(text("INSERT INTO diff_temporary VALUES (1)"))
        self.note(to, (await connection.execute(text("SELECT COUNT(*) FROM diff_temporary"))).scalar())


@dataclass(frozen=True)
class DroppedTemporaryTable(Operation):
    """A temporary table that the handler drops itself."""

    needs = "connection"
    where = frozenset({MARIADB, SQLITE})
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Create it, write to it, and drop it."""
        connection = await to.connection()
        await connection.execute(text("CREATE TEMPORARY TABLE diff_temporary (n integer)"))
        await connection.execute(text("INSERT INTO diff_temporary VALUES (1)"))
        self.note(to, (await connection.execute(text("SELECT COUNT(*) FROM diff_temporary"))).scalar())
        drop = "DROP TEMPORARY TABLE diff_temporary" if to.database == MARIADB else "DROP TABLE temp.diff_temporary"
        await connection.execute(text(drop))


@dataclass(frozen=True)
class Cursor(Operation):
    """DECLARE, and FETCH of what it found, with a name that every message uses."""

    needs = "connection"
    where = POSTGRESQL
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Open a cursor, and leave it open."""
        connection = await to.connection()
        query = text("SELECT COUNT(*) FROM pg_cursors WHERE name = 'diff_cursor'")
        if not (await connection.execute(query)).scalar():
            declare = "DECLARE diff_cursor CURSOR FOR SELECT balance FROM diff_accounts ORDER BY id"
            await connection.execute(text(declare))
            self.note(to, "declared")
        self.note(to, [tuple(row) for row in await connection.execute(text("FETCH 1 FROM diff_cursor"))])


@dataclass(frozen=True)
class HandMadeSavepoint(Operation):
    """SAVEPOINT and ROLLBACK TO SAVEPOINT as SQL text."""

    needs = "connection"
    own_transaction = True
    account: str
    undo: bool = True

    async def run(self, to: Tools) -> None:
        """Change a balance, and perhaps undo that; the savepoint stays."""
        connection = await to.connection()
        await connection.execute(text("SAVEPOINT mine"))
        await connection.execute(update(Account).where(Account.id == self.account).values(balance=Account.balance + 100))
        if self.undo:
            await connection.execute(text("ROLLBACK TO SAVEPOINT mine"))
        self.note(to, await connection.scalar(select(Account.balance).where(Account.id == self.account)))


@dataclass(frozen=True)
class Prepared(Operation):
    """PREPARE, EXECUTE and DEALLOCATE."""

    needs = "connection"
    where = POSTGRESQL
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Use a prepared statement."""
        connection = await to.connection()
        await connection.execute(text("PREPARE diff_statement AS SELECT COUNT(*) FROM diff_accounts"))
        self.note(to, (await connection.execute(text("EXECUTE diff_statement"))).scalar())
        await connection.execute(text("DEALLOCATE diff_statement"))


@dataclass(frozen=True)
class AdvisoryLock(Operation):
    """A lock of the session, taken and released."""

    needs = "connection"
    where = POSTGRESQL
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Take it and release it."""
        connection = await to.connection()
        await connection.execute(text("SELECT pg_advisory_lock(4711)"))
        self.note(to, (await connection.execute(text("SELECT pg_advisory_unlock(4711)"))).scalar())


@dataclass(frozen=True)
class UserVariable(Operation):
    """A variable of the connection, used and cleared."""

    needs = "connection"
    where = frozenset({MARIADB})
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Number rows with it."""
        connection = await to.connection()
        self.note(to, (await connection.execute(text("SELECT @diff"))).scalar())
        await connection.execute(text(f"SET @diff = {to.message}"))
        self.note(to, (await connection.execute(text("SELECT CAST(@diff AS INTEGER)"))).scalar())
        await connection.execute(text("SET @diff = NULL"))


@dataclass(frozen=True)
class NamedLock(Operation):
    """GET_LOCK and RELEASE_LOCK."""

    needs = "connection"
    where = frozenset({MARIADB})
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Take a lock and release it."""
        connection = await to.connection()
        self.note(to, (await connection.execute(text("SELECT GET_LOCK('diff', 1)"))).scalar())
        self.note(to, (await connection.execute(text("SELECT RELEASE_LOCK('diff')"))).scalar())


@dataclass(frozen=True)
class Pragma(Operation):
    """A PRAGMA that SQLite resets at COMMIT."""

    needs = "connection"
    where = frozenset({SQLITE})
    own_transaction = True

    async def run(self, to: Tools) -> None:
        """Have foreign keys checked at COMMIT."""
        connection = await to.connection()
        self.note(to, (await connection.execute(text("PRAGMA defer_foreign_keys"))).scalar())
        await connection.execute(text("PRAGMA defer_foreign_keys = ON"))
