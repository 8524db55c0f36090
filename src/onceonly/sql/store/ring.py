"""The ring of a SQL database, as upkeep sees it: slots that are emptied at once, and claims without an instant that expire."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import Connection, func, select

from onceonly.model.errors import CommitFailed, RetryableError
from onceonly.model.ring import Slicing, instant_of, label
from onceonly.ports.environment import Clock
from onceonly.ports.ring import PENDING_COUNTED, Rotation, Slot, slot_as_found
from onceonly.sql.database import Database
from onceonly.sql.dialect import Purpose
from onceonly.sql.store.portions import KEYS_AT_ONCE
from onceonly.sql.store.slicing import RETENTION_MS, label_row, read_held, read_lowest, read_slicing, time_in
from onceonly.sql.store.statements import delete_keys
from onceonly.sql.store.tables import tables


class _Left(Exception):
    """A slot is left as it was."""

    def __init__(self, why: Rotation) -> None:
        """Say why."""
        super().__init__(why.value)
        self.why = why


class SqlRing:
    """The ring that all endpoints of a database share; who comes first decides that it keeps claims for `retention` ms.

    `clock` decides what is forgotten instead of the database's own, for tests that move time.
    """

    def __init__(self, database: Database, *, retention: int = RETENTION_MS, clock: Clock | None = None) -> None:
        """Use the tables of this database."""
        self._database = database
        self._tables = tables(database.prefix, database.schema)
        self._name = f"{database.schema or ''}.{database.prefix}ring"
        self._retention = retention
        self._clock = clock
        self._slicing: Slicing | None = None

    async def slicing(self) -> Slicing:
        """Read how time is cut, once.

        Raises SetupError when it was cut for a shorter retention, CommitFailed, OutcomeUnknown.
        """
        if self._slicing is None:
            self._slicing = await read_slicing(self._database, self._retention, clock=self._clock)
        return self._slicing

    async def now(self) -> int:
        """Read the database's clock."""
        async with self._database.reading() as connection:
            return await connection.run_sync(time_in, self._clock)

    async def slots(self) -> tuple[Slot, ...]:
        """Look at all slots, from one state; see the port."""
        slicing = await self.slicing()
        async with self._database.reading() as connection:
            return await connection.run_sync(self._look, slicing)

    async def rotate(self, number: int, *, by_rows: bool = False) -> Rotation:
        """Rotate one slot in a database transaction of its own; see the port."""
        slicing = await self.slicing()
        try:
            async with self._database.reading() as connection:
                await connection.run_sync(self._check, number, slicing)  # before anybody is kept waiting
            async with self._database.writing() as connection:
                await connection.run_sync(self._rotate, number, slicing, by_rows)
        except _Left as left:
            return left.why
        except CommitFailed as error:
            if self._database.is_locked(error):
                return Rotation.BUSY
            raise
        return Rotation.ROTATED

    async def remove_expired(self, limit: int = 1000) -> int:
        """Remove old claims without an instant, at most ten thousand at once; see the port."""
        slicing = await self.slicing()
        async with self._database.writing() as connection:
            return await connection.run_sync(self._expire, slicing.retention, min(limit, KEYS_AT_ONCE))

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[bool]:
        """Hold a lock of the database on a connection of its own; see the port."""
        maintenance = self._database.dialect.maintenance
        if maintenance.leads_in_transaction:
            async with self._leading_in_transaction() as is_leader:
                yield is_leader
            return
        with self._database.translate():
            await self._database.settle()
            connection = await self._database.engine.connect()
        is_leader = False
        try:
            with self._database.translate():
                is_leader = await connection.run_sync(maintenance.lead, self._name)
            yield is_leader
        finally:
            try:
                if is_leader:
                    with self._database.translate():
                        await connection.run_sync(maintenance.follow, self._name)
            except BaseException as error:
                await connection.invalidate()  # its end gives the lock back
                if not isinstance(error, RetryableError):
                    raise
            finally:
                await connection.close()

    @asynccontextmanager
    async def _leading_in_transaction(self) -> AsyncIterator[bool]:
        with self._database.translate():
            transaction = await self._database.open(Purpose.WRITING)
        try:
            with self._database.translate():
                is_leader = await transaction.connection.run_sync(self._database.dialect.maintenance.lead, self._name)
            yield is_leader
        finally:
            transaction.drop()  # it wrote nothing
            await self._database.settle()  # the rollback gives the lock back

    def _look(self, connection: Connection, slicing: Slicing) -> tuple[Slot, ...]:
        now = time_in(connection, self._clock)
        held = [read_held(connection, slot) for slot in self._tables.slots]
        return tuple(
            slot_as_found(
                number, start, pending=self._pending(connection, slicing, start, PENDING_COUNTED), slicing=slicing, now=now
            )
            for number, start in enumerate(held)
        )

    def _rotate(self, connection: Connection, number: int, slicing: Slicing, by_rows: bool) -> None:  # noqa: FBT001 - run_sync
        maintenance, slot = self._database.dialect.maintenance, self._tables.slots[number]
        if not maintenance.try_alone(connection, self._name):
            raise _Left(Rotation.HELD)
        if not maintenance.shut(connection, slot, by_rows=by_rows):
            raise _Left(Rotation.BUSY)
        wanted = self._check(connection, number, slicing)
        if not maintenance.empty(connection, slot, by_rows=by_rows):
            raise _Left(Rotation.BUSY)
        self._database.dialect.insert_all(connection, slot, [label_row(wanted)])

    def _check(self, connection: Connection, number: int, slicing: Slicing) -> int:
        """Give the slice that a slot shall hold. Raises _Left."""
        slot = self._tables.slots[number]
        now = time_in(connection, self._clock)
        wanted = slicing.wanted(number, now)
        lowest = read_lowest(connection, slot)
        if lowest is None:
            return wanted
        start = slicing.start(instant_of(lowest))  # of the label, or where that was lost of the claims that are left
        if lowest == label(wanted):
            raise _Left(Rotation.CURRENT)
        if not slicing.may_forget(start, now):
            raise _Left(Rotation.EARLY)
        if self._pending(connection, slicing, start, 1):
            raise _Left(Rotation.PENDING)
        return wanted

    def _pending(self, connection: Connection, slicing: Slicing, start: int | None, limit: int) -> int:
        """Count the records of a slice, up to a limit."""
        if start is None:
            return 0
        claim = self._tables.records.c.claim
        within = select(claim).where(claim >= label(start), claim < label(start + slicing.width)).limit(limit)
        return connection.scalar(select(func.count()).select_from(within.subquery())) or 0

    def _expire(self, connection: Connection, retention: int, limit: int) -> int:
        claims, records = self._tables.claims.c, self._tables.records.c
        horizon = time_in(connection, self._clock) - retention
        pending = select(records.key).where(records.key == claims.key).exists()
        old = select(claims.key).where(claims.arrived_at < horizon, ~pending).order_by(claims.arrived_at).limit(limit)
        keys = sorted(connection.scalars(old.with_for_update(skip_locked=True)))
        delete_keys(connection, self._database.dialect, keys, self._tables.claims)
        return len(keys)
