"""The tables of the store: claims, records that wait for dispatch, dead letters, and tables for optional features.

Claims of messages with an instant are in the time buckets of the ring, all others in `claims`. The tables of entities,
reservations, tokens and clients' keys are empty if an endpoint does not use them.
"""

from functools import cache
from typing import Any, NamedTuple

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
    insert,
    inspect,
    literal,
    select,
    text,
)
from sqlalchemy.schema import CreateColumn

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
from onceonly.sql.database_clock import DatabaseNow, database_now
from onceonly.sql.schema import Schema

__all__ = ["Tables", "metadata", "tables"]

KEY_TEXT = 32
THE_RING = 1
FIRST_DAY_MS = 24 * 3600 * 1000
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
    """One row: the division of time into slices. A width of 0 means that it is not decided yet."""
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
        sqlite_with_rowid=False,
        **TRANSACTIONAL,
    )
    Index(f"{prefix}claims_arrived_at", claims.c.arrived_at)
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
    Index(_records_by_age(prefix), records.c.endpoint, records.c.stored_at)
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
        Column("failure", KEY, nullable=True),
        Column("identity", KEY, nullable=True),
        sqlite_autoincrement=True,  # a removed letter's position never comes again, so pages stay in order
        **TRANSACTIONAL,
    )
    Index(f"{prefix}dead_letters_endpoint", dead_letters.c.endpoint, dead_letters.c.position)
    Index(f"{prefix}dead_letters_failure", dead_letters.c.endpoint, dead_letters.c.failure, dead_letters.c.position)
    Index(f"{prefix}dead_letters_identity", dead_letters.c.identity)
    second, third = _second(prefix, metadata), _third(prefix, metadata)
    later = (_fourth(prefix, metadata), _fifth(prefix, metadata), *_sixth(prefix, metadata))
    return Tables(metadata, claims, records, dead_letters, *second, *third, *later)


def _second(prefix: str, metadata: MetaData) -> tuple[Table, Table, Table, Table]:
    """Define what came with version 2."""
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


def _third(prefix: str, metadata: MetaData) -> tuple[Table, tuple[Table, ...], Table]:
    """Define what came with version 3: the ring, and what its janitors share."""
    ring = Table(
        f"{prefix}ring",
        metadata,
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("width", INSTANT, nullable=False),
        Column("since", INSTANT, nullable=False),
        **TRANSACTIONAL,
    )
    buckets = tuple(
        Table(
            f"{prefix}claim_{number:02}",
            metadata,
            Column("key", KEY, primary_key=True),
            Column("fingerprint", FINGERPRINT, nullable=False),
            sqlite_with_rowid=False,
            **TRANSACTIONAL,
        )
        for number in range(BUCKETS)
    )
    janitor = Table(
        f"{prefix}janitor",
        metadata,
        Column("endpoint", NAME, primary_key=True),
        Column("journal", DATA, nullable=False),
        **TRANSACTIONAL,
    )
    return ring, buckets, janitor


def _fourth(prefix: str, metadata: MetaData) -> Table:
    """Define what came with version 4."""
    return Table(
        f"{prefix}starts",
        metadata,
        Column("key", KEY, primary_key=True),
        Column("attempts", Integer, nullable=False),
        Column("token", KEY, nullable=False),
        Column("until", INSTANT, nullable=False),
        **TRANSACTIONAL,
    )


def _fifth(prefix: str, metadata: MetaData) -> Table:
    """Define the table that came with version 5."""
    return Table(
        f"{prefix}unsubscribed",
        metadata,
        Column("endpoint", NAME, primary_key=True),
        Column("type", NAME, primary_key=True),
        Column("count", BigInteger, nullable=False),
        **TRANSACTIONAL,
    )


def _sixth(prefix: str, metadata: MetaData) -> tuple[Table, Table, Table]:
    """Define the tables that came with version 6."""
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
        **TRANSACTIONAL,
    )
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
    return processes, actions, items


def _records_by_age(prefix: str) -> str:
    """Name the index that came with version 5."""
    return f"{prefix}records_stored_at"


def metadata(prefix: str, schema: str | None = None) -> MetaData:
    """Return the tables under a prefix, in a schema of the database."""
    return tables(prefix, schema).metadata


def _add_second(connection: Connection, metadata: MetaData) -> None:
    """Add the tables of version 2; those of version 1 stay as they are."""
    added = ("entities", "register", "tokens", "keys")
    metadata.create_all(connection, tables=[table for table in metadata.sorted_tables if table.name.endswith(added)])


def _add_third(connection: Connection, metadata: MetaData) -> None:
    """Add the ring; the claims that are there stay where they are, as if they had been made now.

    Messages of before `since` were claimed there, so that is where their copies are looked for, and those of the first day as
    well: clocks differ, and processes of the older version may still end their work. Every part may have been done before.
    """
    (ring,) = (table for table in metadata.sorted_tables if table.name.endswith("ring"))
    own = tables(ring.name.removesuffix("ring"), ring.schema)
    own.metadata.create_all(connection, tables=[own.ring, *own.buckets, own.janitor])
    now = database_now(connection)
    if connection.scalar(select(own.ring.c.number)) is None:
        connection.execute(insert(own.ring).values(number=THE_RING, width=0, since=now + FIRST_DAY_MS))
    add_column(connection, own.records.c.claim)
    add_column(connection, own.records.c.taken_at)
    if connection.dialect.name == "sqlite":
        _rebuild_claims(connection, own.claims, now)
    else:
        add_column(connection, own.claims.c.arrived_at, f" DEFAULT {now}")
        default = str(CreateColumn(own.claims.c.arrived_at).compile(dialect=connection.dialect)).partition(" DEFAULT ")[2]
        _alter(connection, own.claims, f"ALTER COLUMN arrived_at SET DEFAULT {default.removesuffix(' NOT NULL')}")
    for table in (own.records, own.claims, own.keys):
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def _add_fourth(connection: Connection, metadata: MetaData) -> None:
    """Add the table of version 4."""
    metadata.create_all(connection, tables=[table for table in metadata.sorted_tables if table.name.endswith("starts")])


def _add_fifth(connection: Connection, metadata: MetaData) -> None:
    """Add the index and the table of version 5.

    CREATE INDEX blocks changes of the records until the end of the upgrade. CONCURRENTLY cannot run in the transaction that
    makes an upgrade all or nothing, and the table holds only pending records: 200,000 of them take less than a second.
    """
    for table in metadata.sorted_tables:
        for index in table.indexes:
            if index.name == _records_by_age(table.name.removesuffix("records")):
                index.create(connection, checkfirst=True)
    metadata.create_all(connection, tables=[table for table in metadata.sorted_tables if table.name.endswith("unsubscribed")])


def _add_sixth(connection: Connection, metadata: MetaData) -> None:
    """Add the columns, indexes and tables of version 6.

    The new columns are null in existing dead letters. Maintenance fills them, 1,000 at a time.
    """
    (letters,) = (table for table in metadata.sorted_tables if table.name.endswith("dead_letters"))
    own = tables(letters.name.removesuffix("dead_letters"), letters.schema)
    for column in (own.dead_letters.c.failure, own.dead_letters.c.identity):
        add_column(connection, column)
    for table in (own.dead_letters, own.register):
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            index.create(connection, checkfirst=True)
    own.metadata.create_all(connection, tables=[own.processes, own.actions, own.action_items])


def add_column(connection: Connection, column: Column[Any], default: str = "") -> None:
    """Add a column to its table, unless it is there."""
    if column.name not in _columns(connection, column.table):
        kind, null = column.type.compile(connection.dialect), "" if column.nullable else " NOT NULL"
        _alter(connection, column.table, f"ADD COLUMN {column.name} {kind}{default}{null}")


def _rebuild_claims(connection: Connection, claims: Table, now: int) -> None:
    """Make the table anew: SQLite adds no column whose default is a clock."""
    if "arrived_at" in _columns(connection, claims):
        return
    _alter(connection, claims, f"RENAME TO {claims.name}_2")
    old = Table(f"{claims.name}_2", MetaData(), Column("key", KEY), Column("fingerprint", FINGERPRINT))
    claims.create(connection)
    copied = select(old.c.key, old.c.fingerprint, literal(now))
    connection.execute(insert(claims).from_select(["key", "fingerprint", "arrived_at"], copied))
    old.drop(connection)


def _columns(connection: Connection, table: Any) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns(table.name, schema=table.schema)}


def _alter(connection: Connection, table: Any, change: str) -> None:
    connection.execute(text(f"ALTER TABLE {connection.dialect.identifier_preparer.format_table(table)} {change}"))


_HANDLED_TWICE = "copies of messages that were handled before are handled again"
_LOSSES = {
    "claims": _HANDLED_TWICE,
    **{f"claim_{number:02}": _HANDLED_TWICE for number in range(BUCKETS)},
    "records": "messages that handlers have sent and no broker has got are lost",
    "entities": "all entities begin without a state",
    "tokens": "messages that are on their way are dropped: no live token is left for them",
    "keys": "requests that clients repeat are executed again",
}
"""What happens when a table is made again without its rows. The others lose no more than what operators read."""

SCHEMA = Schema(
    component="store",
    version=6,
    tables=metadata,
    upgrades={1: _add_second, 2: _add_third, 3: _add_fourth, 4: _add_fifth, 5: _add_sixth},
    losses=_LOSSES,
)
