"""The rings of a database: which endpoint claims in which one, from which instant on.

Endpoints with one retention share a ring. One that gets another retention gets another ring, for the messages whose instant is
not in a slice that its ring before holds. A ring that is left is closed by the end of its last slice: none of its buckets ever
gets the label of a later slice of its own. So a process that has not read the change finds no label for such a message, rolls
back, and reads the rings again. No clock and no time-out is part of that.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, Table, select

from onceonly.model.ring import Bucketing, route_at
from onceonly.sql.database import Database
from onceonly.sql.store.tables import THE_RING, Tables, buckets_of, tables

EVERY_ENDPOINT = ""
"""The name in the rows for endpoints without rows of their own."""


class ClaimRing(NamedTuple):
    """One ring: its number, how its time is cut, and its buckets."""

    number: int
    bucketing: Bucketing
    buckets: tuple[Table, ...]

    def bucket(self, start: int) -> Table:
        return self.buckets[self.bucketing.bucket(start)]


class Route(NamedTuple):
    """The ring for messages from an instant on, up to that of the next route."""

    since: int
    ring: ClaimRing


class RingRoutes(NamedTuple):
    """The rings of one endpoint, in the order of their instants. There is at least one, and the first is for all time."""

    all: tuple[Route, ...]

    @property
    def latest(self) -> Route:
        return self.all[-1]

    def ring(self, instant: int) -> ClaimRing:
        """Return the ring for a message of this instant."""
        return route_at(self.all, instant).ring

    def at(self, now: int) -> Route:
        """Return what holds for messages that are sent now."""
        return route_at(self.all, now)


class StoredRings(NamedTuple):
    """All rings of a database, by their numbers, and the routes of all endpoints."""

    rings: Mapping[int, ClaimRing]
    routes: Mapping[str, tuple[Route, ...]]

    def of(self, endpoint: str) -> RingRoutes | None:
        """Return the routes of an endpoint; None where its first ring is not decided yet."""
        own = self.routes.get(endpoint, ())
        first = self.rings.get(THE_RING)
        shared = (*([Route(0, first)] if first is not None else []), *self.routes.get(EVERY_ENDPOINT, ()))
        before = tuple(route for route in shared if not own or route.since < own[0].since)
        return RingRoutes((*before, *own)) if before or own else None


def read_rings(connection: Connection, own: Tables, prefix: str, schema: str | None) -> StoredRings:
    """Read all rings and routes, those that no process wrote so excepted: SQLite stores values of any type."""
    ring, retention = own.ring.c, own.retention.c
    rows = connection.execute(select(ring.number, ring.width, ring.keep, ring.closes).order_by(ring.number)).all()
    rings = {
        row.number: ClaimRing(row.number, found, buckets_of(prefix, schema, row.number))
        for row in rows
        if (found := _bucketing(row.width, row.keep, row.closes)) is not None
    }
    routes: dict[str, tuple[Route, ...]] = {}
    query = select(retention.endpoint, retention.since, retention.ring).order_by(retention.endpoint, retention.since)
    for endpoint, since, number in connection.execute(query):
        if number in rings:
            routes[endpoint] = (*routes.get(endpoint, ()), Route(since, rings[number]))
    return StoredRings(rings, routes)


async def find_rings(database: Database) -> StoredRings:
    """Read all rings and routes. Raises CommitFailed, OutcomeUnknown."""
    own = tables(database.prefix, database.schema)
    async with database.reading() as connection:
        return await connection.run_sync(read_rings, own, database.prefix, database.schema)


def tables_of(rings: Iterable[ClaimRing]) -> Sequence[Table]:
    """Return all buckets of these rings."""
    return [bucket for ring in rings for bucket in ring.buckets]


def _bucketing(width: object, keep: object, closes: object) -> Bucketing | None:
    if not isinstance(width, int) or width <= 0:
        return None
    return Bucketing(width, keep=keep if isinstance(keep, int) else 0, closes=closes if isinstance(closes, int) else 0)
