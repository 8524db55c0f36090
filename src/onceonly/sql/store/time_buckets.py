"""How time is cut in a database: decided when its ring is first used, the same for all endpoints and processes from then on."""

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, select, update

from onceonly.formats.log_events import EventLogger
from onceonly.model.changed_retention import refuse_less
from onceonly.model.errors import SetupError
from onceonly.model.ring import BUCKETS, Bucketing, bucketing_for, instant_of, label, width_of
from onceonly.ports.environment import Clock
from onceonly.sql.database import Database
from onceonly.sql.database_clock import database_now
from onceonly.sql.store.rings import RingRoutes, find_rings
from onceonly.sql.store.tables import THE_RING, Tables, tables

NO_BODY = bytes(8)
"""The fingerprint next to a label."""

RETENTION_MS = 7 * 86_400_000
"""Milliseconds for which claims are kept unless the endpoint says otherwise."""
_log = EventLogger(logging.getLogger("onceonly.sql"))


def time_in(connection: Connection, clock: Clock | None) -> int:
    """Read the database's clock, unless another one is to decide."""
    return database_now(connection) if clock is None else clock.now()


def label_row(start: int) -> dict[str, Any]:
    return {"key": label(start), "fingerprint": NO_BODY}


def lowest_of(bucket: Table) -> Select[Any]:
    """Return the query for the lowest key of a bucket: its label, if it has one."""
    return select(bucket.c.key).order_by(bucket.c.key).limit(1)


def read_lowest(connection: Connection, bucket: Table) -> bytes | None:
    """Read the lowest key of a bucket: its label, if it has one."""
    found: bytes | None = connection.scalar(lowest_of(bucket))
    return found


def start_of(lowest: bytes | None) -> int | None:
    """Return where the slice begins that a bucket with this lowest key holds; None when that is not a label."""
    return None if lowest is None or lowest != label(instant_of(lowest)) else instant_of(lowest)


def read_held(connection: Connection, bucket: Table) -> int | None:
    """Read where the slice begins that a bucket holds; None when it has no label."""
    return start_of(read_lowest(connection, bucket))


async def read_routes(database: Database, endpoint: str, retention: int, *, clock: Clock | None = None) -> RingRoutes:
    """Read in which rings an endpoint claims. Who comes first decides how time is cut in the first one, and labels its buckets.

    It is cut so that claims are kept for `retention` milliseconds. Raises SetupError when the endpoint's claims are kept for a
    shorter time; CommitFailed, OutcomeUnknown.
    """
    found = (await find_rings(database)).of(endpoint)
    if found is None:
        async with database.writing() as connection:
            await connection.run_sync(_decide, database, bucketing_for(retention), clock)
        found = (await find_rings(database)).of(endpoint)
    return refuse_more(endpoint, retention, found)


async def find_bucketing(database: Database) -> Bucketing | None:
    """Read how time is cut. None if that is not decided yet. Raises CommitFailed, OutcomeUnknown."""
    async with database.reading() as connection:
        return await connection.run_sync(_read, tables(database.prefix, database.schema))


def refuse_more(endpoint: str, retention: int, found: RingRoutes | None) -> RingRoutes:
    """Return what was found when it keeps claims for `retention` milliseconds. Raises SetupError, with both numbers."""
    if found is None:
        raise SetupError("the tables of this database keep no claims yet")
    refuse_less(endpoint, retention, found.latest.ring.bucketing.retention)
    return found


def _read(connection: Connection, tables: Tables) -> Bucketing | None:
    own = tables.ring.c
    return bucketing_in(connection.scalar(select(own.width).where(own.number == THE_RING)))


def bucketing_in(width: object) -> Bucketing | None:
    """Return the bucketing of a row. None if no process wrote it so: it can be any number, and in SQLite of any type."""
    return Bucketing(width) if isinstance(width, int) and width > 0 else None


def _decide(connection: Connection, database: Database, bucketing: Bucketing, clock: Clock | None) -> None:
    """Store it unless it is stored, and label the empty buckets in the same database transaction.

    Labels that are there come from a row that was lost. The width of the buckets is read from them and stored again. Raises
    SetupError where that is impossible.
    """
    own, dialect = tables(database.prefix, database.schema), database.dialect
    dialect.lock_schema(connection, own.ring.name)  # one after the other: of several in MariaDB each could wait for the others
    dialect.insert_absent(connection, own.ring, [{"number": THE_RING, "width": 0}], key=["number"])
    if _read(connection, own) is not None:
        return
    held = [read_held(connection, bucket) for bucket in own.buckets]
    is_lost = any(start is not None for start in held)
    width = _width_of(held, own.ring) if is_lost else bucketing.width
    connection.execute(update(own.ring).where(own.ring.c.number == THE_RING), {"width": width})
    now = time_in(connection, clock)
    for number, bucket in enumerate(own.buckets):
        if held[number] is None:
            dialect.insert_all(connection, bucket, [label_row(Bucketing(width).wanted(number, now))])
    if is_lost:
        _log.warning("ring restored from its labels", extra={"table": own.ring.name, "width": width})


def _width_of(held: Sequence[int | None], ring: Table) -> int:
    """Return the width of slices in buckets with these labels. Raises SetupError when they fit no width."""
    width = width_of(held)
    if width is None:
        row = f"INSERT INTO {ring.fullname} (number, width) VALUES ({THE_RING}, W)"  # noqa: S608 - for a person
        raise SetupError(
            f"table {ring.fullname} lost its row, and the labels in its {BUCKETS} tables of claims do not show how time was"
            f" cut. Restore the row from a backup: {row}, where W is the retention of the endpoint that first used the"
            " tables, in milliseconds, divided by 12"
        )
    return width
