"""The register rows of a SQL store: a unit's own commit deletes its rows in the same write (protocols, section 6).

Rows are opened before their unit begins, each call in a short database transaction of its own: where there is one writer at a
time it does not wait for its own unit.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, select, update

from onceonly.model.artifact import Reservation
from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity, claim_key
from onceonly.sql.database import Database
from onceonly.sql.store.statements import StoreScope, chunks
from onceonly.sql.store.tables import tables


def spend(connection: Connection, scope: StoreScope, attempts: Sequence[str]) -> None:
    """Delete the rows of these attempts in their unit's commit. Raises ConflictError when one is cancelled or gone."""
    for some in chunks(sorted(attempts)):
        spent = scope.database.dialect.remove(
            connection, [scope.tables.register], some, key="attempt", only={"cancelled": False}
        )
        if spent < len(some):
            raise ConflictError("an attempt to handle a message was cancelled, and its artifacts were deleted")


class SqlRegister:
    """The register of one endpoint, in the database of its store."""

    def __init__(self, database: Database, endpoint: str) -> None:
        self._database = database
        self._endpoint = endpoint
        self._tables = tables(database.prefix, database.schema)

    async def open(self, rows: Sequence[Reservation]) -> None:
        """Insert rows in one statement; see the port. An attempt whose row is there already is a ConflictError."""
        values = [self._values(row) for row in rows]

        def insert(connection: Connection) -> None:
            for some in chunks(values):
                dialect, table = self._database.dialect, self._tables.register
                if len(dialect.insert_absent(connection, table, some, key=["attempt"])) < len(some):
                    raise ConflictError("this attempt id is already registered: use a new id for each attempt")

        if values:
            async with self._database.autocommitting() as connection:
                await connection.run_sync(insert)

    async def cancel(self, row: Reservation) -> bool:
        """Mark a row, after waiting for a commit that takes it away; see the port."""
        register = self._tables.register
        statement = update(register).where(register.c.attempt == row.attempt).values(cancelled=True)
        async with self._database.autocommitting() as connection:
            return (await connection.execute(statement)).rowcount > 0

    async def remove(self, row: Reservation) -> None:
        cancelled = {"cancelled": True}

        def delete(connection: Connection) -> None:
            self._database.dialect.remove(connection, [self._tables.register], [row.attempt], key="attempt", only=cancelled)

        async with self._database.autocommitting() as connection:
            await connection.run_sync(delete)

    async def rows(self, identities: Sequence[Identity], unit: str = "") -> tuple[Reservation, ...]:
        register = self._tables.register.c
        query = self._query().where(self._database.dialect.among(register.key, "keys"), register.unit == unit)
        keys = [claim_key(self._endpoint, identity) for identity in identities]
        return tuple([row for some in chunks(keys) for row in await self._read(query, {"keys": some})])

    async def old(self, older_than: int, limit: int) -> tuple[Reservation, ...]:
        register = self._tables.register.c
        query = self._query().where(and_(register.endpoint == self._endpoint, register.opened_at < older_than))
        return await self._read(query.order_by(register.opened_at, register.attempt).limit(limit), {})

    def _query(self) -> Select[Any]:
        register = self._tables.register.c
        return select(register.attempt, register.source, register.id, register.unit, register.opened_at, register.cancelled)

    async def _read(self, query: Select[Any], parameters: dict[str, Any]) -> tuple[Reservation, ...]:
        """Read, in one round trip where single statements need no transaction around them."""
        is_plain = self._database.dialect.autocommits
        async with self._database.autocommitting() if is_plain else self._database.reading() as connection:
            found = await connection.execute(query, parameters)
            return tuple(
                Reservation(
                    identity=Identity(row.source, row.id),
                    unit=row.unit,
                    attempt=row.attempt,
                    at=row.opened_at,
                    cancelled=row.cancelled,
                )
                for row in found
            )

    def _values(self, row: Reservation) -> dict[str, Any]:
        return {
            "attempt": row.attempt,
            "key": claim_key(self._endpoint, row.identity),
            "endpoint": self._endpoint,
            "source": row.identity.source,
            "id": row.identity.id,
            "unit": row.unit,
            "opened_at": row.at or self._database.clock.now(),
            "cancelled": row.cancelled,
        }
