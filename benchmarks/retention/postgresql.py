"""PostgreSQL: the statement that the library sends, on a connection of the driver's, against a classic table beside it."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import Connection, event

from benchmarks.retention.keys import Batch, Keys
from benchmarks.stages.database import BackendDatabase as Scratch
from benchmarks.stages.database import opened as opened_scratch
from onceonly.assembly import open_database, schemas
from onceonly.model.ring import Bucketing
from onceonly.ports.ring import Rotation
from onceonly.sql.database import Database
from onceonly.sql.schema import create
from onceonly.sql.store.ring import SqlRing
from onceonly.sql.store.tables import tables
from onceonly.sql.store.time_buckets import label_row

CLASSIC = (
    "create table {0}(message_id text primary key, handled_at timestamptz not null default now())",
    "create index {0}_handled_at on {0}(handled_at)",
)
CLAIM_CLASSIC = "insert into {0}(message_id) select * from unnest($1::text[]) on conflict do nothing returning message_id"
DELETE_CLASSIC = """delete from {0} where ctid = any(array(
    select ctid from {0} where handled_at < $1 order by handled_at limit 10000 for update skip locked))"""


class ClaimTarget(NamedTuple):
    """One table to claim into: how, with the label of its bucket, empty where none is offered."""

    table: str
    statement: str
    label: str = ""

    def parameters(self, batch: Batch) -> tuple[list[Any], ...]:
        """Return a batch as the driver takes it."""
        if "classic" in self.table:
            return (batch.texts,)
        keys = [key.hex() for key in batch.keys]
        prints = [int.from_bytes(each, "big", signed=True) for each in batch.fingerprints]
        return ([self.label, *keys], [0, *prints]) if self.label else (keys, prints)


class PausedClock:
    """A clock that stands until it is told to go on."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now(self) -> int:
        """Return the milliseconds since 1970."""
        return self._now

    def go_on(self, milliseconds: int) -> None:
        """Let so much time pass."""
        self._now += milliseconds


class RetentionDatabase:
    """A database of the run's own with three rings, of which one gets full, and two classic tables."""

    def __init__(self, scratch: Scratch, database: Database, bucketing: Bucketing, clock: PausedClock, statement: str) -> None:  # noqa: PLR0917 - what `opened` made
        self._scratch, self.own, self.url = scratch, scratch.own, scratch.url
        self.bucketing, self.clock = bucketing, clock
        self.ring = SqlRing(database, retention=bucketing.retention, clock=clock)
        start = bucketing.start(clock.now())
        self.start = start
        label = bytes(label_row(start)["key"]).hex()
        number = bucketing.bucket(start)
        self.full = ClaimTarget(f"full_claim_{number:02}", statement, label)
        self.empty = ClaimTarget("lone", statement.replace(self.full.table, "lone"), label)
        self.bare = ClaimTarget("bare", statement.replace(self.full.table, "bare"))
        self.classic = ClaimTarget("classic", CLAIM_CLASSIC.format("classic"))
        self.classic_empty = ClaimTarget("classic_empty", CLAIM_CLASSIC.format("classic_empty"))
        self._pace = 1.0

    async def make(self) -> None:
        """Make what the library's schema has not made."""
        for table in ("lone", "bare"):
            await self.own.execute(f"create table {table} (like {self.full.table} including all)")
        for table in ("classic", "classic_empty"):
            for statement in CLASSIC:
                await self.own.execute(statement.format(table))

    async def fill(self, claims: int) -> None:
        """Fill the buckets of the slices before this one in the order of time, and the classic table as far back."""
        slices = self.bucketing.full
        self._pace = self.bucketing.retention / claims
        for back in range(1, slices + 1):
            await self.fill_slice(self.start - back * self.bucketing.width, claims // slices)
        first, width = self.start - slices * self.bucketing.width, self.bucketing.width
        await self.own.execute(
            "insert into classic(message_id, handled_at) select gen_random_uuid()::text,"  # noqa: S608 - numbers
            f" to_timestamp(({first} + n::numeric * {slices * width} / {claims}) / 1000) from generate_series(1, {claims}) n",
            timeout=3600,
        )
        await self.settle()

    def keys(self, *, seed: int) -> Keys:
        """Make claims of this slice that come as often as those that the tables were filled with."""
        return Keys(self.start, self.bucketing.width, pace=self._pace, seed=seed)

    def places(self) -> dict[str, ClaimTarget]:
        """Return the tables to claim into, by the names of what is found."""
        return {name: getattr(self, name) for name in ("full", "empty", "bare", "classic", "classic_empty")}

    async def fill_slice(self, start: int, claims: int, *, jitter: int = 1) -> None:
        """Fill the bucket of a slice; messages overtake each other by `jitter` milliseconds at most."""
        instant = f"({start} + n::bigint * {self.bucketing.width - 1} / {claims})"
        order = f"generate_series(1, {claims}) n order by {instant} + random() * {jitter}"
        table = f"full_claim_{self.bucketing.bucket(start):02}"
        await self.own.execute(f"insert into {table} {_claims(instant, order)} on conflict do nothing", timeout=3600)

    async def settle(self) -> None:
        """Tidy up now, and write out what was written, and not while something is measured."""
        await self.own.execute("vacuum (analyze)", timeout=3600)
        await self.write_out()

    async def write_out(self) -> None:
        """Have the server write out all pages, so that no table is measured while those of the one before are written."""
        await self.own.execute("checkpoint", timeout=3600)

    async def size(self, *names: str) -> float:
        """Return the bytes for each row of tables, with their indexes."""
        sizes = [await self.own.fetchval("select pg_total_relation_size($1::text::regclass)", name) for name in names]
        rows = [await self.own.fetchval(f"select count(*) from {name}") for name in names]  # noqa: S608 - names of ours
        return sum(sizes) / sum(rows)

    async def sizes(self, claims: int) -> tuple[float, float]:
        """Return the bytes of a claim in order, and shuffled within ten minutes, in a table of so many."""
        found = []
        for jitter in (1, 600_000):
            await self.own.execute("truncate lone")
            instant = f"({self.start} + n::bigint * {self.bucketing.width - 1} / {claims})"
            order = f"generate_series(1, {claims}) n order by {instant} + random() * {jitter}"
            await self.own.execute(f"insert into lone {_claims(instant, order)}", timeout=3600)
            found.append(await self.size("lone"))
        return found[0], found[1]

    async def clear(self) -> None:
        """Empty what shall be empty; the label stays in its bucket."""
        await self.own.execute("truncate lone, bare, classic_empty")
        await self.own.execute("insert into lone values ($1::text::uuid, 0)", self.empty.label)

    async def claim(self, place: ClaimTarget, batches: Sequence[Batch]) -> tuple[float, float]:
        """Claim batch by batch, each a transaction; gives claims a second, and bytes of log for each."""
        parameters = [place.parameters(batch) for batch in batches]
        statement = await self.own.prepare(place.statement)
        log, begun = await self._scratch.wal(), time.perf_counter()
        new = 0
        for each in parameters:
            new += len(await statement.fetch(*each))
        seconds = time.perf_counter() - begun
        claims = sum(len(batch.keys) for batch in batches)
        if new != claims:
            raise RuntimeError(f"{new} of {claims} claims were new in {place.table}")
        return claims / seconds, (await self._scratch.wal() - log) / claims

    async def rotate_oldest(self, claims: int) -> "BackgroundWork":
        """Prepare the rotation of the oldest bucket, filled up to so many claims."""
        self.clock.go_on(self.bucketing.width)
        oldest = min((bucket for bucket in await self.ring.buckets() if bucket.start), key=lambda bucket: bucket.start)
        table = f"full_claim_{oldest.number:02}"
        there = await self.own.fetchval(f"select count(*) from {table}")  # noqa: S608 - a name of ours
        if there < claims:
            await self.fill_slice(oldest.start, claims - there)
        await self.settle()

        async def work() -> None:
            while (found := await self.ring.rotate(oldest.number)) is Rotation.BUSY:
                pass
            if found is not Rotation.ROTATED:
                raise RuntimeError(f"bucket {oldest.number} was not rotated: {found.value}")

        return BackgroundWork(work, table)

    async def no_work(self) -> "BackgroundWork":
        """Prepare a control: the same preparation as for a rotation, then nothing."""
        await self.settle()

        async def work() -> None:
            pass

        return BackgroundWork(work, self.full.table)

    async def delete_oldest(self, claims: int) -> "BackgroundWork":
        """Prepare the deletion of the oldest rows of the classic table, ten thousand at a time."""
        await self.settle()
        until = await self.own.fetchval(
            "select handled_at from classic order by handled_at offset $1 limit 1", claims, timeout=600
        )

        async def work() -> None:
            while await self.own.execute(DELETE_CLASSIC.format("classic"), until, timeout=600) != "DELETE 0":
                pass

        return BackgroundWork(work, "classic")

    async def dead_rows(self, table: str) -> int:
        """Read how many dead rows a table has; those of running transactions are reported late, so the reporting is forced."""
        await self.own.execute("select pg_stat_force_next_flush()")
        return int(await self.own.fetchval("select n_dead_tup from pg_stat_user_tables where relname = $1", table) or 0)

    async def connect(self) -> asyncpg.Connection:
        """Open one more connection."""
        return await asyncpg.connect(self.url)

    async def version(self) -> str:
        """Name the server's version."""
        return await self._scratch.version()


class BackgroundWork(NamedTuple):
    """Something to do while others claim, and the table that it empties."""

    do: Any
    table: str


@asynccontextmanager
async def opened(server_url: str, retention: int) -> AsyncIterator[RetentionDatabase]:
    """Make a database, and drop it at the end."""
    async with AsyncExitStack() as stack:
        scratch = await stack.enter_async_context(opened_scratch(server_url))
        url = scratch.url.replace("postgresql+asyncpg://", "postgresql://")
        database = await stack.enter_async_context(open_database(f"{url}?prefix=full_"))
        await create(database, *schemas("store"))
        clock = PausedClock(int(time.time() * 1000))
        ring = SqlRing(database, retention=retention, clock=clock)
        bucketing = await ring.bucketing()
        ground = RetentionDatabase(scratch, database, bucketing, clock, await shipped(database, bucketing, clock))
        await ground.make()
        yield ground


async def shipped(database: Database, bucketing: Bucketing, clock: PausedClock) -> str:
    """Listen to the library claiming two messages, and give the statement that it sends."""
    start = bucketing.start(clock.now())
    bucket = tables(database.prefix, database.schema).buckets[bucketing.bucket(start)]
    batch = Keys(start, bucketing.width, seed=0).batches(2, 2)[0]
    rows = [{"key": key, "fingerprint": each} for key, each in zip(batch.keys, batch.fingerprints, strict=True)]
    heard: list[str] = []

    def hear(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        heard.append(statement)

    def claim(connection: Connection) -> int:
        return len(database.dialect.insert_behind(connection, bucket, label_row(start), rows, key="key") or ())

    event.listen(database.engine.sync_engine, "before_cursor_execute", hear)
    try:
        async with database.writing() as connection:
            if await connection.run_sync(claim) != len(rows):
                raise RuntimeError(f"{bucket.name} does not hold the slice of now")
    finally:
        event.remove(database.engine.sync_engine, "before_cursor_execute", hear)
    return next(statement for statement in heard if statement.startswith("INSERT"))


def _claims(instant: str, rows: str) -> str:
    """Write a SELECT of claims: keys that begin with an instant, and end as a hash does."""
    key = f"lpad(to_hex({instant}::bigint), 12, '0') || substr(md5(n::text || random()::text), 1, 20)"
    return f"select ({key})::uuid, n from {rows}"  # noqa: S608 - numbers
