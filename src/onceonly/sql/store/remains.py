"""What is left in the tables of a store: how much, and until when it is needed. For `onceonly leave`, which changes nothing."""

from sqlalchemy import Connection, FromClause, Select, func, select

from onceonly.model.action import ActionState
from onceonly.ports.environment import Clock
from onceonly.ports.measurements import StoredRemains
from onceonly.sql.database import Database
from onceonly.sql.store.rings import StoredRings, find_rings
from onceonly.sql.store.tables import Tables, tables
from onceonly.sql.store.time_buckets import NO_BODY, read_held, time_in


async def read_remains(database: Database, endpoint: str, limit: int, *, clock: Clock | None = None) -> StoredRemains:
    """Count up to `limit` rows of each table. Claims, keys, tokens and entities are those of all endpoints of the tables.

    Raises CommitFailed, OutcomeUnknown.
    """
    own = tables(database.prefix, database.schema)
    rings = await find_rings(database)
    async with database.reading() as connection:
        return await connection.run_sync(_read, own, endpoint, rings, limit, clock)


def _read(  # noqa: PLR0917 - for run_sync
    connection: Connection, own: Tables, endpoint: str, rings: StoredRings, limit: int, clock: Clock | None
) -> StoredRemains:
    def count(table: FromClause, *conditions: object) -> int:
        query: Select[int] = select(func.count()).select_from(
            select(*list(table.primary_key)[:1]).where(*conditions).limit(limit).subquery()  # type: ignore[arg-type]
        )
        return connection.scalar(query) or 0

    now = time_in(connection, clock)
    claims, last_claim = count(own.claims), connection.scalar(select(func.max(own.claims.c.arrived_at))) or 0
    for ring in rings.rings.values():
        for bucket in ring.buckets:
            if (some := count(bucket, bucket.c.fingerprint != NO_BODY)) == 0:
                continue
            start = read_held(connection, bucket)
            claims += some
            last_claim = max(last_claim, now if start is None else min(now, start + ring.bucketing.width))
    routes = rings.of(endpoint)
    running = (own.actions.c.endpoint == endpoint, own.actions.c.state == ActionState.RUNNING.value)
    return StoredRemains(
        retention=0 if routes is None else max(route.ring.bucketing.retention for route in routes.all),
        records=count(own.records, own.records.c.endpoint == endpoint),
        claims=min(claims, limit),
        last_claim=min(last_claim, now),
        keys=count(own.keys),
        last_key=connection.scalar(select(func.max(own.keys.c.stored_at))) or 0,
        tokens=count(own.tokens),
        entities=count(own.entities),
        reservations=count(own.register, own.register.c.endpoint == endpoint),
        actions=count(own.actions, *running),
        now=now,
    )
