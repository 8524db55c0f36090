"""Changes the retention of one endpoint: another ring for its messages from the next free slice on, and the ring before closed.

Nothing that is claimed moves. Claims in the ring before are kept as long as the new retention says, but not shorter than the
other endpoints need that share it. Those get a ring of their own too, with the retention that they had, because a ring is
closed for all.

The order matters. 1 The tables of the new rings are made; nothing refers to them. 2 In one database transaction, under the lock
that labels are written under: empty buckets are labelled, and the end of the last slice that any bucket of the ring before
holds is read. The ring is closed there, and the routes are stored. Crash before 2: nothing happened, and the tables are used by
the next change.
"""

import asyncio
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, update

from onceonly.model.changed_retention import KnownRetention
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.model.ring import WIDEST, Bucketing, bucketing_for, instant_of
from onceonly.ports.environment import Clock
from onceonly.sql.database import Database
from onceonly.sql.store.ring import ring_lock
from onceonly.sql.store.rings import EVERY_ENDPOINT, ClaimRing, RingRoutes, StoredRings, find_rings, read_rings
from onceonly.sql.store.tables import THE_RING, buckets_of, tables
from onceonly.sql.store.time_buckets import label_row, read_lowest, read_routes, time_in

MOST_RINGS = 99
_LOCK_TRIES, _LOCK_SECONDS = 100, 0.1


class _Busy(Exception):
    """Another process labels buckets at this moment."""


class _NewRings(NamedTuple):
    """The rings to make: that of the endpoint, and that of those who share its ring so far."""

    own: int
    others: int | None


class SqlRetention:
    """The retention of one endpoint in a SQL database. `clock` stands for the database's own, for tests that move time."""

    def __init__(self, database: Database, endpoint: str, *, clock: Clock | None = None) -> None:
        self._database = database
        self._endpoint = endpoint
        self._tables = tables(database.prefix, database.schema)
        self._clock = clock

    async def find(self) -> KnownRetention | None:
        """Return the retention, None where no endpoint has used the tables yet. Raises CommitFailed, OutcomeUnknown."""
        routes = (await find_rings(self._database)).of(self._endpoint)
        if routes is None:
            return None
        async with self._database.reading() as connection:
            return _known(routes, await connection.run_sync(time_in, self._clock))

    async def change(self, kept: int) -> KnownRetention:
        """Keep claims for `kept` milliseconds from now on; returns from which instant on. Harmless when it is so already.

        The database user needs the right to create tables. Raises SetupError, also where claims
        are kept forever so far; CommitFailed, OutcomeUnknown.
        """
        found = await find_rings(self._database)
        routes = found.of(self._endpoint)
        if routes is None:
            routes = await read_routes(self._database, self._endpoint, kept, clock=self._clock)
        elif routes.latest.ring.bucketing.width != bucketing_for(kept).width:
            self._refuse_end_of_forever(routes)
            await self._move(_plan(found, routes), kept)
        known = await self.find()
        assert known is not None  # noqa: S101 - it was decided above
        return known

    def _refuse_end_of_forever(self, routes: RingRoutes) -> None:
        if routes.latest.ring.bucketing.width >= WIDEST:  # its last slice ends after all time
            raise SetupError(
                f"claims of endpoint {self._endpoint!r} are kept forever: the tables of their time buckets are for all time, "
                "so they cannot be emptied by a shorter retention. Give the endpoint other tables with ?prefix= in the URL of "
                "its store, once copies of its messages cannot come any more"
            )

    async def _move(self, plan: _NewRings, kept: int) -> None:
        if max(plan.own, plan.others or 0) > MOST_RINGS:
            raise SetupError(
                f"the retentions of this database were changed too often: it has {MOST_RINGS} rings of time buckets. Give the "
                "endpoint separate tables with ?prefix= in the URL of its store"
            )
        async with self._database.writing() as connection:
            await connection.run_sync(self._make, plan)
        for _ in range(_LOCK_TRIES):
            try:
                async with self._database.writing() as connection:
                    await connection.run_sync(self._store, plan, kept)
            except _Busy:
                await asyncio.sleep(_LOCK_SECONDS)
            else:
                return
        raise CommitFailed("another process is rotating time buckets: try again")

    def _make(self, connection: Connection, plan: _NewRings) -> None:
        """Make the buckets of the new rings, unless a process did that which stopped before it used them."""
        self._database.dialect.lock_schema(connection, self._tables.ring.name)
        for number in (plan.own, plan.others):
            if number is not None:
                buckets_of(self._database.prefix, self._database.schema, number)[0].metadata.create_all(connection)

    def _store(self, connection: Connection, plan: _NewRings, kept: int) -> None:
        if not self._database.dialect.maintenance.try_alone(connection, ring_lock(self._database)):
            raise _Busy
        found = read_rings(connection, self._tables, self._database.prefix, self._database.schema)
        routes = found.of(self._endpoint)
        if routes is None or _plan(found, routes) != plan:
            raise CommitFailed("another process has changed a retention of this database meanwhile: try again")
        left, now = routes.latest.ring, time_in(connection, self._clock)
        before = left.bucketing
        keep = kept if plan.others is None else max(kept, before.retention)
        closed = before.closed(self._labelled(connection, left, now), routes.latest.since, now, keep)
        since, ring = closed.closes, self._tables.ring
        connection.execute(update(ring).where(ring.c.number == left.number), {"closes": since, "keep": keep})
        for earlier in {route.ring.number: route.ring for route in routes.all[:-1]}.values():
            if earlier.bucketing.kept_for(kept) != earlier.bucketing:
                self._labelled(connection, earlier, now)
                connection.execute(update(ring).where(ring.c.number == earlier.number), {"keep": kept})
        self._open(connection, plan.own, bucketing_for(kept), now)
        self._route(connection, self._endpoint, since, plan.own)
        if plan.others is not None:
            self._open(connection, plan.others, Bucketing(before.width), now)
            self._route(connection, EVERY_ENDPOINT, since, plan.others)

    def _labelled(self, connection: Connection, ring: ClaimRing, now: int) -> list[int]:
        """Return where the slice of each bucket begins. One that a janitor emptied, and did not label, gets its label first.

        What it held was forgotten by what held until now. By a longer retention it could get the label of the same slice again.
        """
        starts = []
        for number, bucket in enumerate(ring.buckets):
            lowest = read_lowest(connection, bucket)
            if lowest is None:
                start = ring.bucketing.to_hold(number, None, now)
                self._database.dialect.insert_all(connection, bucket, [label_row(start)])
            else:
                start = ring.bucketing.start(instant_of(lowest))
            starts.append(start)
        return starts

    def _open(self, connection: Connection, number: int, bucketing: Bucketing, now: int) -> None:
        connection.execute(insert(self._tables.ring), {"number": number, "width": bucketing.width, "keep": 0, "closes": 0})
        for index, bucket in enumerate(buckets_of(self._database.prefix, self._database.schema, number)):
            connection.execute(delete(bucket))  # what an earlier ring of this number left, where rows were restored
            self._database.dialect.insert_all(connection, bucket, [label_row(bucketing.wanted(index, now))])

    def _route(self, connection: Connection, endpoint: str, since: int, ring: int) -> None:
        connection.execute(insert(self._tables.retention), {"endpoint": endpoint, "since": since, "ring": ring})


def _plan(found: StoredRings, routes: RingRoutes) -> _NewRings:
    """Return the numbers of the rings to make. A number is never used twice: a late process may know the one before."""
    left = routes.latest.ring.number
    first = max(found.rings) + 1
    shared = found.routes.get(EVERY_ENDPOINT, ())
    is_shared = left == (shared[-1].ring.number if shared else THE_RING)
    return _NewRings(first, first + 1 if is_shared else None)


def _known(routes: RingRoutes, now: int) -> KnownRetention:
    """Return what holds. In a ring that is closed it is what its last slices are kept for, so a longer one holds at once.

    They may be kept for longer for the sake of another endpoint only. That is not what this one was promised.
    """
    ring, latest = routes.at(now).ring.bucketing, routes.latest
    coming, promised = latest.ring.bucketing.retention, ring._replace(keep=0).retention
    if coming in (promised, ring.retention):
        return KnownRetention(kept=coming)
    return KnownRetention(kept=ring.retention, next=coming, since=latest.since)
