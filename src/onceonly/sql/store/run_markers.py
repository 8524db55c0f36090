"""Run markers in a SQL database: a row for each run that has its process to itself, until it ends. Other runs write nothing."""

from collections.abc import Sequence
from uuid import uuid4

from sqlalchemy import Connection, delete, select, update

from onceonly.model.identity import Identity, claim_key
from onceonly.ports.run_markers import BEGUN, FIRST_WAIT_SECONDS, NO_DEATHS, DeadRuns, StartResult, waiting
from onceonly.sql.database import Database
from onceonly.sql.database_clock import database_now
from onceonly.sql.store.tables import tables

KEPT_MS = 7 * 24 * 3600 * 1000
"""Milliseconds after which a row is deleted whose message never came again."""


class SqlRunMarkers:
    """The runs of one endpoint. By the database's clock: one that has not ended after `lasts` seconds counts as dead."""

    def __init__(self, database: Database, endpoint: str, *, lasts: float) -> None:
        self._database = database
        self._endpoint = endpoint
        self._lasts = int(lasts * 1000)
        self._table = tables(database.prefix, database.schema).starts
        self._tokens: dict[bytes, bytes] = {}

    async def find_dead(self, identities: Sequence[Identity]) -> DeadRuns:
        """Return nothing: a database sees no process die."""
        return NO_DEATHS

    async def begin(self, identity: Identity, attempts: int) -> StartResult:
        key = claim_key(self._endpoint, identity)
        token = self._tokens[key] = uuid4().bytes
        async with self._database.writing() as connection:
            return await connection.run_sync(self._begin, key, attempts, token)

    async def finish(self, identity: Identity) -> None:
        """Remove the row, unless another run has replaced it. Raises CommitFailed, OutcomeUnknown."""
        key, table = claim_key(self._endpoint, identity), self._table
        token = self._tokens.get(key)
        if token is not None:
            async with self._database.writing() as connection:
                await connection.execute(delete(table).where(table.c.key == key, table.c.token == token))
            self._tokens.pop(key, None)

    async def forget(self, identity: Identity, attempts: int) -> None:
        key, table = claim_key(self._endpoint, identity), self._table
        async with self._database.writing() as connection:
            await connection.execute(delete(table).where(table.c.key == key, table.c.attempts <= attempts))

    def _begin(self, connection: Connection, key: bytes, attempts: int, token: bytes) -> StartResult:
        table, now = self._table, database_now(connection)
        row = {"key": key, "attempts": attempts, "token": token, "until": now + self._lasts}
        if self._database.dialect.insert_absent(connection, table, [row], key=["key"]):
            return BEGUN
        mine = table.c.key == key
        found = connection.execute(select(table.c.attempts, table.c.until).where(mine).with_for_update()).one_or_none()
        if found is None:
            return StartResult(wait=FIRST_WAIT_SECONDS)  # it ended at this very moment
        if found.attempts < attempts:  # that run is known to be over: its death, or its failure, was counted
            connection.execute(update(table).where(mine).values(row))
            return BEGUN
        if found.until > now:
            return waiting((found.until - now) / 1000, self._lasts / 1000)
        connection.execute(delete(table).where(mine))
        return StartResult(died=found.attempts)


class AbandonedRunMarkers:
    """The runs of all endpoints of a database whose process died, and whose message never came again."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = tables(database.prefix, database.schema).starts

    async def remove_expired(self, limit: int = 1000) -> int:
        """Remove the oldest of those that ended more than 7 days ago, by the database's clock; see the port.

        Rows that another process uses are skipped.
        """
        starts = self._table.c

        def remove(connection: Connection) -> int:
            old = select(starts.key).where(starts.until < database_now(connection) - KEPT_MS).order_by(starts.key).limit(limit)
            found = connection.scalars(old.with_for_update(skip_locked=True)).all()
            if found:
                connection.execute(delete(self._table).where(starts.key.in_(found)))
            return len(found)

        async with self._database.writing() as connection:
            return await connection.run_sync(remove)
