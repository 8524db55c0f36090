"""The ring of a SQL database, for maintenance: buckets that are emptied at once, and claims without an instant that expire."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Connection, Select, func, select

from onceonly.model.errors import CommitFailed, RetryableError
from onceonly.model.ring import LATEST, Bucketing, instant_of, label
from onceonly.ports.environment import Clock
from onceonly.ports.ring import PENDING_COUNTED, Rotation, TimeBucket, TimeBucketState, bucket_as_found
from onceonly.sql.database import Database
from onceonly.sql.dialect import Purpose
from onceonly.sql.store.rings import EVERY_ENDPOINT, ClaimRing, find_rings, read_rings, tables_of
from onceonly.sql.store.statements import KEYS_AT_ONCE, delete_keys
from onceonly.sql.store.tables import tables
from onceonly.sql.store.time_buckets import RETENTION_MS, label_row, lowest_of, read_lowest, read_routes, start_of, time_in


class _Left(Exception):
    """A bucket is left as it was."""

    def __init__(self, why: Rotation) -> None:
        super().__init__(why.value)
        self.why = why


def ring_lock(database: Database) -> str:
    """Return the name of the lock under which one process at a time labels buckets."""
    return f"{database.schema or ''}.{database.prefix}ring"


class SqlRing:
    """The ring in which an endpoint claims now; who comes first decides that the first one keeps claims for `retention` ms.

    The process that leads also does what is due in all other rings of the database, in `remove_expired`. `clock` decides what
    is forgotten instead of the database's own, for tests that move time.
    """

    def __init__(
        self, database: Database, endpoint: str = EVERY_ENDPOINT, *, retention: int = RETENTION_MS, clock: Clock | None = None
    ) -> None:
        self._database = database
        self._tables = tables(database.prefix, database.schema)
        self._name = ring_lock(database)
        self._endpoint = endpoint
        self._retention = retention
        self._clock = clock
        self._known: ClaimRing | None = None

    async def bucketing(self) -> Bucketing:
        """Read how time is cut in the ring that `buckets` has looked at last.

        Raises SetupError when it was cut for a shorter retention, CommitFailed, OutcomeUnknown.
        """
        return (await self._ring()).bucketing

    async def _ring(self) -> ClaimRing:
        return await self._read_again() if self._known is None else self._known

    async def _read_again(self) -> ClaimRing:
        """Read which ring it is: an operator may have changed the retention."""
        routes = await read_routes(self._database, self._endpoint, self._retention, clock=self._clock)
        now = 0 if len(routes.all) == 1 else await self.now()
        self._known = routes.at(now).ring
        return self._known

    async def now(self) -> int:
        async with self._database.reading() as connection:
            return await connection.run_sync(time_in, self._clock)

    async def buckets(self) -> tuple[TimeBucket, ...]:
        """Look at all buckets, from one state; see the port."""
        ring = await self._read_again()
        async with self._database.reading() as connection:
            return await connection.run_sync(self._look, ring)

    async def estimate(self) -> int | None:
        """Add up what the statistics of the database say of all tables of claims; see `ports.measurements`."""
        rows_of = getattr(self._database.dialect.maintenance, "rows_of", None)
        if rows_of is None:
            return None
        rings = (await find_rings(self._database)).rings.values()
        claims = [self._tables.claims, *(tables_of(rings) or self._tables.buckets)]
        async with self._database.reading() as connection:
            return int(await connection.run_sync(rows_of, claims))

    async def rotate(self, number: int, *, by_rows: bool = False) -> Rotation:
        """Rotate one bucket in a database transaction of its own; see the port."""
        return await self._rotate_in(await self._ring(), number, by_rows=by_rows)

    async def _rotate_in(self, ring: ClaimRing, number: int, *, by_rows: bool = False) -> Rotation:
        try:
            async with self._database.reading() as connection:
                await connection.run_sync(self._check, ring, number)  # before it makes others wait
            async with self._database.writing() as connection:
                await connection.run_sync(self._rotate, ring, number, by_rows)
        except _Left as left:
            return left.why
        except CommitFailed as error:
            if self._database.is_locked(error):
                return Rotation.BUSY
            raise
        return Rotation.ROTATED

    async def remove_expired(self, limit: int = 1000) -> int:
        """Remove old claims without an instant, at most ten thousand at once; see the port.

        And rotate what is due in the other rings of the database: those of other endpoints, and those that are closed.
        """
        mine, rings = await self._ring(), (await find_rings(self._database)).rings
        removed = 0
        for ring in rings.values():
            if ring.number != mine.number:
                await self._rotate_all(ring)
            async with self._database.writing() as connection:
                removed += await connection.run_sync(self._expire, ring, min(limit, KEYS_AT_ONCE))
        return removed

    async def _rotate_all(self, ring: ClaimRing) -> None:
        async with self._database.reading() as connection:
            found = await connection.run_sync(self._look, ring)
        for bucket in found:
            if bucket.state in (TimeBucketState.OLD, TimeBucketState.UNLABELLED):
                await self._rotate_in(ring, bucket.number)

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

    def _look(self, connection: Connection, ring: ClaimRing) -> tuple[TimeBucket, ...]:
        """Look at all buckets in three statements: one for the clock, one for all labels, one for all records."""
        now, bucketing = time_in(connection, self._clock), ring.bucketing
        lowest = [lowest_of(bucket).scalar_subquery() for bucket in ring.buckets]
        held = [start_of(key) for key in connection.execute(select(*lowest)).one()]
        begun = [start for start in held if start is not None]
        counts = [self._counting(bucketing, start, PENDING_COUNTED).scalar_subquery() for start in begun]
        found = iter(connection.execute(select(*counts)).one() if counts else ())
        return tuple(
            bucket_as_found(number, start, pending=0 if start is None else next(found), bucketing=bucketing, now=now)
            for number, start in enumerate(held)
        )

    def _rotate(self, connection: Connection, ring: ClaimRing, number: int, by_rows: bool) -> None:  # noqa: FBT001 - run_sync
        # The order matters (protocols, section 7). 1 Alone: no other janitor. 2 Shut: transactions that claimed in it have
        # ended, and none claims. 3 Only now check: what was checked before may have changed while this waited. 4 Empty.
        # 5 The label. Crash before the commit: the old bucket is there. But MariaDB, unless it deletes by rows, commits without
        # the label before its TRUNCATE. Then claims find no label, their units are rolled back, and the next janitor goes on.
        maintenance, bucket = self._database.dialect.maintenance, ring.buckets[number]
        if not maintenance.try_alone(connection, self._name):
            raise _Left(Rotation.HELD)
        if not maintenance.shut(connection, bucket, by_rows=by_rows):
            raise _Left(Rotation.BUSY)
        wanted = self._check(connection, ring, number)
        if not maintenance.empty(connection, bucket, by_rows=by_rows):
            raise _Left(Rotation.BUSY)
        self._database.dialect.insert_all(connection, bucket, [label_row(wanted)])

    def _check(self, connection: Connection, ring: ClaimRing, number: int) -> int:
        """Return the slice that a bucket shall hold. Raises _Left.

        Whether the ring is closed is read here, in the transaction that writes the label.
        """
        bucket = ring.buckets[number]
        found = read_rings(connection, self._tables, self._database.prefix, self._database.schema).rings.get(ring.number)
        bucketing = ring.bucketing if found is None else found.bucketing
        now = time_in(connection, self._clock)
        lowest = read_lowest(connection, bucket)
        if lowest is None:
            return bucketing.to_hold(number, None, now)
        start = bucketing.start(instant_of(lowest))  # of the label, or where that was lost of the claims that are left
        wanted = bucketing.to_hold(number, start, now)
        if lowest == label(wanted):
            raise _Left(Rotation.CURRENT)
        if not bucketing.may_forget(start, now):
            raise _Left(Rotation.EARLY)
        if self._pending(connection, bucketing, start, 1):
            raise _Left(Rotation.PENDING)
        return wanted

    def _pending(self, connection: Connection, bucketing: Bucketing, start: int | None, limit: int) -> int:
        """Count the records of a slice, up to a limit."""
        return 0 if start is None else connection.scalar(self._counting(bucketing, start, limit)) or 0

    def _counting(self, bucketing: Bucketing, start: int, limit: int) -> Select[Any]:
        claim = self._tables.records.c.claim
        within = select(claim).where(claim >= label(start), claim < label(min(start + bucketing.width, LATEST))).limit(limit)
        return select(func.count()).select_from(within.subquery())

    def _expire(self, connection: Connection, ring: ClaimRing, limit: int) -> int:
        claims, records = self._tables.claims.c, self._tables.records.c
        horizon = time_in(connection, self._clock) - ring.bucketing.retention
        pending = select(records.key).where(records.key == claims.key).exists()
        old = (
            select(claims.key)
            .where(claims.ring == ring.number, claims.arrived_at < horizon, ~pending)
            .order_by(claims.arrived_at)
            .limit(limit)
        )
        keys = sorted(connection.scalars(old.with_for_update(skip_locked=True)))
        delete_keys(connection, self._database.dialect, keys, self._tables.claims)
        return len(keys)
