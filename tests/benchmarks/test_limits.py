"""What onceonly's rows may cost: every row has limits, and a row over one of them ends the run with an error."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from benchmarks import limits
from benchmarks.benchmark import Benchmark, BenchmarkContext, Servers, opened
from benchmarks.counting import Costs
from benchmarks.crew import RunFailed
from benchmarks.growth import gate
from benchmarks.limits import LIMITS, check_costs
from benchmarks.modes import TINY
from benchmarks.rows import BY_NAME, ROWS
from tests.servers.available import POSTGRESQL, RABBITMQ, need

FIGURES = Costs.__struct_fields__
A_LITTLE = 0.001


@pytest.fixture
async def place() -> AsyncIterator[BenchmarkContext]:
    """Open a database and queues of the test's own."""
    async with opened(Servers(database=need(POSTGRESQL), broker=need(RABBITMQ))) as place:
        yield place


def test_every_row_of_onceonly_has_limits_and_no_other() -> None:
    """A new row without limits would cost what it likes."""
    assert set(LIMITS) == {row.name for row in ROWS if row.is_own}


@pytest.mark.parametrize("row", LIMITS)
@pytest.mark.parametrize("figure", FIGURES)
def test_a_row_that_costs_more_than_one_of_its_limits_fails(row: str, figure: str) -> None:
    """By whatever little; at its limits it passes."""
    limit = LIMITS[row]
    check_costs(BY_NAME[row], limit)
    dearer = msgspec.structs.replace(limit, **{figure: getattr(limit, figure) + A_LITTLE})
    with pytest.raises(RunFailed, match=f"{row} costs too much for a message: {figure} "):
        check_costs(BY_NAME[row], dearer)


@pytest.mark.parametrize("row", LIMITS)
@pytest.mark.parametrize("figure", ["statements", "commits"])
def test_small_batches_are_allowed_where_there_is_room(row: str, figure: str) -> None:
    """A busy machine has smaller batches; but one more for each message never passes."""
    limit = LIMITS[row]
    with_smaller_batches = limit.statements // 1 + limit.statements % 1 * 2, limit.commits * 2
    smaller = msgspec.structs.replace(limit, statements=with_smaller_batches[0], commits=with_smaller_batches[1])
    check_costs(BY_NAME[row], smaller, room=4.0)
    dearer = msgspec.structs.replace(limit, **{figure: getattr(limit, figure) + 1})
    with pytest.raises(RunFailed, match=f"{row} costs too much for a message: {figure} "):
        check_costs(BY_NAME[row], dearer, room=4.0)


def test_no_limit_has_room_for_another_statement_for_each_message() -> None:
    """Where a handler executes one of its own there is room for that one only; commits and round trips alike."""
    allowed = {name: int(limit.statements) for name, limit in LIMITS.items()}
    assert allowed == {name: int(name in {"onceonly_core", "onceonly_core_batch", "onceonly_raw"}) for name in LIMITS}
    assert all(int(limit.trips) <= allowed[name] and limit.commits < 1 for name, limit in LIMITS.items())


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_one_statement_more_for_each_message_ends_the_run(
    place: BenchmarkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real run of a handler that executes an INSERT is held to the limits of one that leaves it to the flush."""
    monkeypatch.setattr(limits, "LIMITS", {"onceonly_core": LIMITS["onceonly_orm"]})
    results = await Benchmark(place, [BY_NAME["onceonly_core"]], TINY, lambda _: None).measure()
    assert "costs too much for a message: statements 1." in results.failed["onceonly_core"]


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_statements_are_counted_where_there_is_no_wire(place: BenchmarkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's row is held to its limits by what its worker counted itself."""
    tight = msgspec.structs.replace(LIMITS["onceonly_sqlite"], statements=A_LITTLE, commits=A_LITTLE)
    monkeypatch.setattr(limits, "LIMITS", {"onceonly_sqlite": tight})
    results = await Benchmark(place, [BY_NAME["onceonly_sqlite"]], TINY, lambda _: None).measure()
    assert "statements 0." in results.failed["onceonly_sqlite"]
    assert "commits 0." in results.failed["onceonly_sqlite"]


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_many_processes_are_counted_together(place: BenchmarkContext) -> None:
    """Every message comes out once, whoever handled it, and what all of them said is counted."""
    row, counts = BY_NAME["onceonly_orm"], {"onceonly_orm": 400}
    await place.rabbitmq.prepare(row)
    (found,) = [each async for each in gate(place.rabbitmq, place.database, [row], counts, crowds=(3,))]
    assert (found.processes, found.row, found.messages, found.deadlocks) == (3, "onceonly_orm", 400, 0)
    assert 0 < found.statements < 1
    assert 0 < found.trips < 1
    assert found.waiting >= 0


async def test_a_session_that_waits_for_a_lock_is_seen(place: BenchmarkContext) -> None:
    """And none before it waits, and none after."""
    first, second = await asyncpg.connect(place.database.url), await asyncpg.connect(place.database.url)
    held = first.transaction()
    await held.start()
    await first.execute("lock table baseline_order")
    async with asyncio.timeout(30), place.database.watched() as seen:
        waiting = asyncio.create_task(second.fetchval("select count(*) from baseline_order"))
        while 1 not in seen:  # noqa: ASYNC110 - the server tells nobody that a session waits
            await asyncio.sleep(0)
        await held.rollback()
        await waiting
        last = len(seen) + 1  # one may be under way
        while len(seen) <= last:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0)
        assert set(seen[last:]) == {0}
    await first.close()
    await second.close()


async def test_a_deadlock_is_counted(place: BenchmarkContext) -> None:
    """Two sessions each wait for what the other has; the server ends one of them."""
    before = await place.database.deadlocks()
    await place.database.own.execute("insert into baseline_order(order_id) values ('a'), ('b')")
    sessions = [await asyncpg.connect(place.database.url) for _ in range(2)]
    both = asyncio.Barrier(2)

    async def write(session: asyncpg.Connection, *order_ids: str) -> None:
        await session.execute("set deadlock_timeout = '10ms'")
        async with session.transaction():
            await session.execute("update baseline_order set order_id = order_id where order_id = $1", order_ids[0])
            await both.wait()
            await session.execute("update baseline_order set order_id = order_id where order_id = $1", order_ids[1])

    ended = await asyncio.gather(write(sessions[0], "a", "b"), write(sessions[1], "b", "a"), return_exceptions=True)
    assert [type(each) for each in ended if each is not None] == [asyncpg.DeadlockDetectedError]
    for session in sessions:
        await session.close()
    await place.database.commits()  # waits until both have reported
    assert await place.database.deadlocks() == before + 1
