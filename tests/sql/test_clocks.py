"""Processes whose clocks differ share a queue and records: leases follow the clock of the database."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from onceonly.model.message import Delivery, Send
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import SystemClock
from onceonly.sql.database import Database
from onceonly.sql.queue import SCHEMA, SqlTransport
from onceonly.sql.schema import create
from onceonly.sql.store import SqlStore
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from tests.servers.debian import FAKETIME, program
from tests.sql.emptying import empty
from tests.sql.every_database import emptied
from tests.sql.harness import opened, records

AHEAD = 10 * 60 * 1000
SHIFTS = pytest.mark.parametrize("shift", [AHEAD, -AHEAD], ids=["ahead", "behind"])
TAKER = """
import asyncio, sys, time
from onceonly.sql.database import open_database
from onceonly.runtime.environment import SystemClock
from onceonly.sql.queue import SqlTransport

async def main():
    database = await open_database(sys.argv[1], clock=SystemClock())
    taken = await SqlTransport(database, "shop", lease=1.0).receive(10, 10.0)
    print(len(taken), int(time.time()), flush=True)
    await database.close()

asyncio.run(main())
"""


def shifted(shift: int) -> ManualClock:
    """Return the clock of a process that is wrong by this much."""
    return ManualClock(SystemClock().now() + shift)


@pytest.fixture
async def queue(place: str) -> AsyncIterator[Database]:
    """Return an empty queue in each database."""
    async with opened(place, clock=shifted(0)) as database:
        await create(database, SCHEMA)
        await empty(database, SCHEMA.tables(database.prefix, database.schema).sorted_tables)
        await SqlTransport(database, "shop").declare([Topology(endpoint="shop")])
        yield database


def names(taken: tuple[Delivery, ...]) -> list[str]:
    """Return the ids of what was taken."""
    return [dict(each.headers)["ce-id"] for each in taken]


@SHIFTS
async def test_what_a_process_with_a_wrong_clock_takes_comes_again_when_its_lease_has_ended(
    place: str, queue: Database, shift: int
) -> None:
    """After a lease by the database's clock; not before it, and not ten minutes later."""
    right = SqlTransport(queue, "shop", lease=1.0)
    await right.send([Send(message=message("m1"), to="shop")])
    async with opened(place, clock=shifted(shift)) as database:
        wrong = SqlTransport(database, "shop", lease=1.0)
        assert len(await wrong.receive(10, 0.0)) == 1
        assert await right.receive(10, 0.0) == ()
        again = await right.receive(10, 20.0)
    assert (names(again), [each.suspect for each in again]) == (["m1"], [True])


@SHIFTS
async def test_what_it_sends_gives_back_and_renews_follows_the_same_clock(place: str, queue: Database, shift: int) -> None:
    """A message it sends can be taken at once, and so can one that it gives back; both also by itself."""
    right = SqlTransport(queue, "shop")
    async with opened(place, clock=shifted(shift)) as database:
        wrong = SqlTransport(database, "shop", lease=1.0)
        await wrong.send([Send(message=message("m1"), to="shop")])
        assert await right.depth("shop") == await wrong.depth("shop") == Depth(waiting=1, held=0, delayed=0)
        taken = await right.receive(10, 0.0)
        await wrong.extend(taken)
        await wrong.release(taken)
        assert names(await wrong.receive(10, 0.0)) == ["m1"]


async def test_a_due_instant_is_the_sender_s(place: str, queue: Database) -> None:
    """It is absolute: the queue compares it with the database's clock, whoever receives."""
    now = SystemClock().now()
    sends = [Send(message=message(name), to="shop", due=now + due) for name, due in (("late", 3_600_000), ("soon", 500))]
    await SqlTransport(queue, "shop").send(sends)
    async with opened(place, clock=shifted(24 * AHEAD)) as database:
        ahead = SqlTransport(database, "shop")
        assert names(await ahead.receive(10, 20.0)) == ["soon"]
        assert await ahead.depth("shop") == Depth(waiting=0, held=1, delayed=1)


@SHIFTS
async def test_a_relay_with_a_wrong_clock_leaves_marks_for_one_lease(place: str, shift: int) -> None:
    """Others pass over what it took for that long, by the database's clock, and then take it."""
    async with emptied(place) as database, opened(place, clock=shifted(shift)) as elsewhere:
        right, wrong = SqlStore(database, "shop"), SqlStore(elsewhere, "shop")
        unit = await right.begin([message("m1")])
        await unit.commit(records(message("m1"), decided=True))
        for_ever = SystemClock().now() + 1_000_000_000
        assert len(await wrong.take(for_ever, 10, lease=60_000)) == 1
        assert await right.take(for_ever, 10, lease=60_000) == ()
        assert len(await right.take(for_ever, 10, lease=0)) == 1


@pytest.mark.slow
async def test_a_process_under_faketime_hides_nothing(place: str, queue: Database) -> None:
    """Ten minutes ahead, as the whole process sees it; on SQLite its clock is the database's as well."""
    if queue.dialect.embedded:
        pytest.skip("the database is in the process")
    faketime = await asyncio.to_thread(program, FAKETIME)
    right = SqlTransport(queue, "shop")
    await right.send([Send(message=message("m1"), to="shop")])
    command = [faketime, "-f", "+10m", sys.executable, "-c", TAKER, place]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ))  # noqa: ASYNC221 - nothing else runs
    assert done.returncode == 0, done.stderr
    count, then = map(int, done.stdout.split())
    assert count == 1
    assert then * 1000 > SystemClock().now() + AHEAD - 60_000
    assert names(await right.receive(10, 20.0)) == ["m1"]


async def test_the_index_is_searched_by_the_clock(queue: Database) -> None:
    """An empty look must not go through all that is delayed."""
    query = SqlTransport(queue, "shop")._sql.is_waiting.params(of="shop", param_1=1)
    sql = str(query.compile(dialect=queue.engine.dialect, compile_kwargs={"literal_binds": True}))
    explain = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN ", "mysql": "EXPLAIN FORMAT=JSON "}[queue.dialect.name]
    async with queue.writing() as connection:
        if queue.dialect.name == "postgresql":
            await connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            await connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        plan = "\n".join(str(row) for row in await connection.execute(text((explain + sql).replace(":", "\\:"))))
    found = {
        "sqlite": "(queue=? AND visible_at<?)" in plan,
        "postgresql": any("visible_at <=" in line for line in plan.splitlines() if "Index Cond" in line),
        "mysql": "<cache>" in plan,  # computed once for the statement, as a constant
    }
    assert found[queue.dialect.name], plan
