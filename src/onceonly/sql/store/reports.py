"""What the processes of an endpoint report about themselves, and how many events had no subscriber, in tables of the store."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, delete, select, update

from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.escaping import is_utf8
from onceonly.model.health import ProcessReport, ProcessState
from onceonly.sql.database import Database
from onceonly.sql.database_clock import DatabaseNow
from onceonly.sql.store.tables import tables

_encode = msgspec.json.Encoder().encode
_counters = msgspec.json.Decoder(dict[str, int]).decode
_texts = msgspec.json.Decoder(tuple[str, ...]).decode
MOST = 1000
"""Processes are read up to here."""
MOST_TYPE_BYTES = 32 * 1024
"""Bytes of the names of all types in one row. The others are left out."""


class SqlPresence:
    """The processes of one endpoint. By the database's clock, which is the same for all of them."""

    def __init__(self, database: Database, endpoint: str) -> None:
        self._database = database
        self._endpoint = endpoint
        self._table = tables(database.prefix, database.schema).processes

    async def report(self, report: ProcessReport) -> None:
        """Update the row by one statement, or insert it; see the port."""
        own = self._table.c
        key = {"endpoint": self._endpoint, "process": report.process}
        values = {
            "host": report.host,
            "pid": report.pid,
            "version": report.version,
            "counters": _encode(report.counters),
            "troubles": _encode(report.troubles),
            "types": _encode(tuple(_bounded(report.types))),
        }
        change = update(self._table).where(own.endpoint == self._endpoint, own.process == report.process)
        change = change.values(**values, seen=DatabaseNow())

        def put(connection: Connection) -> None:
            if not connection.execute(change).rowcount:
                # Only this process writes this key, so nothing comes in between.
                row = {**key, **values, "seen": 0}
                self._database.dialect.insert_absent(connection, self._table, [row], key=["endpoint", "process"])
                connection.execute(change)

        async with self._database.writing() as connection:
            await connection.run_sync(put)

    async def remove(self, process: str) -> None:
        own = self._table.c
        async with self._database.writing() as connection:
            await connection.execute(delete(self._table).where(own.endpoint == self._endpoint, own.process == process))

    async def remove_unseen(self, seconds: float) -> int:
        """Delete rows by a range of the primary key; see the port."""
        own = self._table.c
        old = delete(self._table).where(own.endpoint == self._endpoint, own.seen < DatabaseNow() - round(seconds * 1000))
        async with self._database.writing() as connection:
            return (await connection.execute(old)).rowcount

    async def read(self) -> Sequence[ProcessState]:
        own = self._table.c
        query = select(self._table, DatabaseNow().label("now")).where(own.endpoint == self._endpoint)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query.order_by(own.process).limit(MOST))).all()
        return tuple(state for row in rows if (state := _state(row)) is not None)


def _state(row: Any) -> ProcessState | None:
    """Read a row. One that is not a report is ignored: its process reports again within seconds, if it is one."""
    try:
        report = ProcessReport(
            process=row.process,
            host=row.host,
            pid=row.pid,
            version=row.version,
            counters=_counters(row.counters),
            troubles=_texts(row.troubles),
            types=_texts(row.types),
        )
        return ProcessState(
            report=msgspec.convert(msgspec.to_builtins(report), ProcessReport), age=max(0, row.now - row.seen) / 1000
        )
    except UNDECODABLE:
        return None


def _bounded(types: Sequence[str]) -> Iterator[str]:
    left = MOST_TYPE_BYTES
    for name in filter(is_utf8, types):
        left -= len(name.encode())
        if left < 0:
            return
        yield name


class SqlEventCounts:
    """The counts of one endpoint, one row for each type."""

    def __init__(self, database: Database, endpoint: str) -> None:
        self._database = database
        self._endpoint = endpoint
        self._table = tables(database.prefix, database.schema).unsubscribed

    async def add(self, counts: Mapping[str, int]) -> None:
        own = self._table.c
        rows = [{"endpoint": self._endpoint, "type": kind, "count": 0} for kind in sorted(counts)]
        more = update(self._table).where(own.endpoint == bindparam("of"), own.type == bindparam("kind"))
        more = more.values(count=own["count"] + bindparam("more"))

        def put(connection: Connection) -> None:
            self._database.dialect.insert_absent(connection, self._table, rows, key=["endpoint", "type"])
            for kind in sorted(counts):  # in one order, so that two processes do not wait for each other
                connection.execute(more, {"of": self._endpoint, "kind": kind, "more": counts[kind]})

        async with self._database.writing() as connection:
            await connection.run_sync(put)

    async def read(self) -> Mapping[str, int]:
        own = self._table.c
        query = select(own.type, own["count"]).where(own.endpoint == self._endpoint).order_by(own.type)
        async with self._database.reading() as connection:
            return {row[0]: row[1] for row in await connection.execute(query)}
