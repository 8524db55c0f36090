"""The ring in SQL databases, beyond what every ring promises: upgrades, settings, statements, and adapters that are wrong."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, update

from onceonly.model.errors import SetupError
from onceonly.model.record import Record
from onceonly.model.ring import label
from onceonly.ports.ring import Rotation, TimeBucketState
from onceonly.sql.database import Database
from onceonly.sql.database_clock import database_now
from onceonly.sql.store import ClaimMode, SqlRing, SqlStore
from onceonly.sql.store.tables import tables
from onceonly_conformance.ring_subject import RETENTION_MS, WIDTH_MS, at, name_of
from tests.log_events import events
from tests.sql.every_database import emptied
from tests.sql.harness import ONE_EFFECT, counted, opened, statements

DAY = 86_400_000
BEYOND_THE_FIRST_DAY = DAY * 5 // 4
"""After an upgrade's first day, and before the end of the slices that are made ahead."""


async def now_in(database: Database) -> int:
    """Read the database's clock."""
    async with database.reading() as connection:
        return await connection.run_sync(database_now)


def own(database: Database) -> Any:
    """Return the tables."""
    return tables(database.prefix, database.schema)


async def handled(store: SqlStore, *asked: Any, effects: bool = False) -> tuple[str, ...]:
    """Handle what is new; gives the names."""
    unit = await store.begin(asked)
    await unit.commit([Record(each.identity, ONE_EFFECT if effects else ()) for each in unit.found.new])
    return tuple(name_of(each.identity) for each in unit.found.new)


async def found(store: SqlStore, *asked: Any) -> tuple[list[str], list[str], list[str]]:
    """Tell what is new, pending and done."""
    unit = await store.begin(asked)
    unit.abandon()
    new, pending, done = (
        [name_of(each.identity) for each in some] for some in (unit.found.new, unit.found.pending, unit.found.done)
    )
    return new, pending, done


async def test_claims_arrive_by_the_databases_own_clock(place: str) -> None:
    """Whatever the process thinks the time is: a test's clock is years behind."""
    async with emptied(place) as database:
        before = await now_in(database)
        await handled(SqlStore(database, "shop"), at(0))
        async with database.reading() as connection:
            (arrived,) = (await connection.scalars(select(own(database).claims.c.arrived_at))).all()
        assert before <= arrived <= await now_in(database)


async def test_the_databases_clock_decides_about_buckets(place: str) -> None:
    """A message of now is claimed in its bucket, which is in use."""
    async with emptied(place) as database:
        now = await now_in(database)
        assert await handled(SqlStore(database, "shop"), at(now)) == ("m1",)
        assert await counted_in_buckets(database) == 1
        ring = SqlRing(database)
        assert {bucket.state for bucket in await ring.buckets()} == {TimeBucketState.CURRENT}
        assert abs(await ring.now() - now) < 60_000


async def test_what_another_store_remembers_for_is_in_no_bucket_and_never_expires(place: str) -> None:
    """Its claims go with their records; time does not remove them."""
    async with emptied(place) as database:
        now = await now_in(database)
        store = SqlStore(database, "shop", claim_mode=ClaimMode.UNTIL_FORGOTTEN)
        await handled(store, at(now), effects=True)
        await make_older(database, 1000 * DAY)
        assert await SqlRing(database).remove_expired() == 0
        assert await found(store, at(now)) == ([], ["m1"], [])
        await store.forget([Record(at(now).identity, ONE_EFFECT)])
        assert await found(store, at(now)) == (["m1"], [], [])


async def test_a_longer_retention_than_was_decided_is_refused(place: str) -> None:
    """Who comes first decides; less is fine, for more was promised."""
    async with emptied(place) as database:
        await SqlStore(database, "first", retention=RETENTION_MS).prepare()
        await SqlStore(database, "less", retention=RETENTION_MS - 1).prepare()
        with pytest.raises(SetupError, match=r"is 1 d, but the claims of endpoint 'more' are kept for 12 s.*retention set"):
            await SqlStore(database, "more", retention=DAY).prepare()
        assert (await SqlRing(database, retention=RETENTION_MS).bucketing()).width == WIDTH_MS


async def test_several_who_come_first_agree(place: str) -> None:
    """One decides, and labels the buckets; the others find it decided."""
    async with emptied(place) as database, opened(place) as other:
        found = await asyncio.gather(*(SqlRing(each).bucketing() for each in (database, other) * 2))
        assert len(set(found)) == 1
        assert [bucket.state for bucket in await SqlRing(other).buckets()] == [TimeBucketState.CURRENT] * 16


async def test_a_batch_costs_one_statement_for_each_bucket(place: str) -> None:
    """And one for all messages without an instant, before them: all units take them in one order."""
    async with emptied(place) as database:
        now, store = await now_in(database), SqlStore(database, "shop", retention=100 * DAY)
        await store.prepare()
        bucketing = await SqlRing(database).bucketing()
        here = bucketing.start(now)
        asked = [at(0, "plain"), at(0, "plain too")]
        asked += [at(here - number * bucketing.width, f"m{number}-{index}") for number in (1, 0, 2) for index in range(40)]
        with statements(database) as heard:
            unit = await store.begin(asked)
        unit.abandon()
        claims = [words for words in heard if words.startswith("INSERT")]
        assert len(unit.found.new) == 122
        assert len(claims) == 4
        if database.dialect.name != "mysql":  # there the third word is INTO
            names = [own(database).buckets[bucketing.bucket(here - number * bucketing.width)].name for number in (2, 1, 0)]
            assert [words.split()[-1] for words in claims] == [own(database).claims.name, *names]


async def test_a_relay_learns_the_fingerprints_of_what_the_store_will_forget(place: str) -> None:
    """Another store knows these messages afterwards, and compares bodies."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop", claim_mode=ClaimMode.UNTIL_FORGOTTEN)
        await handled(store, at(0, "a", b"one"), at(0, "b", b"two"), effects=True)
        taken = await store.take(1 << 52, 10, lease=1)
        assert {each.identity.id: each.fingerprint for each in taken} == {
            "a": at(0, "a", b"one").fingerprint,
            "b": at(0, "b", b"two").fingerprint,
        }


async def test_copies_in_a_bucket_cost_one_read_more(place: str) -> None:
    """Fingerprints and records together."""
    async with emptied(place) as database:
        now, store = await now_in(database), SqlStore(database, "shop")
        asked = [at(now, f"m{number}") for number in range(20)]
        await handled(store, *asked, effects=True)
        with statements(database) as heard:
            unit = await store.begin(asked)
        unit.abandon()
        assert len(unit.found.pending) == 20
        assert len([words for words in heard if words.startswith("SELECT")]) == 1


async def test_a_bucket_that_lost_its_label_makes_its_messages_wait_and_is_rotated(place: str) -> None:
    """As when its rotation is interrupted in MariaDB: its claims are no slice's, until it is rotated again."""
    async with emptied(place) as database:
        store, ring = SqlStore(database, "shop", retention=RETENTION_MS), SqlRing(database, retention=RETENTION_MS)
        bucketing, now = await ring.bucketing(), await ring.now()
        old = now - 13 * WIDTH_MS  # no bucket is for it, but this one was
        number = bucketing.bucket(old)
        bucket = own(database).buckets[number]
        async with database.writing() as connection:
            await connection.execute(update(bucket).values({bucket.c.key: label(bucketing.start(old))[:6] + b"\1" * 10}))
        unit = await store.begin([at(bucketing.wanted(number, await ring.now()))])
        unit.abandon()
        assert [each.reason.name for each in unit.found.undecidable] == ["SLOT_NOT_READY"]
        assert (await ring.buckets())[number].state is TimeBucketState.UNLABELLED
        await clock_says(ring, old + WIDTH_MS + RETENTION_MS)
        assert await ring.rotate(number) is Rotation.ROTATED


async def test_a_lost_row_is_restored_from_the_labels(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """Copies of messages are known as before, although the endpoint that starts asks for less. One label may be gone too."""
    async with emptied(place) as database:
        before = await SqlRing(database, retention=RETENTION_MS).bucketing()
        store = SqlStore(database, "shop", retention=RETENTION_MS)
        instant = await now_in(database)
        await handled(store, at(instant))
        async with database.writing() as connection:
            await connection.execute(own(database).ring.delete())
            other = own(database).buckets[before.bucket(instant + 2 * before.width)]
            await connection.execute(other.delete())
        with caplog.at_level("WARNING"):
            assert await SqlRing(database, retention=RETENTION_MS // 2).bucketing() == before
        assert events(caplog.records).count("ring restored from its labels") == 1
        assert await found(SqlStore(database, "shop", retention=RETENTION_MS), at(instant)) == ([], [], [name_of(at(instant))])
        states = {bucket.state for bucket in await SqlRing(database, retention=RETENTION_MS).buckets()}
        assert TimeBucketState.UNLABELLED not in states


async def test_a_lost_row_that_no_label_shows_is_an_error_with_its_fix(place: str) -> None:
    """Cutting time anew would look for claims in the wrong buckets."""
    async with emptied(place) as database:
        await SqlRing(database, retention=RETENTION_MS).bucketing()
        async with database.writing() as connection:
            await connection.execute(own(database).ring.delete())
            for bucket in own(database).buckets[1:]:
                await connection.execute(bucket.delete())
        with pytest.raises(SetupError, match=r"INSERT INTO \w*ring .*retention of the endpoint"):
            await SqlRing(database, retention=RETENTION_MS).bucketing()


async def clock_says(ring: SqlRing, instant: int) -> None:
    """Wait until the database's clock says so, a second or two."""
    while await ring.now() <= instant:  # noqa: ASYNC110 - it rings no bell
        await asyncio.sleep(0.1)


async def counted_in_buckets(database: Database) -> int:
    """Count the claims in all buckets."""
    names = [table.name.removeprefix(database.prefix) for table in own(database).buckets]
    return sum([await counted(database, name) for name in names]) - len(names)


async def make_older(database: Database, milliseconds: int) -> None:
    """Have all claims outside of the ring arrive so much earlier, but for those that never expire."""
    claims = own(database).claims
    async with database.writing() as connection:
        aged = update(claims).where(claims.c.arrived_at < 1 << 60)
        await connection.execute(aged.values(arrived_at=claims.c.arrived_at - milliseconds))
