"""What the tests of the SQL adapters share: a file with all tables, users' tables in it, and an ear for statements."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from sqlalchemy import Connection, ForeignKey, Inspector, event, func, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Resources, Unit
from onceonly.sql.database import Database, Source, open_database
from onceonly.sql.schema import create, create_user_tables
from onceonly.sql.store import SCHEMA, SqlStore
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import effects, message

ONE_EFFECT = effects()[:1]


class Base(DeclarativeBase):
    """The user's tables."""


class Order(Base):
    """A row with a unique name."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)


class Line(Base):
    """A row whose reference is checked at COMMIT only."""

    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(ForeignKey("orders.id", deferrable=True, initially="DEFERRED"))


@asynccontextmanager
async def opened(source: Source, *, tables: bool = False, clock: ManualClock | None = None) -> AsyncIterator[Database]:
    """Open a database as a process of its own would, and close it."""
    database = await open_database(source, clock=clock or ManualClock())
    try:
        if tables:
            await create(database, SCHEMA)
            await create_user_tables(database, Base.metadata)
        yield database
    finally:
        await database.close()


def url(file: Path) -> str:
    """Return the URL of a file."""
    return f"sqlite:///{file}"


def messages(count: int) -> list[Message]:
    """Make messages with distinct identities."""
    return [message(f"m{number}") for number in range(count)]


def records(*handled: Message, decided: bool = False) -> list[Record]:
    """Make the records of handled messages."""
    return [Record(each.identity, ONE_EFFECT if decided else ()) for each in handled]


def session_of(resources: Resources) -> AsyncSession:
    """Return the unit's session."""
    session = resources.get(AsyncSession)
    assert isinstance(session, AsyncSession)
    return session


def connection_of(resources: Resources) -> AsyncConnection:
    """Return the unit's connection."""
    connection = resources.get(AsyncConnection)
    assert isinstance(connection, AsyncConnection)
    return connection


async def attempt(unit: Unit, handler: Callable[[], Awaitable[object]]) -> None:
    """Run one handler as an endpoint does."""
    async with unit.resources.attempt():
        await handler()
        if (writing := unit.resources.leave(is_last=True)) is not None:
            await writing


async def add(unit: Unit, *names: str) -> None:
    """Handle by adding an order for each name."""

    async def handler(name: str) -> None:
        session_of(unit.resources).add(Order(id=name))

    for name in names:
        await attempt(unit, lambda name=name: handler(name))


async def handle(store: SqlStore, *asked: Message, decided: bool = False) -> None:
    """Take messages through a unit that adds an order for each."""
    unit = await store.begin(asked)
    await add(unit, *(each.id for each in unit.found.new))
    await unit.commit(records(*unit.found.new, decided=decided))


async def orders(database: Database) -> list[str]:
    """Read the ids of the committed orders."""
    async with database.reading() as connection:
        return list(await connection.scalars(select(Order.id).order_by(Order.id)))


async def counted(database: Database, table: str) -> int:
    """Count the rows of one of our own tables."""
    metadata = SCHEMA.tables(database.prefix)
    async with database.reading() as connection:
        return await connection.scalar(select(func.count()).select_from(metadata.tables[database.prefix + table])) or 0


async def look(store: SqlStore, *asked: Message) -> dict[str, list[str]]:
    """Tell what a unit finds, by the names of messages, and give it up."""
    unit = await store.begin(asked)
    unit.abandon()
    found = {
        "new": [each.id for each in unit.found.new],
        "pending": [each.identity.id for each in unit.found.pending],
        "done": [each.id for each in unit.found.done],
        "mismatched": [each.id for each in unit.found.mismatched],
    }
    return {part: names for part, names in found.items() if names}


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Listen: gives the first words of every statement sent, COMMIT and ROLLBACK of the driver's included."""
    heard: list[str] = []

    def hear(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        heard.append(" ".join(statement.split()[:3]))

    def hear_commit(_connection: object) -> None:
        heard.append("COMMIT")

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", hear)
    event.listen(engine, "commit", hear_commit)
    try:
        yield heard
    finally:
        event.remove(engine, "before_cursor_execute", hear)
        event.remove(engine, "commit", hear_commit)


def count_orders(session: Session) -> int:
    """Count orders, as a synchronous handler would."""
    return session.scalar(select(func.count()).select_from(Order)) or 0


def catalog(connection: Connection) -> Inspector:
    """Return what reads the catalogue. PostgreSQL would take half a second to compile each of its queries."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL jit = off"))
    return inspect(connection)
