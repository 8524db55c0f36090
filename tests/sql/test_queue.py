"""What the queue inside SQLite promises beyond its port: cheap looks, quick wake-ups, indexed statements, many processes."""

import asyncio
import multiprocessing
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from onceonly.endpoint.received_message import read
from onceonly.formats.cloudevents import UNREADABLE
from onceonly.model.errors import CommitFailed, SchemaMissing
from onceonly.model.message import Delivery, Send, Unreadable
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import SystemClock
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import AS_STORED, SCHEMA, SqlTransport
from onceonly.sql.schema import check, create
from onceonly_conformance.clock import ManualClock
from tests.sql.competing_processes import message, take_and_die, work

AGES = 3600.0
BACKLOG = 3_000


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """Open a new file with the queue's tables."""
    opened = await open_database(f"sqlite:///{tmp_path}/queue.db?timeout=0.2", clock=ManualClock())
    await create(opened, SCHEMA)
    yield opened
    await opened.close()


@pytest.fixture
async def shop(database: Database) -> SqlTransport:
    """Declare a queue."""
    transport = SqlTransport(database, "shop")
    await transport.declare([Topology(endpoint="shop", events=("order",))])
    return transport


def file_of(database: Database) -> str:
    """Name the file, to look at it past the library."""
    return str(database.engine.url.database)


def sends(count: int) -> list[Send]:
    """Make commands."""
    return [Send(message=message(f"m{number}"), to="shop") for number in range(count)]


async def test_a_backlog_slows_no_statement_down(database: Database, shop: SqlTransport) -> None:
    """Every statement of a message's life finds its rows by an index, and sorts nothing."""
    await shop.send(sends(BACKLOG))
    with recorded(database) as statements:
        await shop.send([*sends(2), Send(message=message("event"))])
        held = await shop.receive(100, 0)
        await shop.extend(held)
        await shop.release(held[:50])
        await shop.ack(held[50:])
    plans = {statement: plan(database, statement, values) for statement, values in statements}
    assert [statement.split()[0] for statement in plans] == ["SELECT", "SELECT", "INSERT", "SELECT", *["UPDATE"] * 3, "DELETE"]
    steps = {step for found in plans.values() for step in found if not step.startswith(("SEARCH", "LIST SUBQUERY"))}
    assert steps == set()
    assert sum(step.startswith("SEARCH") for found in plans.values() for step in found) == len(plans)


async def test_the_plan_of_a_slow_statement_is_noticed(database: Database) -> None:
    """The test above can fail."""
    slow = "SELECT seq FROM onceonly_messages WHERE receipt = ? ORDER BY body"
    assert plan(database, slow, ("me",)) == ["SCAN onceonly_messages", "USE TEMP B-TREE FOR ORDER BY"]


@contextmanager
def recorded(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Collect what is really executed, with its values."""
    statements: list[tuple[str, Any]] = []

    def note(*call: Any) -> None:
        _, _, statement, values, _, many = call
        if statement.split()[0] in {"SELECT", "INSERT", "UPDATE", "DELETE"}:
            statements.append((statement, values[0] if many else values))

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    yield statements
    event.remove(database.engine.sync_engine, "before_cursor_execute", note)


def plan(database: Database, statement: str, values: Any) -> list[str]:
    """Ask SQLite how it would run a statement; like nearly every file, this one was never analysed."""
    with closing(sqlite3.connect(file_of(database))) as connection:
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


async def test_looking_at_an_empty_queue_takes_no_write_lock(database: Database, shop: SqlTransport) -> None:
    """Idle workers disturb nobody, and nobody disturbs them."""
    with closing(sqlite3.connect(file_of(database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await shop.receive(10, 0) == ()
        assert await shop.depth("shop") == Depth(waiting=0, held=0, delayed=0)
        await shop.declare([Topology(endpoint="shop", events=("order",))])
        other.execute("ROLLBACK")


async def test_a_lock_that_is_never_free_is_a_failure_not_an_unknown(database: Database, shop: SqlTransport) -> None:
    """Nothing was sent, and that is certain."""
    with closing(sqlite3.connect(file_of(database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CommitFailed):
            await shop.send(sends(1))
        other.execute("ROLLBACK")
    assert await shop.receive(10, 0) == ()


async def test_a_send_in_this_process_wakes_a_receiver_without_another_look(database: Database, shop: SqlTransport) -> None:
    """It does not wait for the next look: here there would be none for an hour."""
    shop._pause = AGES
    waiting = [asyncio.create_task(shop.receive(1, AGES)) for _ in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await until_listening(shop, 3)
        await SqlTransport(database, "till").send(sends(3))
        got = [await task for task in waiting]
    assert sorted(ids(deliveries)[0] for deliveries in got) == ["m0", "m1", "m2"]


async def test_a_release_in_this_process_wakes_a_receiver(database: Database, shop: SqlTransport) -> None:
    """What was given back is taken at once."""
    await shop.send(sends(1))
    held = await shop.receive(1, 0)
    other = SqlTransport(database, "shop")
    other._pause = AGES
    waiting = asyncio.create_task(other.receive(1, AGES))
    async with asyncio.timeout(20):
        await until_listening(shop, 1)
        await shop.release(held)
        assert ids(await waiting) == ["m0"]


async def test_an_idle_receiver_looks_less_and_less_often(shop: SqlTransport) -> None:
    """Also over several calls; what it takes makes it look often again."""
    pauses = []
    for _ in range(3):
        await shop.receive(1, 0.02)
        pauses.append(shop._pause)
    assert pauses == sorted(set(pauses))
    await shop.send(sends(1))
    await shop.receive(1, 0)
    assert shop._pause < pauses[0]


async def until_listening(transport: SqlTransport, count: int) -> None:
    """Wait until this many receivers have looked in vain and wait for the bell."""
    while sum(len(rung._waiters) for rung in transport._database.notifications._waiting["shop"]) < count:  # noqa: ASYNC110 - it is the event
        await asyncio.sleep(0)


async def test_a_receiver_that_is_cancelled_while_it_takes_gives_back(shop: SqlTransport) -> None:
    """Whichever step the cancellation strikes, nothing stays leased and nothing becomes a suspect."""
    await shop.send(sends(5))
    for steps in range(40):
        taking = asyncio.create_task(shop.receive(5, 0))
        for _ in range(steps):
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking])
        if not taking.cancelled():
            await shop.release(taking.result())
        assert await shop.depth("shop") == Depth(waiting=5, held=0, delayed=0)
    assert [delivery.suspect for delivery in await shop.receive(5, 0)] == [False] * 5


async def test_many_sends_are_one_transaction(database: Database, shop: SqlTransport) -> None:
    """Either all of a batch is there or nothing is, and it costs one commit."""
    before = commits(file_of(database))
    await shop.send([*sends(50), Send(message=message("event"))])
    assert await shop.depth("shop") == Depth(waiting=51, held=0, delayed=0)
    assert commits(file_of(database)) == before + 1


def commits(file: str) -> int:
    """Count the commits there were, by the frames of the write-ahead log that end a transaction."""
    log = Path(f"{file}-wal").read_bytes()
    frame = 24 + int.from_bytes(log[8:12], "big")
    salt = log[16:24]
    frames = [log[start : start + 24] for start in range(32, len(log) - 23, frame)]
    return sum(header[4:8] != bytes(4) for header in frames if header[8:16] == salt)


async def test_more_deliveries_than_a_statement_takes_are_settled(shop: SqlTransport) -> None:
    """Whatever their number."""
    await shop.send(sends(1_234))
    held = await shop.receive(2_000, 0)
    assert len(held) == 1_234
    await shop.extend(held)
    await shop.ack(held)
    assert await shop.depth("shop") == Depth(waiting=0, held=0, delayed=0)


async def test_foreign_receipts_are_left_alone(shop: SqlTransport) -> None:
    """A delivery of another transport settles nothing here."""
    await shop.send(sends(1))
    foreign = Delivery(receipt=1, queue="shop", headers=(), body=b"")
    await shop.receive(1, 0)
    await shop.ack([foreign])
    await shop.release([foreign])
    assert await shop.depth("shop") == Depth(waiting=0, held=1, delayed=0)


async def test_what_was_sent_first_is_received_first(shop: SqlTransport) -> None:
    """As far as one receiver can see."""
    await shop.send(sends(30))
    assert ids(await shop.receive(20, 0) + await shop.receive(20, 0)) == [f"m{number}" for number in range(30)]


async def test_what_was_given_back_is_not_overtaken_by_what_comes_later(tmp_path: Path) -> None:
    """So a busy queue starves no message."""
    clock = ManualClock()
    database = await open_database(f"sqlite:///{tmp_path}/fair.db", clock=clock)
    await create(database, SCHEMA)
    transport = SqlTransport(database, "shop", clock=clock)
    await transport.declare([Topology(endpoint="shop")])
    await transport.send(sends(2))
    await transport.release(await transport.receive(2, 0))
    clock.advance(1)
    await transport.send([Send(message=message("later"), to="shop")])
    assert ids(await transport.receive(2, 0)) == ["m0", "m1"]
    await database.close()


async def test_a_database_without_the_queues_tables_says_what_to_do(tmp_path: Path) -> None:
    """Its schema is checked like every other."""
    database = await open_database(f"sqlite:///{tmp_path}/empty.db", clock=ManualClock())
    with pytest.raises(SchemaMissing, match="onceonly schema create"):
        await check(database, SCHEMA)
    await database.close()


async def test_two_prefixes_are_two_queues(database: Database, shop: SqlTransport) -> None:
    """Several installations may share a file."""
    other = await open_database(f"sqlite:///{file_of(database)}", clock=ManualClock(), prefix="second_")
    await create(other, SCHEMA)
    second = SqlTransport(other, "shop")
    await second.declare([Topology(endpoint="shop")])
    await shop.send(sends(1))
    assert await second.receive(1, 0) == ()
    await other.close()


@pytest.mark.timeout(60)
async def test_processes_that_compete_never_share_a_message(tmp_path: Path) -> None:
    """Three processes send and take at once: every message is taken once, by one of them, and is no suspect."""
    url = f"sqlite:///{tmp_path}/queue.db?timeout=30"
    database = await open_database(url, clock=SystemClock())
    await create(database, SCHEMA)
    await SqlTransport(database, "shop").declare([Topology(endpoint="shop")])
    names, spawn = ("a", "b", "c"), multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(len(names))
    files = [tmp_path / name for name in names]
    processes = [spawn.Process(target=work, args=(url, name, barrier, file)) for name, file in zip(names, files, strict=True)]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    taken = Counter(line for file in files for line in file.read_text().split())
    assert taken == Counter(f"{name}-{number}" for name in names for number in range(100))
    assert await SqlTransport(database, "shop").depth("shop") == Depth(waiting=0, held=0, delayed=0)
    await database.close()


async def test_what_a_killed_process_held_comes_again_as_a_suspect(tmp_path: Path) -> None:
    """When its lease has ended, and not before."""
    url, clock = f"sqlite:///{tmp_path}/queue.db?timeout=30", ManualClock(SystemClock().now())
    database = await open_database(url, clock=clock)
    await create(database, SCHEMA)
    transport = SqlTransport(database, "shop", lease=30.0, clock=clock)
    await transport.declare([Topology(endpoint="shop")])
    await transport.send(sends(2))
    child = multiprocessing.get_context("spawn").Process(target=take_and_die, args=(url,))
    child.start()
    await asyncio.to_thread(child.join)
    assert child.exitcode == -signal.SIGKILL
    assert await transport.receive(10, 0) == ()
    clock.advance(SystemClock().now() - clock.now() + 30_000)
    again = await transport.receive(10, 0)
    assert (ids(again), [delivery.suspect for delivery in again]) == (["m0", "m1"], [True, True])
    await database.close()


def ids(deliveries: tuple[Delivery, ...]) -> list[str]:
    """Name what was delivered."""
    return [dict(delivery.headers)["ce-id"] for delivery in deliveries]


BAD_ROWS = (
    ("'not json'", "x'7b7d'"),
    ("'{\"a\": 1}'", "x'7b7d'"),
    ("CAST(x'ff' AS TEXT)", "x'7b7d'"),
    ("x'ff'", "x'7b7d'"),
    ("1", "x'7b7d'"),
    ('\'[["ce-id", "\\ud800"]]\'', "x'7b7d'"),
)


@pytest.mark.parametrize(("headers", "body"), BAD_ROWS)
async def test_a_row_whose_headers_cannot_be_read_holds_up_no_other(
    database: Database, shop: SqlTransport, headers: str, body: str
) -> None:
    """Foreign programs write into tables; the row arrives as what no endpoint can read, with what was stored in it."""
    put(database, headers, body)
    await shop.send(sends(1))
    bad, good = await shop.receive(10, 0)
    assert (ids((good,)), good.suspect) == (["m0"], False)
    unread = read(bad, (), identity=None, max_body=100)
    assert isinstance(unread, Unreadable)
    assert "its headers are not a JSON list" in unread.reason
    assert [name for name, _ in bad.headers] == [UNREADABLE, AS_STORED]
    assert bad.body == b"{}"
    await shop.ack((bad, good))
    assert await shop.depth("shop") == Depth(waiting=0, held=0, delayed=0)


async def test_text_and_bytes_in_the_wrong_column_are_read(database: Database, shop: SqlTransport) -> None:
    """SQLite keeps what it is given; the statement asks for bytes."""
    headers = b'[["ce-id", "m1"]]'.hex()
    put(database, f"x'{headers}'", "'{}'")
    (delivery,) = await shop.receive(10, 0)
    assert (delivery.headers, delivery.body) == ((("ce-id", "m1"),), b"{}")


def put(database: Database, headers: str, body: str) -> None:
    """Write a row past the library, its headers and body as SQL."""
    with closing(sqlite3.connect(file_of(database))) as connection, connection:
        columns = "(queue, visible_at, leases, receipt, headers, body)"
        connection.execute(f"INSERT INTO onceonly_messages {columns} VALUES ('shop', 0, 0, '', {headers}, {body})")  # noqa: S608 - the test's own
