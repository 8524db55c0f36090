"""The queue inside PostgreSQL: quick at a backlog of a million, and safe for any number of processes."""

import asyncio
import multiprocessing
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import event, text

from onceonly.adapters.postgresql.dialect import PostgreSQL
from onceonly.model.message import Delivery, Send
from onceonly.ports.transport import Depth, Topology
from onceonly.sql.database import Database
from onceonly.sql.queue import SCHEMA, SqlTransport
from onceonly.sql.schema import create
from tests.adapters.postgresql.workers import work
from tests.sql.harness import messages, opened

MILLION = 1_000_000
FILL = """INSERT INTO deep_messages (queue, visible_at, leases, receipt, headers, body)
SELECT 'shop', number, 0, '', '[]', '' FROM generate_series(1, $1::integer) number"""
SHOP = Topology(endpoint="shop", events=("order",))


@pytest.fixture
async def shop(database: Database) -> SqlTransport:
    """Declare a queue."""
    transport = SqlTransport(database, "shop")
    await transport.declare([SHOP])
    return transport


def sends(count: int) -> list[Send]:
    """Make commands."""
    return [Send(message=each, to="shop") for each in messages(count)]


@pytest.fixture
async def deep(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """Open a database whose queue went from empty and analysed to a million, as when a consumer is down for an hour.

    Without notifications, which take a second connection from time to time: plans and counts are those of a connection.
    """
    monkeypatch.setattr(PostgreSQL, "notifies", False)
    async with opened(postgresql_url + "?prefix=deep_") as database:
        await create(database, SCHEMA)
        transport = SqlTransport(database, "shop")
        await transport.declare([SHOP])
        raw = await asyncpg.connect(database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False))
        await raw.execute("ALTER TABLE deep_messages SET (autovacuum_enabled = off)")
        await raw.execute("VACUUM ANALYZE deep_messages")
        for _ in range(8):  # by now every statement of this connection has the plan it keeps
            await transport.send(sends(1))
            await transport.release(await transport.receive(1, 0))
            held = await transport.receive(1, 0)
            await transport.extend(held)
            await transport.ack(held)
        await raw.execute(FILL, MILLION)
        await raw.execute("SELECT pg_stat_force_next_flush()")
        yield database
        await raw.execute("DROP TABLE deep_messages, deep_queues, deep_subscriptions, deep_schema")
        await raw.close()


@pytest.mark.slow
async def test_a_backlog_of_a_million_slows_no_statement_down(deep: Database) -> None:
    """Each finds its rows by an index and stops at its limit, whatever was known about the table when it was planned."""
    transport = SqlTransport(deep, "shop")
    scans_before = await scans(deep)
    with recorded(deep) as statements:
        await transport.send([*sends(2), Send(message=messages(1)[0])])
        held = await transport.receive(100, 0)
        await transport.extend(held)
        await transport.release(held[:50])
        await transport.ack(held[50:])
    assert len(held) == 100
    assert await scans(deep) == scans_before
    assert [said.split()[0] for said, _ in statements] == ["SELECT", "SELECT", "INSERT", *["UPDATE"] * 3, "DELETE"]
    for said, values in statements:
        if "deep_messages" in said and not said.startswith("INSERT"):
            steps = [
                step for step in await plan(deep, said, values) if step["Node Type"] not in {"ModifyTable", "LockRows", "Limit"}
            ]
            assert [step["Node Type"] for step in steps] == ["Index Scan"] * len(steps)
            assert max(step["Actual Rows"] for step in steps) <= 101


async def test_the_plan_of_a_slow_statement_is_noticed(shop: SqlTransport, database: Database) -> None:
    """The test above can fail."""
    await shop.send(sends(2))
    steps = await plan(database, "SELECT seq FROM onceonly_messages WHERE receipt = $1 ORDER BY body", ("",), freely=True)
    assert {step["Node Type"] for step in steps} == {"Sort", "Seq Scan"}


async def test_receivers_that_take_at_once_pass_each_others_messages_over(database: Database, shop: SqlTransport) -> None:
    """None waits, none is left without, nothing is taken twice."""
    await shop.send(sends(60))
    receivers = [SqlTransport(database, "shop") for _ in range(6)]
    taken = await asyncio.gather(*(receiver.receive(10, 0) for receiver in receivers))
    assert [len(deliveries) for deliveries in taken] == [10] * 6
    assert len({delivery.receipt for deliveries in taken for delivery in deliveries}) == 60


async def test_a_message_that_another_transaction_is_taking_is_passed_over(database: Database, shop: SqlTransport) -> None:
    """It is not waited for."""
    await shop.send(sends(2))
    async with database.writing() as connection:
        await connection.execute(text("SELECT seq FROM onceonly_messages ORDER BY seq LIMIT 1 FOR UPDATE"))
        assert names(await shop.receive(10, 0)) == ["m1"]
    assert names(await shop.receive(10, 0)) == ["m0"]


async def test_several_processes_may_declare_at_once(url: str, database: Database) -> None:
    """All find the queue and its subscriptions afterwards, once."""

    async def declare() -> None:
        async with opened(url) as other:
            await SqlTransport(other, "shop").declare([SHOP, Topology(endpoint="till", events=("order", "paid"))])

    await asyncio.gather(*(declare() for _ in range(6)))
    assert await SqlTransport(database, "shop").depth("till") == Depth(waiting=0, held=0, delayed=0)
    async with database.reading() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM onceonly_subscriptions")) == 3


async def test_a_hundred_messages_cost_one_statement_each_way(database: Database, shop: SqlTransport) -> None:
    """One to look up the queues, one to insert, take and settle. One after the first empty receive: does the queue exist?"""
    with recorded(database) as statements:
        await shop.send(sends(100))
        await shop.ack(await shop.receive(100, 0))
        assert await shop.receive(100, 0) == ()
        assert await shop.receive(100, 0) == ()
    assert [said.split()[0] for said, _ in statements] == ["SELECT", "INSERT", "UPDATE", "DELETE", "UPDATE", "SELECT", "UPDATE"]


async def test_processes_compete_and_nothing_is_lost_or_taken_twice(url: str, database: Database, shop: SqlTransport) -> None:
    """Real processes, each with its own connections."""
    await shop.send(sends(300))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=work, args=(url, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    taken = [name for _ in workers for name in await asyncio.to_thread(results.get, True, 60)]  # noqa: FBT003 - as Queue has it
    for worker in workers:
        await asyncio.to_thread(worker.join)
    assert Counter(taken) == Counter(each.id for each in messages(300))
    assert await shop.depth("shop") == Depth(waiting=0, held=0, delayed=0)
    assert database.engine.pool.checkedout() == 0


def names(deliveries: tuple[Delivery, ...]) -> list[str]:
    """Name the messages."""
    return sorted(dict(delivery.headers)["ce-id"] for delivery in deliveries)


@contextmanager
def recorded(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Collect what is really executed, with its values."""
    heard: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, values: Any, _context: object, many: bool) -> None:  # noqa: FBT001 - as SQLAlchemy calls it
        heard.append((statement, values[0] if many else values))

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    yield heard
    event.remove(database.engine.sync_engine, "before_cursor_execute", note)


async def scans(database: Database) -> int:
    """Count how often the table was read from end to end, by plans that were kept as well."""
    counts = []
    for query in ("SELECT pg_stat_force_next_flush()", "SELECT pg_stat_get_numscans('deep_messages'::regclass)"):
        async with database.writing() as connection:
            counts.append(await connection.scalar(text(query)))
    return int(counts[-1])


async def plan(database: Database, statement: str, values: Any, *, freely: bool = False) -> list[dict[str, Any]]:
    """Ask PostgreSQL how it runs a statement in one of our writing transactions; gives every step, with the rows it read."""
    found: list[dict[str, Any]] = []
    async with database.writing() as connection:
        if freely:
            await connection.execute(text("SET LOCAL enable_seqscan = on"))
        raw = await connection.get_raw_connection()
        driver = raw.driver_connection
        if not isinstance(driver, asyncpg.Connection):
            pytest.skip("the plan is the server's; asking once is enough")
        (explained,) = await driver.fetchrow(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values)
        collect(explained[0]["Plan"], found)
    return found


def collect(step: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """Walk through a plan."""
    found.append(step)
    for inner in step.get("Plans", ()):
        collect(inner, found)


@pytest.mark.parametrize(("durable", "setting"), [(True, "on"), (False, "off")])
async def test_only_what_may_be_undone_by_a_crash_does_not_wait_for_the_disk(
    database: Database, setting: str, *, durable: bool
) -> None:
    """The setting belongs to the transaction: the next one on the same connection has the server's own."""
    async with database.writing(durable=durable) as connection:
        assert (await connection.execute(text("SHOW synchronous_commit"))).scalar() == setting
    async with database.writing() as connection:
        assert (await connection.execute(text("SHOW synchronous_commit"))).scalar() == "on"


async def test_leases_and_acknowledgements_do_not_wait_for_the_disk(shop: SqlTransport, database: Database) -> None:
    """Messages do: a crash that undoes a lease or an acknowledgement delivers a message again, and deduplication drops it."""
    asked: list[bool] = []
    writing = database.writing
    database.writing = lambda *, durable=True: (asked.append(durable), writing(durable=durable))[1]  # type: ignore[method-assign]
    await shop.send(sends(1))
    taken = await shop.receive(1, 0)
    await shop.extend(taken)
    await shop.release(taken)
    await shop.ack(await shop.receive(1, 0))
    assert asked == [True, False, False, False, False, False]
