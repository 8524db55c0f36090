"""SQLite and MariaDB, through the library's own calls, against a classic table that is claimed in the same way."""

import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from sqlalchemy import BigInteger, Column, Connection, Index, MetaData, String, Table, delete, func, insert, select, text
from sqlalchemy.engine import make_url

from benchmarks.retention.findings import Emptying
from benchmarks.retention.keys import Batch, Keys
from benchmarks.retention.postgresql import PausedClock
from onceonly.assembly import open_database, schemas
from onceonly.model.ring import Bucketing
from onceonly.ports.ring import Rotation
from onceonly.sql.columns import TRANSACTIONAL
from onceonly.sql.database import Database
from onceonly.sql.schema import create
from onceonly.sql.store.ring import SqlRing
from onceonly.sql.store.tables import tables
from onceonly.sql.store.time_buckets import label_row

AT_ONCE = 5000
CLASSIC = Table(
    "classic",
    MetaData(),
    Column("message_id", String(36), primary_key=True),
    Column("handled_at", BigInteger, nullable=False),
    **TRANSACTIONAL,
)
Index("classic_handled_at", CLASSIC.c.handled_at)


class ComparisonDatabase:
    """A database of the run's own."""

    def __init__(self, database: Database, bucketing: Bucketing, clock: PausedClock) -> None:
        self._database, self.bucketing, self._clock = database, bucketing, clock
        self._ring = SqlRing(database, retention=bucketing.retention, clock=clock)
        self.start = bucketing.start(clock.now())
        self._buckets = tables(database.prefix, database.schema).buckets
        self._bucket = self._buckets[bucketing.bucket(self.start)]
        self._filled = 0

    async def make(self) -> None:
        """Make the classic table."""
        async with self._database.writing() as connection:
            await connection.run_sync(CLASSIC.metadata.create_all)

    async def fill(self, claims: int) -> None:
        """Put claims into the buckets of earlier slices, and as many rows into the classic table."""
        slices = self.bucketing.full
        for back in range(1, slices + 1):
            start = self.start - back * self.bucketing.width
            bucket = self._buckets[self.bucketing.bucket(start)]
            for batch in Keys(start, self.bucketing.width, seed=1000 + back).batches(claims // slices, AT_ONCE):
                rows = [{"key": key, "fingerprint": each} for key, each in zip(batch.keys, batch.fingerprints, strict=True)]
                classic = [{"message_id": name, "handled_at": start} for name in batch.texts]
                async with self._database.writing() as connection:
                    await connection.run_sync(self._insert, bucket, rows)
                    await connection.run_sync(self._insert, CLASSIC, classic)
                self._filled += len(rows)

    async def claim(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """Claim batch by batch, each a transaction, in the ring and in the classic table; gives claims a second in each."""
        label, found = label_row(self.start), []
        for kind in ("ring", "classic"):
            begun = time.perf_counter()
            for batch in batches:
                async with self._database.writing() as connection:
                    new = await connection.run_sync(self._claim if kind == "ring" else self._claim_classic, batch, label)
                if new != len(batch.keys):
                    raise RuntimeError(f"{new} of {len(batch.keys)} claims were new")
            found.append(sum(len(batch.keys) for batch in batches) / (time.perf_counter() - begun))
        return found[0], found[1]

    async def sizes(self) -> tuple[float, float]:
        """Return the bytes for each claim in the ring, and in the classic table; 0 where the database does not tell."""
        async with self._database.reading() as connection:
            return await connection.run_sync(self._sizes)

    async def rotate(self) -> Emptying:
        """Rotate the oldest bucket; nobody else is there."""
        self._clock.go_on(self.bucketing.width)
        oldest = min((bucket for bucket in await self._ring.buckets() if bucket.start), key=lambda bucket: bucket.start)
        begun = time.perf_counter()
        found = await self._ring.rotate(oldest.number)
        if found is not Rotation.ROTATED:
            raise RuntimeError(f"bucket {oldest.number} was not rotated: {found.value}")
        return Emptying(seconds=round(time.perf_counter() - begun, 4), undisturbed=0, beside=0, longest=0)

    async def delete(self) -> Emptying:
        """Delete as many from the classic table, at once."""
        begun = time.perf_counter()
        async with self._database.writing() as connection:
            oldest = await connection.scalar(select(func.min(CLASSIC.c.handled_at)))
            await connection.execute(delete(CLASSIC).where(CLASSIC.c.handled_at == oldest))
        return Emptying(seconds=round(time.perf_counter() - begun, 4), undisturbed=0, beside=0, longest=0)

    def _insert(self, connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
        connection.execute(insert(table), rows)

    def _claim(self, connection: Connection, batch: Batch, label: dict[str, Any]) -> int:
        rows = [{"key": key, "fingerprint": each} for key, each in zip(batch.keys, batch.fingerprints, strict=True)]
        return len(self._database.dialect.insert_behind(connection, self._bucket, label, rows, key="key") or ())

    def _claim_classic(self, connection: Connection, batch: Batch, _label: dict[str, Any]) -> int:
        rows = [{"message_id": name, "handled_at": self.start} for name in batch.texts]
        return len(self._database.dialect.insert_absent(connection, CLASSIC, rows, key=["message_id"]))

    def _sizes(self, connection: Connection) -> tuple[float, float]:
        buckets = [bucket.name for bucket in self._buckets]
        if connection.dialect.name == "sqlite":
            query = text("select sum(pgsize) from dbstat where name in (select value from json_each(:names))")
            classic = ["classic", "classic_handled_at", "sqlite_autoindex_classic_1"]
            found = [connection.scalar(query, {"names": _json(names)}) for names in (buckets, classic)]
        else:
            for name in (*buckets, "classic"):
                connection.exec_driver_sql(f"ANALYZE TABLE {name}").all()
            query = text(
                "select sum(data_length + index_length) from information_schema.tables"
                " where table_schema = database() and json_contains(:names, json_quote(table_name))"
            )
            found = [connection.scalar(query, {"names": _json(names)}) for names in (buckets, ["classic"])]
        counted = [sum(connection.scalar(select(func.count()).select_from(bucket)) or 0 for bucket in self._buckets)]
        counted.append(connection.scalar(select(func.count()).select_from(CLASSIC)) or 0)
        ring, classic_bytes = (float(size) / count for size, count in zip(found, counted, strict=True))
        return ring, classic_bytes


def _json(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


@asynccontextmanager
async def opened_sqlite(retention: int) -> AsyncIterator[ComparisonDatabase]:
    """Make a file in a folder of its own, and remove it at the end."""
    with TemporaryDirectory(prefix="onceonly-retention-") as folder:
        async with _opened(f"sqlite:///{Path(folder) / 'store.db'}", retention) as ground:
            yield ground


@asynccontextmanager
async def opened_mariadb(server_url: str, retention: int) -> AsyncIterator[ComparisonDatabase]:
    """Make a database, and drop it at the end."""
    name = f"onceonly_bench_{os.getpid()}_{uuid4().hex[:8]}"
    async with open_database(server_url) as server:
        async with server.engine.connect() as connection:
            await connection.exec_driver_sql(f"CREATE DATABASE {name}")
        try:
            url = make_url(server_url).set(database=name).render_as_string(hide_password=False)
            async with _opened(url, retention) as ground:
                yield ground
        finally:
            async with server.engine.connect() as connection:
                await connection.exec_driver_sql(f"DROP DATABASE {name}")


@asynccontextmanager
async def _opened(url: str, retention: int) -> AsyncIterator[ComparisonDatabase]:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(url))
        await create(database, *schemas("store"))
        clock = PausedClock(int(time.time() * 1000))
        ground = ComparisonDatabase(database, await SqlRing(database, retention=retention, clock=clock).bucketing(), clock)
        await ground.make()
        yield ground
