"""What tests share that run on every SQL database: tables of their own, and a look at who waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text

from onceonly.model.entities import Entities
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Resources, Unit
from onceonly.sql.database import Database
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA, SqlStore
from onceonly.sql.store.unit import SqlUnit
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from tests.sql.emptying import empty
from tests.sql.harness import connection_of, opened

PLACES = ("sqlite", "postgresql+asyncpg", "postgresql+psycopg", "mariadb")
SERVERS = PLACES[1:]

_WAITING = {
    "postgresql": "SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))",
    "mysql": (
        "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist ON id = trx_mysql_thread_id"
        " WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()"
    ),
}


@asynccontextmanager
async def emptied(place: str, *, clock: ManualClock | None = None) -> AsyncIterator[Database]:
    """Open a database with empty tables."""
    async with opened(place, clock=clock) as database:
        await create(database, SCHEMA)
        await empty(database, SCHEMA.tables(database.prefix, database.schema).sorted_tables)
        yield database


def on(unit: str, name: str = "", *, token: str = "") -> Message:
    """Make a message for an entity, with a token if it has one."""
    plain = message((name or f"m-{unit}").encode(errors="backslashreplace").decode())
    extensions = (("token", token),) if token else ()
    return Message(id=plain.id, source=plain.source, type=plain.type, body=plain.body, extensions=extensions, unit=unit)


def entities_of(resources: Resources) -> Entities:
    """Return the unit's entities."""
    entities = resources.get(Entities)
    assert isinstance(entities, Entities)
    return entities


async def write(unit: Unit, key: str, state: bytes | None) -> None:
    """Handle by writing an entity."""
    async with unit.resources.attempt():
        entities_of(unit.resources).write(key, state)


async def put(store: SqlStore, states: dict[str, bytes | None], name: str = "put") -> None:
    """Commit these states by a message for each."""
    unit = await store.begin([on(key, f"{name}-{key}") for key in states])
    for key, state in states.items():
        await write(unit, key, state)
    await unit.commit([Record(each.identity) for each in unit.found.new])


async def states(store: SqlStore, *keys: str) -> dict[str, bytes | None]:
    """Read entities as a unit of their own, and leave no trace."""
    unit = await store.begin([on(key, f"look-{key}") for key in keys])
    found = {key: entities_of(unit.resources).read(key) for key in keys}
    unit.abandon()
    return found


async def somebody_waits(unit: SqlUnit) -> None:
    """Wait until the server says that somebody waits for a lock that this unit has."""
    connection = connection_of(unit.resources)
    query = text(_WAITING[connection.dialect.name])
    while not (await connection.execute(query)).scalar_one():  # noqa: ASYNC110 - the server has no event
        await asyncio.sleep(0.15)  # MariaDB's view stays as it was while it is looked at more often than every 0.1 s
