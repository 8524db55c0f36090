"""The retention of one endpoint in SQL databases: two in one database, raised and lowered while claims are there."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Connection, MetaData, Table, delete, func, select

from onceonly.model.changed_retention import KnownRetention
from onceonly.model.errors import SchemaMissing, SetupError
from onceonly.model.message import Message
from onceonly.model.ring import Undecidable
from onceonly.model.wording import FOREVER_MS
from onceonly.ports.ring import TimeBucketState
from onceonly.sql.database import Database
from onceonly.sql.schema import check, drop
from onceonly.sql.store import SCHEMA, SqlRetention, SqlRing, SqlStore
from onceonly.sql.store.rings import StoredRings, find_rings
from onceonly.sql.store.tables import THE_RING, tables
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.ring_subject import at
from tests.sql.every_database import emptied
from tests.sql.harness import catalog, opened
from tests.sql.test_ring import found, handled

DAY = 86_400_000
SHORT, LONG = DAY, 30 * DAY
ENDPOINT, OTHER = "shop", "billing"


class Endpoints:
    """Two endpoints of one database, whose clock the test moves, and the janitor of one of them."""

    def __init__(self, database: Database, retention: int) -> None:
        self.database, self.clock, self._retention = database, ManualClock(), retention

    def store(self, endpoint: str = ENDPOINT) -> SqlStore:
        """Open a store, as a process of its own would whose code asks for little."""
        retention, self._retention = self._retention, 1  # the first one decides
        return SqlStore(self.database, endpoint, retention=retention, clock=self.clock)

    def now(self, name: str = "m1", ago: int = 0) -> Message:
        """Return a message that was sent now, or some time ago."""
        return at(self.clock.now() - ago, name)

    async def change(self, kept: int, endpoint: str = ENDPOINT) -> KnownRetention:
        """Change the retention."""
        return await SqlRetention(self.database, endpoint, clock=self.clock).change(kept)

    async def pass_time(self, milliseconds: int, step: int = DAY // 3) -> None:
        """Let time pass, with a janitor of the other endpoint that works whenever something may be due."""
        ring = SqlRing(self.database, OTHER, retention=1, clock=self.clock)
        end = self.clock.now() + milliseconds
        while self.clock.now() < end:
            self.clock.advance(min(step, end - self.clock.now()))
            for bucket in await ring.buckets():
                if bucket.state is TimeBucketState.OLD:
                    await ring.rotate(bucket.number)
            await ring.remove_expired()

    async def reasons(self, asked: Message, endpoint: str = ENDPOINT) -> list[Undecidable]:
        """Return why a message is refused."""
        unit = await self.store(endpoint).begin([asked])
        unit.abandon()
        return [each.reason for each in unit.found.undecidable]

    async def done(self, asked: list[Message], store: SqlStore | None = None) -> int:
        """Count those of these that are known."""
        unit = await (store or self.store()).begin(asked)
        unit.abandon()
        return len(unit.found.done)

    async def claims(self) -> int:
        """Count the claims of all rings, and their labels."""
        rings = (await find_rings(self.database)).rings.values()
        async with self.database.reading() as connection:
            counted = [
                await connection.scalar(select(func.count()).select_from(bucket)) for ring in rings for bucket in ring.buckets
            ]
        return sum(each or 0 for each in counted)


@asynccontextmanager
async def without_rings(place: str) -> AsyncIterator[Database]:
    """Open a database with empty tables, and drop the tables that changes of the retention make: other tests share it."""
    async with emptied(place) as database:
        yield database
        async with database.writing() as connection:
            await connection.run_sync(drop_rings, database.prefix)
            assert await connection.run_sync(names_of_rings, database.prefix) == []


def names_of_rings(connection: Connection, prefix: str) -> list[str]:
    """Find the buckets of all rings but the first, also of those that no row refers to."""
    pattern = re.compile(re.escape(prefix) + r"claim_\d+_\d\d")
    return [name for name in catalog(connection).get_table_names() if pattern.fullmatch(name)]


def drop_rings(connection: Connection, prefix: str) -> None:
    """Drop them, and the rows that refer to them."""
    own = tables(prefix)
    connection.execute(delete(own.retention))
    connection.execute(delete(own.ring).where(own.ring.c.number != THE_RING))
    for name in names_of_rings(connection, prefix):
        Table(name, MetaData()).drop(connection)


@pytest.mark.slow
async def test_two_endpoints_of_a_database_keep_claims_for_times_of_their_own(place: str) -> None:
    """The short one costs the space of its own time: after two days the claims of a thousand messages are gone."""
    async with without_rings(place) as database:
        both = Endpoints(database, LONG)
        await both.store(OTHER).prepare()
        await both.change(SHORT)
        await both.pass_time(31 * DAY, step=10 * DAY)  # the ring that both shared is over
        await both.pass_time(SHORT)
        await handled(both.store(), *(both.now(f"s{number}") for number in range(100)))
        kept, sent = both.now("kept"), both.now("s1")
        await handled(both.store(OTHER), kept)
        before = await both.claims()
        await both.pass_time(2 * SHORT)
        assert before - await both.claims() == 100
        assert await both.reasons(sent) == [Undecidable.TOO_OLD]
        assert await found(both.store(OTHER), kept) == ([], [], ["kept"])


@pytest.mark.slow
async def test_raising_loses_no_claim_that_is_known(place: str) -> None:
    """Neither one made before the change, nor one in between, nor one after it: each is known for the new retention."""
    async with without_rings(place) as database:
        both = Endpoints(database, SHORT)
        await handled(both.store(), both.now("old"))
        old = both.now("old")
        await both.pass_time(SHORT - 1000)
        assert (await both.change(LONG)).latest == LONG
        asked = [old]
        for number in range(4):
            asked.append(both.now(f"m{number}"))
            assert await handled(both.store(), asked[-1]) == (f"m{number}",)
            await both.pass_time(SHORT // 3)
        await both.pass_time(20 * DAY, step=5 * DAY)
        assert await both.done(asked) == len(asked)


async def test_lowering_forgets_only_what_is_older(place: str) -> None:
    """A claim that is younger than the new retention stays; older ones go, once their slice is over."""
    async with without_rings(place) as database:
        both = Endpoints(database, LONG)
        await handled(both.store(), both.now("old"))
        old = both.now("old")
        await both.pass_time(20 * DAY, step=5 * DAY)
        young = both.now("young")
        await handled(both.store(), young)
        await both.change(10 * DAY)
        await both.pass_time(9 * DAY, step=DAY)
        assert await found(both.store(), young) == ([], [], ["young"])
        await both.pass_time(5 * DAY, step=DAY)
        assert await both.reasons(old) == [Undecidable.TOO_OLD]


@pytest.mark.slow
async def test_a_change_leaves_other_endpoints_as_they_were(place: str) -> None:
    """They shared a ring; each keeps what it knew, for the time that it had."""
    async with without_rings(place) as database:
        both = Endpoints(database, 7 * DAY)
        await handled(both.store(OTHER), both.now("before"))
        before = both.now("before")
        await both.change(SHORT)
        await both.pass_time(6 * DAY, step=2 * DAY)
        after = both.now("after")
        assert await handled(both.store(OTHER), after) == ("after",)
        assert await found(both.store(OTHER), before) == ([], [], ["before"])
        await both.pass_time(6 * DAY, step=2 * DAY)
        assert await found(both.store(OTHER), after) == ([], [], ["after"])
        retention = await SqlRetention(database, OTHER, clock=both.clock).find()
        assert retention is not None
        assert retention.latest == 7 * DAY


async def test_a_process_that_does_not_know_of_a_change_claims_in_the_new_ring(place: str) -> None:
    """Its ring has no label for the message, so it rolls back and reads the rings again: of two copies one is handled."""
    async with without_rings(place) as database:
        both = Endpoints(database, SHORT)
        late, fresh = both.store(), both.store()
        await late.prepare()
        known = await both.change(LONG)
        both.clock.advance(known.since - both.clock.now())
        asked = both.now("m1")
        assert await handled(fresh, asked) == ("m1",)
        assert await handled(late, asked) == ()
        assert await found(late, asked) == ([], [], ["m1"])


@pytest.mark.parametrize("kept", [DAY, 30 * DAY])
async def test_no_closed_ring_gets_a_label_that_a_process_before_the_change_claims_by(place: str, kept: int) -> None:
    """It has claimed nothing since, and buckets of the closed ring were rotated meanwhile. So it reads the rings."""
    async with without_rings(place) as database:
        both = Endpoints(database, 12 * DAY)
        late = both.store()
        await late.prepare()
        await both.change(kept)
        await both.pass_time(6 * DAY, step=DAY)
        asked = both.now("m1")
        assert await handled(both.store(), asked) == ("m1",)
        if kept > 12 * DAY:  # its last slices are kept as long as the new ones
            await both.pass_time(20 * DAY, step=5 * DAY)
        assert await found(late, asked) == ([], [], ["m1"])


async def test_a_ring_that_closes_while_a_process_looks_refuses_nothing_of_the_next_one(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change comes after the process has read the rings, and its bucket of the closed ring is rotated at once."""
    async with without_rings(place) as database:
        both = Endpoints(database, LONG)
        store = both.store()
        await store.prepare()
        both.clock.advance(LONG)  # and no janitor is at work
        asked = at(both.clock.now() + LONG // 12, "m1")

        async def rings_before(database: Database) -> StoredRings:
            read = await find_rings(database)
            monkeypatch.undo()
            await both.change(SHORT)
            await both.pass_time(1)
            return read

        monkeypatch.setattr("onceonly.sql.store.store.find_rings", rings_before)
        unit = await store.begin([asked])
        unit.abandon()
        assert [each.reason for each in unit.found.undecidable] == [Undecidable.SLOT_NOT_READY]


async def test_a_second_raise_holds_for_what_is_in_the_ring_before_the_last(place: str) -> None:
    """A ring that was closed for two days is kept for thirty as well."""
    async with without_rings(place) as database:
        both = Endpoints(database, SHORT)
        asked = both.now("old")
        await handled(both.store(), asked)
        await both.change(2 * DAY)
        await both.change(LONG)
        await both.pass_time(10 * DAY, step=DAY)
        assert await both.done([asked]) == 1


async def test_a_raise_after_a_rotation_that_was_interrupted_brings_no_slice_back(place: str) -> None:
    """The janitor died when the bucket was empty and had no label. What it held is behind the horizon for good."""
    async with without_rings(place) as database:
        both = Endpoints(database, 12 * DAY)
        asked = both.now("old")
        await handled(both.store(), asked)
        both.clock.advance(13 * DAY)
        (ring,) = (await find_rings(database)).rings.values()
        async with database.writing() as connection:
            await connection.execute(delete(ring.bucket(ring.bucketing.start(asked.instant))))
        await both.change(LONG)
        await both.pass_time(DAY, step=DAY)
        assert await both.reasons(asked) == [Undecidable.TOO_OLD]


@pytest.mark.slow
async def test_a_process_and_a_change_never_claim_one_message_twice(place: str) -> None:
    """Stores that were opened before, between and after many changes agree about each message."""
    async with without_rings(place) as database:
        both = Endpoints(database, SHORT)
        stores = [both.store()]
        await stores[0].prepare()
        asked: list[Message] = []
        for kept in (LONG, 2 * DAY, 10 * DAY, FOREVER_MS):
            await both.change(kept)
            stores.append(both.store())
            for number in range(3):
                await both.pass_time(DAY // 3)
                asked.append(both.now(f"{kept % 97}.{number}"))
                names = [name for store in stores for name in await handled(store, asked[-1])]
                assert len(names) == 1
        recent = [each for each in asked if both.clock.now() - each.instant < DAY]
        for store in stores:
            assert await both.done(recent, store) == len(recent) > 0


async def test_what_is_kept_forever_is_never_forgotten(place: str) -> None:
    """Its buckets are never rotated, and no copy is behind the horizon."""
    async with without_rings(place) as database:
        both = Endpoints(database, FOREVER_MS)
        asked = both.now()
        await handled(both.store(), asked)
        both.clock.advance(10_000 * DAY)
        ring = SqlRing(database, ENDPOINT, clock=both.clock)
        assert {bucket.state for bucket in await ring.buckets()} == {TimeBucketState.CURRENT}
        assert await found(both.store(), asked) == ([], [], ["m1"])
        assert await handled(both.store(), both.now("m2")) == ("m2",)


async def test_what_is_kept_forever_stays_so(place: str) -> None:
    """Its buckets are for all time: a shorter retention would never hold, so it is refused. The same one again is harmless."""
    async with without_rings(place) as database:
        both = Endpoints(database, LONG)
        await handled(both.store(), both.now())
        await both.change(FOREVER_MS)
        with pytest.raises(SetupError, match=r"kept forever.*\?prefix="):
            await both.change(LONG)
        again = await both.change(FOREVER_MS)
        assert FOREVER_MS in (again.kept, again.next)
        assert await handled(both.store(), both.now("m2")) == ("m2",)


async def test_claims_without_an_instant_are_kept_for_the_endpoints_time(place: str) -> None:
    """By their arrival."""
    async with without_rings(place) as database:
        both = Endpoints(database, LONG)
        await both.store(OTHER).prepare()
        await both.change(SHORT)
        await handled(both.store(), at(0, "short"))
        await handled(both.store(OTHER), at(0, "long"))
        await both.pass_time(2 * DAY, step=DAY)
        assert await found(both.store(), at(0, "short")) == (["short"], [], [])
        assert await found(both.store(OTHER), at(0, "long")) == ([], [], ["long"])


async def test_the_code_asks_for_more_than_is_stored(place: str) -> None:
    """A start is refused, with the command that raises it; less than is stored is fine, and both are told."""
    async with without_rings(place) as database:
        await Endpoints(database, SHORT).store().prepare()
        with pytest.raises(SetupError, match=r"retention is 30 d, but .*'shop' are kept for 1 d.*onceonly retention set"):
            await Endpoints(database, LONG).store().prepare()
        both = Endpoints(database, SHORT)
        await both.change(LONG)
        await Endpoints(database, LONG).store().prepare()
        known = await SqlRetention(database, ENDPOINT, clock=both.clock).find()
        assert known is not None
        assert known == KnownRetention(kept=LONG)  # a longer one holds at once, also for what is there
        lower = await SqlRetention(database, OTHER, clock=both.clock).change(SHORT // 2)
        assert (lower.kept, lower.next) == (LONG, SHORT // 2)
        assert lower.since > both.clock.now()


async def test_the_same_again_changes_nothing(place: str) -> None:
    """No ring is made for it."""
    async with without_rings(place) as database:
        both = Endpoints(database, SHORT)
        await both.store().prepare()
        await both.change(LONG)
        rings = await find_rings(database)
        await both.change(LONG)
        assert await find_rings(database) == rings


async def test_changes_at_once_are_made_one_after_the_other(place: str) -> None:
    """Or refused; none takes the ring of another one."""
    async with without_rings(place) as database, opened(place) as second:
        both = Endpoints(database, SHORT)
        await both.store().prepare()
        changing = [
            SqlRetention(each, name, clock=both.clock).change(kept)
            for each, name, kept in ((database, ENDPOINT, LONG), (second, OTHER, 2 * LONG))
        ]
        ended = await asyncio.gather(*changing, return_exceptions=True)
        assert any(isinstance(each, KnownRetention) for each in ended)
        found = await find_rings(database)
        for each, name, kept in zip(ended, (ENDPOINT, OTHER), (LONG, 2 * LONG), strict=True):
            routes = found.of(name)
            assert routes is not None
            assert (routes.latest.ring.bucketing.retention == kept) is isinstance(each, KnownRetention)


async def test_the_tables_of_all_rings_are_checked_and_dropped(database: Database) -> None:
    """A database whose second ring lost a bucket would handle messages twice."""
    both = Endpoints(database, SHORT)
    await both.store().prepare()
    await both.change(LONG)
    ring = (await find_rings(database)).rings[2]
    async with database.writing() as connection:
        await connection.run_sync(ring.buckets[3].drop)
    with pytest.raises(SchemaMissing, match="claim_2_03"):
        await check(database, SCHEMA)
    await drop(database, SCHEMA)
    async with database.reading() as connection:
        names = await connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE name LIKE '%claim%'")
        assert names.all() == []
