"""`python -m benchmarks.retention.sealed`: whether a denser form of claims pays for buckets that no longer grow.

First it stores ten million claims as the library does: its own statement, in batches of 100, each a transaction. Then it packs
each full bucket into large rows by one statement of SQL, in three forms, and asks all of them for claims that they hold and for
claims that they do not hold. It needs a PostgreSQL (BENCH_DATABASE), makes a database of its own there, and drops it.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Annotated
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine, load, look, versions
from benchmarks.report import WIDE
from benchmarks.retention.findings import middle
from benchmarks.retention.keys import Batch, Keys
from benchmarks.retention.measuring import in_turn
from benchmarks.retention.postgresql import ClaimTarget, PausedClock, shipped
from benchmarks.worker import new_event_loop
from onceonly.assembly import open_database, schemas
from onceonly.model.ring import TIME_BUCKETS, Bucketing
from onceonly.sql.schema import create
from onceonly.sql.store.ring import SqlRing
from onceonly.sql.store.time_buckets import label_row

SERVER = "postgresql://root@127.0.0.1:5432/postgres"
RETENTION = 7 * 86_400 * 1000
"""Milliseconds: the default of the library."""
BATCH = 100
ROW = 8_000
"""Bytes of claims in a row at most: one row fills one page of PostgreSQL."""
SHARED = 3
"""Bytes at the beginning of a key that all claims of a row share, so that they are stored once: 4.6 hours."""

Say = Callable[[str], None]


class Form(Struct, frozen=True, kw_only=True):
    """A denser form: the bytes of a key behind the shared ones, and of the fingerprint."""

    name: str
    key: int
    fingerprint: int

    @property
    def size(self) -> int:
        """Return the bytes of one claim."""
        return self.key + self.fingerprint


FORMS = (
    Form(name="whole key and fingerprint", key=13, fingerprint=8),
    Form(name="whole key", key=13, fingerprint=0),
    Form(name="8 bytes of the key", key=8, fingerprint=0),
)


class SealedSizes(Struct, frozen=True, kw_only=True):
    """Counts of claims: stored at all, and asked for in each round."""

    claims: int
    asked: int
    rounds: int


FULL = SealedSizes(claims=10_000_000, asked=100_000, rounds=5)
QUICK = SealedSizes(claims=1_200_000, asked=50_000, rounds=5)
TINY = SealedSizes(claims=24_000, asked=2_000, rounds=2)


class FormFindings(Struct, kw_only=True):
    """What one form takes. Rates are claims in a second; the library's own form has no sealing."""

    name: str
    table_bytes: int
    index_bytes: int
    seconds: float
    wal: float
    """Bytes of the write-ahead log for each claim."""
    known: list[float] = []
    """Claims in a second that are there, in each round."""
    late: list[float] = []
    """Claims in a second that are not there, and are stored."""
    longest: float = 0.0
    """Seconds to seal the largest bucket."""

    def bytes_each(self, claims: int) -> float:
        """Divide everything by the number of claims."""
        return (self.table_bytes + self.index_bytes) / claims


class SealedFindings(Struct, kw_only=True):
    """One run. The first form is the library's."""

    date: str
    machine: Machine
    versions: dict[str, str]
    claims: int
    buckets: int
    forms: list[FormFindings]


class BucketDatabase:
    """A database of the run's own with the library's tables, and the buckets of a whole retention."""

    def __init__(self, own: asyncpg.Connection, bucketing: Bucketing, statement: str, now: int) -> None:
        self.own, self._bucketing, self._statement = own, bucketing, statement
        newest = bucketing.start(now) - bucketing.width
        self.starts = [newest - back * bucketing.width for back in reversed(range(TIME_BUCKETS))]
        self._like = f"onceonly_claim_{bucketing.bucket(bucketing.start(now)):02}"

    def bucket(self, start: int) -> str:
        """Name the table of a slice."""
        return f"onceonly_claim_{self._bucketing.bucket(start):02}"

    def target(self, start: int) -> ClaimTarget:
        """Return where and how the library claims messages of a slice."""
        table = self.bucket(start)
        return ClaimTarget(table, self._statement.replace(self._like, table), _label(start))

    def keys(self, start: int, claims: int, *, seed: int) -> Keys:
        """Make claims of a slice, so many for all of it."""
        return Keys(start, self._bucketing.width, pace=self._bucketing.width / claims, seed=seed)

    async def open_bucket(self, start: int) -> None:
        """Have the bucket hold this slice."""
        await self.own.execute(f"truncate {self.bucket(start)}")
        await self.own.execute(f"insert into {self.bucket(start)} values ($1::text::uuid, 0)", _label(start))  # noqa: S608 - ours

    async def claim(self, start: int, batches: Sequence[Batch], *, new: bool) -> float:
        """Claim batch by batch, each a transaction; gives the seconds."""
        target = self.target(start)
        parameters = [target.parameters(batch) for batch in batches]
        statement = await self.own.prepare(target.statement)
        begun, found = time.perf_counter(), 0
        for each in parameters:
            found += len(await statement.fetch(*each))
        seconds = time.perf_counter() - begun
        if found != (sum(len(batch.keys) for batch in batches) if new else 0):
            raise RuntimeError(f"{found} claims were new in {target.table}")
        return seconds

    async def remove(self, start: int, batches: Sequence[Batch]) -> None:
        """Remove claims, so that each form is asked for the same late ones."""
        keys = [key.hex() for batch in batches for key in batch.keys]
        await self.own.execute(f"delete from {self.bucket(start)} where key = any($1::text[]::uuid[])", keys)  # noqa: S608 - ours
        await self.settle()

    async def sizes(self, tables: Sequence[str]) -> tuple[int, int]:
        """Return the bytes of tables, and of their indexes."""
        table = await self.own.fetchval("select sum(pg_table_size(t::regclass)) from unnest($1::text[]) t", list(tables))
        index = await self.own.fetchval("select sum(pg_indexes_size(t::regclass)) from unnest($1::text[]) t", list(tables))
        return int(table), int(index)

    async def wal(self) -> int:
        """Read the server's position in its write-ahead log, in bytes; others write there too."""
        return int(await self.own.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    async def settle(self) -> None:
        """Tidy up now, and write out what was written."""
        await self.own.execute("vacuum (analyze)", timeout=3600)
        await self.own.execute("checkpoint", timeout=3600)


class SealedForm:
    """The buckets in one denser form: rows of claims in order, found by the first key of each."""

    def __init__(self, ground: BucketDatabase, form: Form, number: int) -> None:
        self._ground, self.form, self._number = ground, form, number

    def table(self, start: int) -> str:
        """Name the table of a sealed bucket."""
        return f"{self._ground.bucket(start)}_form_{self._number}"

    async def make(self, start: int) -> None:
        """Make a table, and one for claims that come later. A row is neither compressed nor moved out of its page."""
        table = self.table(start)
        await self._ground.own.execute(f"create table {table}(first uuid primary key, claims bytea not null)")
        await self._ground.own.execute(f"alter table {table} alter column claims set storage plain")
        await self._ground.own.execute(f"create table {table}_late (like {self._ground.bucket(start)} including all)")

    async def seal(self, start: int) -> float:
        """Pack a bucket; gives the seconds."""
        claim = f"substr(raw, {SHARED + 1}, {self.form.key})" + (" || int8send(fingerprint)" if self.form.fingerprint else "")
        padding = f"decode(repeat('00', {16 - SHARED - self.form.key}), 'hex')"
        statement = f"""
            insert into {self.table(start)}
            select encode(shared || substr(claims, 1, {self.form.key}) || {padding}, 'hex')::uuid, claims
            from (select shared, string_agg({claim}, ''::bytea order by raw) claims
                  from (select uuid_send(key) raw, fingerprint, substr(uuid_send(key), 1, {SHARED}) shared,
                               (row_number() over (order by key) - 1) / {ROW // self.form.size} number
                        from {self._ground.bucket(start)} where key <> $1::text::uuid) claim
                  group by shared, number) packed"""  # noqa: S608 - names and numbers of ours
        begun = time.perf_counter()
        await self._ground.own.execute(statement, _label(start), timeout=3600)
        return time.perf_counter() - begun

    async def claim(self, start: int, batches: Sequence[Batch], *, new: bool) -> float:
        """Claim in a sealed bucket: what is in its rows is known, all else is stored beside; gives the seconds."""
        table, length = self.table(start), self.form.key
        statement = await self._ground.own.prepare(f"""
            insert into {table}_late
            select asked.key, asked.fingerprint from unnest($1::text[]::uuid[], $2::bigint[]) asked(key, fingerprint)
            where not exists (
                select from (select claims from {table} where first <= asked.key order by first desc limit 1) row
                where position(substr(uuid_send(asked.key), {SHARED + 1}, {length}) in row.claims) > 0)
            on conflict (key) do nothing returning key""")  # noqa: S608 - names and numbers of ours
        bare = ClaimTarget(table, "")
        parameters = [bare.parameters(batch) for batch in batches]
        begun, found = time.perf_counter(), 0
        for each in parameters:
            found += len(await statement.fetch(*each))
        seconds = time.perf_counter() - begun
        if found != (sum(len(batch.keys) for batch in batches) if new else 0):
            raise RuntimeError(f"{found} claims were new in {table}")
        return seconds

    async def remove(self, start: int, batches: Sequence[Batch]) -> None:
        """Remove the claims that came later."""
        await self._ground.own.execute(f"truncate {self.table(start)}_late")
        await self._ground.settle()


async def measure(server_url: str, plan: SealedSizes, say: Say) -> SealedFindings:
    """Store the claims, seal them in each form, then ask for claims in rounds: another form is the first in each."""
    machine = look()
    async with opened(server_url) as ground:
        each = plan.claims // len(ground.starts)
        stored = each // BATCH * BATCH * len(ground.starts)
        asked = ground.starts[len(ground.starts) // 2]
        own, known = await _store(ground, each, asked, plan.asked // BATCH, say)
        sealed = [SealedForm(ground, form, number) for number, form in enumerate(FORMS)]
        found = [own, *[await _seal(ground, form, say, stored) for form in sealed]]
        late = ground.keys(asked, each, seed=99).batches(plan.asked, BATCH)
        askers: list[BucketDatabase | SealedForm] = [ground, *sealed]
        for number in range(plan.rounds):
            for which in in_turn(range(len(found)), number):
                asker = askers[which]
                found[which].known.append(round(_count(known) / await asker.claim(asked, known, new=False), 1))
                found[which].late.append(round(_count(late) / await asker.claim(asked, late, new=True), 1))
                await asker.remove(asked, late)
            say(f"round {number + 1} of {plan.rounds} asked")
        version = str(await ground.own.fetchval("show server_version"))
    machine.load_after = load()
    return SealedFindings(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        versions=versions(PostgreSQL=version),
        claims=stored,
        buckets=len(ground.starts),
        forms=found,
    )


async def _store(  # noqa: PLR0917 - what is stored, and what is told
    ground: BucketDatabase, each: int, asked: int, batches_asked: int, say: Say
) -> tuple[FormFindings, list[Batch]]:
    """Store the claims of every slice. Returns what that took, and a random sample of the batches of slice `asked`."""
    sample: list[Batch] = []
    log, seconds = await ground.wal(), 0.0
    for number, start in enumerate(ground.starts):
        await ground.open_bucket(start)
        batches = ground.keys(start, each, seed=number).batches(each, BATCH)
        seconds += await ground.claim(start, batches, new=True)
        if start == asked:
            sample = Random(number).sample(batches, min(batches_asked, len(batches)))  # noqa: S311 - test data
        say(f"bucket {number + 1} of {len(ground.starts)}: {each:,} claims, {seconds:.0f} s so far")
    log = await ground.wal() - log
    await ground.settle()
    table, index = await ground.sizes([ground.bucket(start) for start in ground.starts])
    stored = each // BATCH * BATCH * len(ground.starts)
    found = FormFindings(
        name="today",
        table_bytes=table,
        index_bytes=index,
        seconds=round(seconds, 1),
        wal=round(log / stored, 1),
    )
    say(f"today: {found.bytes_each(stored):.1f} bytes a claim")
    return found, sample


async def _seal(ground: BucketDatabase, sealed: SealedForm, say: Say, stored: int) -> FormFindings:
    """Pack every bucket, one after another."""
    for start in ground.starts:
        await sealed.make(start)
    log = await ground.wal()
    took = [await sealed.seal(start) for start in ground.starts]
    log = await ground.wal() - log
    await ground.settle()
    table, index = await ground.sizes([sealed.table(start) for start in ground.starts])
    say(f"{sealed.form.name}: sealed in {sum(took):.1f} s")
    return FormFindings(
        name=sealed.form.name,
        table_bytes=table,
        index_bytes=index,
        seconds=round(sum(took), 1),
        wal=round(log / stored, 1),
        longest=round(max(took), 2),
    )


def _count(batches: Sequence[Batch]) -> int:
    return sum(len(batch.keys) for batch in batches)


def _label(start: int) -> str:
    return bytes(label_row(start)["key"]).hex()


@asynccontextmanager
async def opened(server_url: str) -> AsyncIterator[BucketDatabase]:
    """Make a database with the library's tables, and drop it at the end."""
    name = f"onceonly_test_memory_{os.getpid()}_{uuid4().hex[:8]}"
    url = urlsplit(server_url)._replace(path=f"/{name}").geturl()
    server = await asyncpg.connect(server_url)
    try:
        await server.execute(f"create database {name}")
        own = await asyncpg.connect(url)
        try:
            async with open_database(url) as database:
                await create(database, *schemas("store"))
                clock = PausedClock(int(time.time() * 1000))
                bucketing = await SqlRing(database, retention=RETENTION, clock=clock).bucketing()
                statement = await shipped(database, bucketing, clock)
            yield BucketDatabase(own, bucketing, statement, clock.now())
        finally:
            await own.close()
            await server.execute(f"drop database {name} with (force)")
    finally:
        await server.close()


def show(findings: SealedFindings, console: Console | None = None) -> None:
    """Print everything."""
    title = f"{findings.date}, PostgreSQL, {findings.claims:,} claims in {findings.buckets} buckets"
    table = Table(
        "form", "table MB", "index MB", "bytes a claim", "seconds", "longest bucket", "log a claim", "known/s", "late/s"
    )
    table.title = title
    for each in findings.forms:
        numbers = (each.table_bytes / 1e6, each.index_bytes / 1e6, each.bytes_each(findings.claims), each.seconds, each.longest)
        cells = [f"{number:,.1f}" for number in (*numbers, each.wal)]
        table.add_row(each.name, *cells, *(f"{middle(rates):,.0f}" for rates in (each.known, each.late)))
    (console or Console(width=WIDE)).print(table)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="1.2 million claims.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A few thousand claims: the numbers mean nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the claims of a whole retention as they are stored, and in denser forms."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        findings = runner.run(
            measure(os.environ.get("BENCH_DATABASE", SERVER), TINY if tiny else QUICK if quick else FULL, _say)
        )
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())
    else:
        show(findings)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
