"""The handlers on tables of their own, written as a user would write them."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from sqlalchemy import Column, Insert, Integer, MetaData, String, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import registry

from onceonly import Context, Endpoint
from onceonly_demo.flights import LEDGER, LOYALTY, FlightDeparted, MilesFlown, receipt_of


class DemoTables:
    """The users' own tables: miles by carrier for each endpoint, and a journal that nothing protects from repetition."""

    def __init__(self, prefix: str, store: str) -> None:
        """Name the tables behind `prefix`; `store` is the URL of the database they are in."""
        upsert = _UPSERTS[store.partition(":")[0].partition("+")[0]]
        self.metadata = MetaData()
        self.ledger = self._miles(prefix + "ledger")
        self.loyalty = self._miles(prefix + "loyalty")
        self.journal = Table(
            prefix + "journal",
            self.metadata,
            Column("line", Integer, primary_key=True, autoincrement=True),
            Column("endpoint", String(20), nullable=False),
            Column("source", String(40), nullable=False),
            Column("id", String(80), nullable=False),
            Column("mark", String(32), nullable=False),
        )
        self.entry: Any = registry(metadata=self.metadata).mapped(type("Entry", (), {"__table__": self.journal}))
        self.add = {table.name.removeprefix(prefix): upsert(table) for table in (self.ledger, self.loyalty)}

    def _miles(self, name: str) -> Table:
        carrier = Column("carrier", String(2), primary_key=True)
        return Table(name, self.metadata, carrier, Column("miles", Integer, nullable=False))


def register_table_handlers(tables: DemoTables, ledger: Endpoint, loyalty: Endpoint) -> None:
    """Register the handlers that write rows through the session of their unit."""

    @ledger.handler
    async def count(flight: FlightDeparted, session: AsyncSession, context: Context, connection: AsyncConnection) -> None:
        await connection.execute(tables.add[LEDGER], {"carrier": flight.carrier, "miles": flight.miles})
        mark = add_entry(session, context)
        receipt = await receipt_of(flight, context)
        context.publish(MilesFlown(flight.carrier, flight.miles, mark, flight.leg, receipt))

    @loyalty.handler
    async def credit(flown: MilesFlown, session: AsyncSession, context: Context, connection: AsyncConnection) -> None:
        await connection.execute(tables.add[LOYALTY], {"carrier": flown.carrier, "miles": flown.miles})
        add_entry(session, context)

    def add_entry(session: AsyncSession, context: Context) -> str:
        handled, mark = context.message, uuid4().hex
        session.add(tables.entry(endpoint=context.endpoint, source=handled.source, id=handled.id, mark=mark))
        return mark


def _sqlite_upsert(table: Table) -> Insert:
    row = sqlite.insert(table)
    added = {"miles": table.c.miles + row.excluded.miles}
    return row.on_conflict_do_update(index_elements=[table.c.carrier], set_=added)


def _postgresql_upsert(table: Table) -> Insert:
    row = postgresql.insert(table)
    added = {"miles": table.c.miles + row.excluded.miles}
    return row.on_conflict_do_update(index_elements=[table.c.carrier], set_=added)


def _mariadb_upsert(table: Table) -> Insert:
    row = mysql.insert(table)
    return row.on_duplicate_key_update(miles=table.c.miles + row.inserted.miles)


_UPSERTS: dict[str, Callable[[Table], Insert]] = {
    "sqlite": _sqlite_upsert,
    "postgresql": _postgresql_upsert,
    "mysql": _mariadb_upsert,
    "mariadb": _mariadb_upsert,
}
"""The atomic statement of each database that adds miles to a carrier's row."""
