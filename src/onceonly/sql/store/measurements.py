"""What claims and tokens cost in a database: measured, by inserting a sample into tables that are gone again afterwards."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError

from onceonly.config.estimates import Measurements, TableSample
from onceonly.model.identity import Identity, claim_key
from onceonly.model.ring import ring_key
from onceonly.sql.database import Database
from onceonly.sql.dialect import Dialect, Purpose
from onceonly.sql.store.statements import chunks
from onceonly.sql.store.tables import Tables, tables
from onceonly.sql.store.time_buckets import label_row

BATCH, PORTION = 100, 1000
MIXED = 1000
"""This many claims that follow each other come in any order: workers overtake one another."""
_FINGERPRINT = bytes(8)
_ENDPOINT, _SOURCE = "plan", "plan"


class SampleSize(NamedTuple):
    """How much is inserted: this many rows, as if `rate` came in a second from `now` on (milliseconds since 1970)."""

    rows: int
    rate: float
    now: int


async def measure(database: Database, sample: SampleSize, *, name: str, seconds: Callable[[], float]) -> Measurements:
    """Measure a bucket of the ring, claims without an instant, and tokens. All of it is rolled back, and its tables dropped.

    `name` is a fresh one, for the tables; `seconds` a clock. Raises CommitFailed, also when this user may make no tables;
    OutcomeUnknown.
    """
    with database.translate():
        transaction = await database.open(Purpose.WRITING)
        try:
            own = tables(f"{database.prefix}plan_{name}_", database.schema)
            bench = partial(_Bench, dialect=database.dialect, seconds=seconds)
            return await transaction.connection.run_sync(lambda it: _measure(bench(it), own, sample, name))
        finally:
            transaction.drop()


def _measure(bench: "_Bench", own: Tables, sample: SampleSize, name: str) -> Measurements:
    bucket, claims, tokens = own.buckets[0], own.claims, own.tokens
    with _temporary_tables(bench.connection, [bucket, claims, tokens]):
        identities = [Identity(_SOURCE, f"{name}-{number}") for number in range(sample.rows)]
        instants = (sample.now + int(number * 1000 / sample.rate) for number in range(sample.rows))
        in_order = [ring_key(_ENDPOINT, each, at) for each, at in zip(identities, instants, strict=True)]
        mixed = [key for some in chunks(in_order, MIXED) for key in sorted(some, key=lambda key: key[6:])]
        anywhere = [claim_key(_ENDPOINT, identity) for identity in identities]
        in_ring = bench.fill(bucket, mixed, label=in_order[0])
        arrived = bench.fill(claims, anywhere)
        issued = bench.fill(tokens, anywhere)
        return Measurements(
            rows=sample.rows,
            bucket=TableSample(bytes=in_ring, eviction=bench.empty(bucket)),
            arrivals=TableSample(bytes=arrived, eviction=bench.remove(claims, anywhere)),
            tokens=TableSample(bytes=issued, eviction=bench.consume(tokens, anywhere)),
        )


class _Bench:
    """Fills tables and empties them, and looks at the clock."""

    def __init__(self, connection: Connection, dialect: Dialect, seconds: Callable[[], float]) -> None:
        self.connection = connection
        self._dialect = dialect
        self._seconds = seconds

    def fill(self, table: Table, keys: Sequence[bytes], *, label: bytes | None = None) -> int:
        """Insert these keys in batches, as units do; returns the bytes that they take."""
        before = self._dialect.maintenance.bytes_of(self.connection, table)
        own: dict[str, Any] = {"fingerprint": _FINGERPRINT} if "fingerprint" in table.c else {}
        if label is not None:
            self._dialect.insert_all(self.connection, table, [label_row(0)])
        for some in chunks(keys, BATCH):
            rows = [{"key": key, **own} for key in sorted(some)]
            self._dialect.insert_absent(self.connection, table, rows, key=["key"])
        return self._dialect.maintenance.bytes_of(self.connection, table) - before

    def empty(self, bucket: Table) -> float:
        """Rotate a bucket; returns the seconds that it takes."""
        began = self._seconds()
        self._dialect.maintenance.shut(self.connection, bucket, by_rows=False)
        self._dialect.maintenance.empty(self.connection, bucket, by_rows=False)
        self._dialect.insert_all(self.connection, bucket, [label_row(1)])
        return self._seconds() - began

    def remove(self, table: Table, keys: Sequence[bytes]) -> float:
        """Remove claims in portions, as the janitor does; returns the seconds that it takes."""
        began = self._seconds()
        for some in chunks(sorted(keys), PORTION):
            self._dialect.remove(self.connection, [table], some, key="key")
        return self._seconds() - began

    def consume(self, table: Table, keys: Sequence[bytes]) -> float:
        """Consume tokens in batches, as units do; returns the seconds that it takes."""
        began = self._seconds()
        for some in chunks(keys, BATCH):
            self._dialect.consume(self.connection, table, sorted(some), key="key")
        return self._seconds() - began


@contextmanager
def _temporary_tables(connection: Connection, wanted: Sequence[Table]) -> Iterator[None]:
    """Make tables for a while. Where a rollback would take them back that is harmless, and MariaDB has no such thing."""
    metadata = wanted[0].metadata
    try:
        metadata.create_all(connection, tables=wanted)
        yield
    finally:
        with suppress(DBAPIError):  # the error before is the one that counts
            metadata.drop_all(connection, tables=wanted)
