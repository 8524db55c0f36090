"""Bounded looks at queues, records, dead letters and claims: the same answers on every SQL database."""

import pytest
from sqlalchemy import text

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import QueueMissing
from onceonly.model.message import Send
from onceonly.model.record import Record
from onceonly.ports.measurements import AgedCount, EstimatesClaims, MeasuresLetters, MeasuresQueue, MeasuresRecords, QueueSample
from onceonly.ports.transport import Topology
from onceonly.sql.database import Database
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.queue import SqlTransport
from onceonly.sql.schema import create
from onceonly.sql.store import SqlDeadLetters, SqlRing, SqlStore
from onceonly_conformance.clock import START, ManualClock
from tests.sql.emptying import empty
from tests.sql.every_database import emptied
from tests.sql.harness import ONE_EFFECT, message, messages
from tests.sql.test_queue import plan, recorded

LIMIT = 3
CLAIMS = 50


async def queue_in(database: Database, clock: ManualClock) -> SqlTransport:
    """Open an empty queue that is not declared."""
    await create(database, QUEUE)
    await empty(database, QUEUE.tables(database.prefix, database.schema).sorted_tables)
    return SqlTransport(database, "shop", clock=clock)


async def test_a_queue_is_counted_up_to_the_limit(place: str) -> None:
    """Waiting, held and delayed, and for how long the oldest has been due."""
    clock = ManualClock()
    async with emptied(place) as database:
        queue = await queue_in(database, clock)
        assert isinstance(queue, MeasuresQueue)
        with pytest.raises(QueueMissing):
            await queue.measure_queue("shop", LIMIT)
        await queue.declare([Topology(endpoint="shop")])
        assert await queue.measure_queue("shop", LIMIT) == QueueSample(waiting=0, held=0, delayed=0, oldest=0)
        await queue.send(
            [Send(message=message("now"), to="shop"), Send(message=message("later"), to="shop", due=START + 90_000)]
        )
        clock.advance(2000)
        assert await queue.measure_queue("shop", LIMIT) == QueueSample(waiting=1, held=0, delayed=1, oldest=2000)
        await queue.receive(1, 0)
        assert await queue.measure_queue("shop", LIMIT) == QueueSample(waiting=0, held=1, delayed=1, oldest=0)
        await queue.send([Send(message=message(f"m{number}"), to="shop") for number in range(LIMIT + 2)])
        assert (await queue.measure_queue("shop", LIMIT)).waiting == LIMIT


async def test_records_are_counted_up_to_the_limit(place: str) -> None:
    """Those of this endpoint, with the instant of the oldest."""
    async with emptied(place) as database:
        store, other = SqlStore(database, "shop"), SqlStore(database, "other")
        assert isinstance(store, MeasuresRecords)
        assert await store.measure_records(LIMIT) == AgedCount(count=0, oldest=0)
        clock = database.clock
        assert isinstance(clock, ManualClock)
        for number, each in enumerate(messages(LIMIT + 1)):
            unit = await store.begin([each])
            await unit.commit([Record(each.identity, ONE_EFFECT)])
            clock.advance(1)
            assert await store.measure_records(LIMIT) == AgedCount(count=min(number + 1, LIMIT), oldest=START)
        assert await other.measure_records(LIMIT) == AgedCount(count=0, oldest=0)


async def test_dead_letters_are_counted_up_to_the_limit(place: str) -> None:
    """Those of this endpoint, with the instant of the first."""
    async with emptied(place) as database:
        letters = SqlDeadLetters(database)
        assert isinstance(letters, MeasuresLetters)
        assert await letters.measure_letters("shop", LIMIT) == AgedCount(count=0, oldest=0)
        for number, each in enumerate(messages(LIMIT + 1)):
            await letters.add(DeadLetter(endpoint="shop", reason="no", headers=(), body=b"", message=each, at=number + 5))
            assert await letters.measure_letters("shop", LIMIT) == AgedCount(count=min(number + 1, LIMIT), oldest=5)
        assert await letters.measure_letters("other", LIMIT) == AgedCount(count=0, oldest=0)


async def test_claims_are_estimated_where_the_database_has_statistics(place: str) -> None:
    """SQLite has none. The others have seen the table once they were asked to."""
    async with emptied(place) as database:
        ring = SqlRing(database)
        assert isinstance(ring, EstimatesClaims)
        unit = await SqlStore(database, "shop").begin(messages(CLAIMS))
        await unit.commit([Record(each.identity) for each in unit.found.new])
        if database.engine.dialect.name == "sqlite":
            assert await ring.estimate() is None
            return
        async with database.autocommitting() as connection:
            names = [f"{database.prefix}claims", *(f"{database.prefix}claim_{number:02}" for number in range(16))]
            for name in names:
                is_postgresql = database.engine.dialect.name == "postgresql"
                await connection.execute(text(f"ANALYZE {name}" if is_postgresql else f"ANALYZE TABLE {name}"))
        assert await ring.estimate() in range(CLAIMS, CLAIMS + 17)


async def test_no_look_reads_a_whole_table(database: Database) -> None:
    """SQLite finds all rows by an index; only the results of the limited queries are scanned."""
    queue = await queue_in(database, ManualClock())
    await queue.declare([Topology(endpoint="shop")])
    with recorded(database) as looks:
        await queue.measure_queue("shop", LIMIT)
        await SqlStore(database, "shop").measure_records(LIMIT)
    steps = {step for statement, values in looks for step in plan(database, statement, values)}
    assert {step for step in steps if "onceonly_" in step and "INDEX" not in step} == set()
    assert sum("USING" in step and "messages_next" in step for step in steps) >= 1
    assert any("COVERING INDEX onceonly_records" in step for step in steps)
