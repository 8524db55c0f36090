"""The tables of the store: claims, records that wait for dispatch, dead letters, and tables for optional features.

Claims of messages with an instant are in the time buckets of the ring, all others in `claims`. The tables of entities,
reservations, tokens and clients' keys are empty if an endpoint does not use them.
"""

from functools import cache
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
    select,
    text,
)

from onceonly.model.ring import BUCKETS
from onceonly.sql.columns import (
    DATA,
    EXACT,
    FINGERPRINT,
    INSTANT,
    KEY,
    NAME,
    NAME_LENGTH,
    READABLE,
    SEQUENCE,
    TRANSACTIONAL,
    TextKey,
)
from onceonly.sql.completeness import find_missing, repair
from onceonly.sql.database_clock import DatabaseNow
from onceonly.sql.schema import Schema

__all__ = ["Tables", "buckets_of", "metadata", "tables"]

KEY_TEXT = 32
THE_RING = 1
ENTITY_KEY_BYTES = 1024
"""How many bytes of UTF-8 the key of an entity may have."""


class Tables(NamedTuple):
    """The tables under one prefix."""

    metadata: MetaData
    claims: Table
    records: Table
    dead_letters: Table
    entities: Table
    register: Table
    tokens: Table
    keys: Table
    ring: Table
    """A row for each ring: the division of time into slices. A width of 0 means that it is not decided yet."""
    retention: Table
    """From which instant on an endpoint claims in which ring. An empty name stands for endpoints without rows of their own."""
    buckets: tuple[Table, ...]
    janitor: Table
    """The log of each endpoint's janitor."""
    starts: Table
    """Runs of handlers that have their own process. A run without an end crashed its process."""
    unsubscribed: Table
    """How many events each endpoint published that had no subscriber, by type."""
    processes: Table
    """The processes that run each endpoint, with what they last reported."""
    actions: Table
    """What operators did with dead letters."""
    action_items: Table
    """What an action did with each dead letter."""


@cache
def tables(prefix: str, schema: str | None = None) -> Tables:
    """Return the tables under a prefix, in a schema of the database. Times are in milliseconds since 1970."""
    metadata = MetaData(schema=schema)
    claims = Table(
        f"{prefix}claims",
        metadata,
        Column("key", KEY, primary_key=True),
        Column("fingerprint", FINGERPRINT, nullable=False),
        Column("arrived_at", INSTANT, nullable=False, server_default=DatabaseNow()),
        Column("ring", Integer, nullable=False, server_default=text(str(THE_RING))),
        sqlite_with_rowid=False,
        **TRANSACTIONAL,
    )
    Index(f"{prefix}claims_ring", claims.c.ring, claims.c.arrived_at)
    records = Table(
        f"{prefix}records",
        metadata,
        Column("key", KEY, primary_key=True),
        Column("endpoint", NAME, nullable=False),
        Column("source", EXACT, nullable=False),
        Column("id", EXACT, nullable=False),
        Column("effects", DATA, nullable=False),
        Column("stored_at", INSTANT, nullable=False),
        Column("claim", KEY, nullable=True),
        Column("taken_at", INSTANT),
        **TRANSACTIONAL,
    )
    in_ring = records.c.claim.is_not(None)
    Index(f"{prefix}records_claim", records.c.claim, postgresql_where=in_ring, sqlite_where=in_ring)
    Index(f"{prefix}records_stored_at", records.c.endpoint, records.c.stored_at)
    dead_letters = Table(
        f"{prefix}dead_letters",
        metadata,
        Column("position", SEQUENCE, primary_key=True),
        Column("key", String(KEY_TEXT), nullable=False, unique=True),
        Column("endpoint", NAME, nullable=False),
        Column("type", READABLE, nullable=False),
        Column("reason", READABLE, nullable=False),
        Column("stored_at", INSTANT, nullable=False),
        Column("letter", DATA, nullable=False),
        Column("failure", KEY, nullable=False),
        Column("identity", KEY, nullable=True),
        sqlite_autoincrement=True,  # a removed letter's position never comes again, so pages stay in order
        **TRANSACTIONAL,
    )
    Index(f"{prefix}dead_letters_endpoint", dead_letters.c.endpoint, dead_letters.c.position)
    Index(f"{prefix}dead_letters_failure", dead_letters.c.endpoint, dead_letters.c.failure, dead_letters.c.position)
    Index(f"{prefix}dead_letters_identity", dead_letters.c.identity)
    optional, ring = _optional(prefix, metadata), _ring(prefix, metadata)
    return Tables(
        metadata, claims, records, dead_letters, *optional, *ring, *_running(prefix, metadata), *_actions(prefix, metadata)
    )


def _optional(prefix: str, metadata: MetaData) -> tuple[Table, Table, Table, Table]:
    entities = Table(
        f"{prefix}entities",
        metadata,
        Column("key", TextKey(ENTITY_KEY_BYTES), primary_key=True),
        Column("state", DATA, nullable=False),
        Column("changed_at", INSTANT, nullable=False),
        **TRANSACTIONAL,
    )
    register = Table(
        f"{prefix}register",
        metadata,
        Column("attempt", TextKey(NAME_LENGTH), primary_key=True),
        Column("key", KEY, nullable=False),
        Column("endpoint", NAME, nullable=False),
        Column("source", EXACT, nullable=False),
        Column("id", EXACT, nullable=False),
        Column("unit", EXACT, nullable=False),
        Column("opened_at", INSTANT, nullable=False),
        Column("cancelled", Boolean, nullable=False),
        **TRANSACTIONAL,
    )
    Index(f"{prefix}register_key", register.c.key)
    Index(f"{prefix}register_opened_at", register.c.endpoint, register.c.opened_at)
    tokens = Table(f"{prefix}tokens", metadata, Column("key", KEY, primary_key=True), sqlite_with_rowid=False, **TRANSACTIONAL)
    keys = Table(
        f"{prefix}keys",
        metadata,
        Column("key", KEY, primary_key=True),
        Column("fingerprint", KEY, nullable=False),
        Column("attempt", NAME, nullable=False),
        Column("answer", DATA, nullable=True),
        Column("stored_at", INSTANT, nullable=False),
        **TRANSACTIONAL,
    )
    Index(f"{prefix}keys_stored_at", keys.c.stored_at)
    return entities, register, tokens, keys


def _ring(prefix: str, metadata: MetaData) -> tuple[Table, Table, tuple[Table, ...], Table]:
    ring = Table(
        f"{prefix}ring",
        metadata,
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("width", INSTANT, nullable=False),
        Column("keep", INSTANT, nullable=False, server_default=text("0")),
        Column("closes", INSTANT, nullable=False, server_default=text("0")),
        **TRANSACTIONAL,
    )
    retention = Table(
        f"{prefix}retention",
        metadata,
        Column("endpoint", NAME, primary_key=True),
        Column("since", INSTANT, primary_key=True, autoincrement=False),
        Column("ring", Integer, nullable=False),
        **TRANSACTIONAL,
    )
    buckets = _buckets(f"{prefix}claim_", metadata)
    janitor = Table(
        f"{prefix}janitor",
        metadata,
        Column("endpoint", NAME, primary_key=True),
        Column("journal", DATA, nullable=False),
        **TRANSACTIONAL,
    )
    return ring, retention, buckets, janitor


def _buckets(prefix: str, metadata: MetaData) -> tuple[Table, ...]:
    return tuple(
        Table(
            f"{prefix}{number:02}",
            metadata,
            Column("key", KEY, primary_key=True),
            Column("fingerprint", FINGERPRINT, nullable=False),
            sqlite_with_rowid=False,
            **TRANSACTIONAL,
        )
        for number in range(BUCKETS)
    )


@cache
def buckets_of(prefix: str, schema: str | None, ring: int) -> tuple[Table, ...]:
    """Return the time buckets of a ring. Those of the first ring are there in every database."""
    if ring == THE_RING:
        return tables(prefix, schema).buckets
    return _buckets(f"{prefix}claim_{ring}_", MetaData(schema=schema))


def _running(prefix: str, metadata: MetaData) -> tuple[Table, Table, Table]:
    starts = Table(
        f"{prefix}starts",
        metadata,
        Column("key", KEY, primary_key=True),
        Column("attempts", Integer, nullable=False),
        Column("token", KEY, nullable=False),
        Column("until", INSTANT, nullable=False),
        **TRANSACTIONAL,
    )
    unsubscribed = Table(
        f"{prefix}unsubscribed",
        metadata,
        Column("endpoint", NAME, primary_key=True),
        Column("type", NAME, primary_key=True),
        Column("count", BigInteger, nullable=False),
        **TRANSACTIONAL,
    )
    processes = Table(
        f"{prefix}processes",
        metadata,
        Column("endpoint", NAME, primary_key=True),
        Column("process", NAME, primary_key=True),
        Column("host", NAME, nullable=False),
        Column("pid", BigInteger, nullable=False),
        Column("version", NAME, nullable=False),
        Column("seen", INSTANT, nullable=False),
        Column("counters", DATA, nullable=False),
        Column("troubles", DATA, nullable=False),
        Column("types", DATA, nullable=False),
        **TRANSACTIONAL,
    )
    return starts, unsubscribed, processes


def _actions(prefix: str, metadata: MetaData) -> tuple[Table, Table]:
    actions = Table(
        f"{prefix}actions",
        metadata,
        Column("position", SEQUENCE, primary_key=True),
        Column("at", INSTANT, nullable=False),
        Column("actor", READABLE, nullable=False),
        Column("method", NAME, nullable=False),
        Column("action", NAME, nullable=False),
        Column("endpoint", NAME, nullable=False),
        Column("scope", DATA, nullable=False),
        Column("upto", BigInteger, nullable=False),
        Column("reached", BigInteger, nullable=False),
        Column("reason", READABLE, nullable=False),
        Column("state", NAME, nullable=False),
        Column("total", BigInteger, nullable=False),
        Column("done", BigInteger, nullable=False),
        Column("kept", BigInteger, nullable=False),
        Column("runner", NAME, nullable=False),
        Column("lease", INSTANT, nullable=False),
        sqlite_autoincrement=True,
        **TRANSACTIONAL,
    )
    Index(f"{prefix}actions_state", actions.c.state, actions.c.position)
    items = Table(
        f"{prefix}action_items",
        metadata,
        Column("action", BigInteger, primary_key=True, autoincrement=False),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("letter", String(KEY_TEXT), nullable=False),
        Column("identity", KEY, nullable=True),
        Column("outcome", NAME, nullable=False),
        Column("detail", READABLE, nullable=False),
        Column("before", FINGERPRINT, nullable=True),
        Column("after", FINGERPRINT, nullable=True),
        Column("stored", DATA, nullable=True),
        Column("stored_until", INSTANT, nullable=True),
        Column("at", INSTANT, nullable=False),
        **TRANSACTIONAL,
    )
    Index(f"{prefix}action_items_identity", items.c.identity)
    Index(f"{prefix}action_items_stored_until", items.c.stored_until)
    return actions, items


def metadata(prefix: str, schema: str | None = None) -> MetaData:
    """Return the tables under a prefix, in a schema of the database."""
    return tables(prefix, schema).metadata


_HANDLED_TWICE = "copies of messages that were handled before are handled again"
_LOSSES = {
    "claims": _HANDLED_TWICE,
    "retention": _HANDLED_TWICE,
    **{f"claim_{number:02}": _HANDLED_TWICE for number in range(BUCKETS)},
    "records": "messages that handlers have sent and no broker has got are lost",
    "entities": "all entities begin without a state",
    "tokens": "messages that are on their way are dropped: no live token is left for them",
    "keys": "requests that clients repeat are executed again",
}
"""What happens when a table is made again without its rows. The others lose no more than what operators read."""


def _add_rings(connection: Connection, own: MetaData) -> None:
    """Add what lets endpoints have retentions of their own. The claims that are there belong to the first ring.

    Here only what is missing is made, so a step that was interrupted in MariaDB can be repeated.
    """
    repair(connection, find_missing(connection, own, thorough=True))
    (claims,) = (table for table in own.tables.values() if table.name.endswith("claims"))
    old = Index(f"{claims.name}_arrived_at", claims.c.arrived_at)
    claims.indexes.discard(old)
    old.drop(connection, checkfirst=True)


def _rings_beside(connection: Connection, prefix: str, schema: str | None) -> tuple[MetaData, ...]:
    """Return the tables of the rings that were made after the first one."""
    ring = tables(prefix, schema).ring
    if not inspect(connection).has_table(ring.name, schema=schema):
        return ()
    numbers = connection.scalars(select(ring.c.number).where(ring.c.number != THE_RING)).all()
    return tuple(buckets_of(prefix, schema, number)[0].metadata for number in numbers)


SCHEMA = Schema(
    component="store",
    version=8,
    tables=metadata,
    upgrades={7: _add_rings},
    losses=_LOSSES,
    beside=_rings_beside,
)
