"""Rows of the queue that another program has written: an unreadable one costs itself, and stops no other."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text

from onceonly.model.message import Send
from onceonly.ports.transport import Topology
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import SCHEMA, SqlTransport
from onceonly.sql.queue_tables import tables
from onceonly.sql.schema import create
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from tests.fuzzing import inputs

LARGEST, LONGEST = 2**31 - 1, 2**63 - 1
ROWS_AT_ONCE = 200


@pytest.fixture
async def database(place: str) -> AsyncIterator[Database]:
    """Open a database with an empty queue."""
    opened = await open_database(place, clock=ManualClock())
    await create(opened, SCHEMA)
    await empty(opened)
    yield opened
    await empty(opened)
    await opened.close()


async def empty(database: Database) -> None:
    """Delete all rows."""
    async with database.writing() as connection:
        for table in tables(database.prefix).tables.values():
            await connection.execute(table.delete())


@pytest.fixture
async def shop(database: Database) -> SqlTransport:
    """Declare a queue."""
    transport = SqlTransport(database, "shop")
    await transport.declare([Topology(endpoint="shop", events=())])
    return transport


def row(**values: object) -> dict[str, object]:
    """Make a row of the queue as another program might."""
    return {"queue": "shop", "visible_at": 0, "leases": 0, "receipt": "", "headers": "[]", "body": b""} | values


async def put(database: Database, *rows: dict[str, object]) -> None:
    """Insert rows past the library."""
    table = tables(database.prefix).tables[f"{database.prefix}messages"]
    async with database.writing() as connection:
        await connection.execute(insert(table), list(rows))


@pytest.mark.parametrize("leases", [LARGEST, LARGEST - 1, -1, -LARGEST, -LARGEST - 1])
async def test_no_count_of_a_row_stops_the_queue(database: Database, shop: SqlTransport, leases: int) -> None:
    """A count that cannot be increased refused the statement that takes all rows."""
    await put(database, row(leases=leases))
    await shop.send([Send(message=message("a"), to="shop")])
    found = await shop.receive(10, 0)
    assert sorted((dict(each.headers).get("ce-id", ""), each.suspect) for each in found) == [("", True), ("a", False)]
    await shop.extend(found)
    await shop.release(found)
    found = await shop.receive(10, 0)
    assert len(found) == 2
    assert not any(each.suspect for each in found)
    await shop.ack(found)
    assert await shop.receive(10, 0) == ()


@pytest.mark.parametrize("instant", [-LONGEST - 1, -LONGEST, -1])
async def test_no_instant_of_a_row_stops_the_measuring(database: Database, shop: SqlTransport, instant: int) -> None:
    """The age of the oldest message is a difference, which would not be a number of the database any more."""
    await put(database, row(visible_at=instant))
    sample = await shop.measure_queue("shop", 10)
    assert (sample.waiting, sample.oldest > 0) == (1, True)
    assert len(await shop.receive(10, 0)) == 1


async def test_a_message_that_is_due_at_the_end_of_time_is_counted(database: Database, shop: SqlTransport) -> None:
    """It stays where it is, and the others are received."""
    await put(database, row(visible_at=LONGEST))
    await shop.send([Send(message=message("a"), to="shop")])
    assert len(await shop.receive(10, 0)) == 1
    assert (await shop.depth("shop")).delayed == 1


@pytest.mark.parametrize("name", ["two words", "", "Shop", "shop\n", "shop.>", "x" * 64, "\U0001f600", "'; DROP TABLE x; --"])
async def test_a_subscriber_that_no_endpoint_can_be_is_ignored_and_logged_once(
    database: Database, shop: SqlTransport, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its messages would be read by nothing. The other subscribers receive theirs."""
    await shop.declare([Topology(endpoint="shop", events=("shop.order.v1",))])
    metadata = tables(database.prefix).tables
    async with database.writing() as connection:
        subscriptions = metadata[f"{database.prefix}subscriptions"]
        await connection.execute(insert(subscriptions), [{"event": "shop.order.v1", "queue": name}])
    for number in range(3):
        await shop.send([Send(message=message(f"m{number}"))])
    async with database.reading() as connection:
        queues = list(await connection.scalars(select(metadata[f"{database.prefix}messages"].c.queue)))
    assert queues == ["shop"] * 3
    (entry,) = [each for each in caplog.records if getattr(each, "event", "") == "subscriber ignored: not an endpoint name"]
    assert entry.getMessage().isascii()


async def test_fuzz_rows_of_any_type(tmp_path: Path) -> None:
    """SQLite stores a value of any type in any column. Each row that is due is received, once, whatever is in it."""
    database = await open_database(f"sqlite:///{tmp_path}/fuzz.db", clock=ManualClock())
    await create(database, SCHEMA)
    shop = SqlTransport(database, "shop")
    await shop.declare([Topology(endpoint="shop", events=())])
    rng = random.Random(38)  # noqa: S311 - inputs
    statement = text(
        "INSERT INTO onceonly_messages (queue, visible_at, leases, receipt, headers, body)"
        " VALUES ('shop', :visible_at, :leases, :receipt, :headers, :body)"
    )
    try:
        for _ in range(max(1, inputs() // ROWS_AT_ONCE)):
            rows = [any_row(rng) for _ in range(ROWS_AT_ONCE)]
            async with database.writing() as connection:
                await connection.execute(statement, rows)
            sample = await shop.measure_queue("shop", 2 * ROWS_AT_ONCE)
            assert sample.waiting == ROWS_AT_ONCE
            assert sample.oldest >= 0
            found = await shop.receive(2 * ROWS_AT_ONCE, 0)
            assert len(found) == ROWS_AT_ONCE
            await shop.extend(found)
            await shop.depth("shop")
            await shop.release(found)
            found = await shop.receive(2 * ROWS_AT_ONCE, 0)
            await shop.ack(found)
            assert len({each.receipt for each in found}) == ROWS_AT_ONCE
            assert await shop.receive(1, 0) == ()
    finally:
        await database.close()


def any_row(rng: random.Random) -> dict[str, object]:
    """Make a row whose values are of any type. It is due: a number, as every type sorts behind numbers."""
    return {
        "visible_at": rng.choice([0, 1, -1, -LONGEST - 1, 1.5, -1e300, rng.randrange(10**9)]),
        "leases": any_value(rng),
        "receipt": any_value(rng),
        "headers": any_headers(rng),
        "body": any_value(rng),
    }


def any_value(rng: random.Random) -> object:
    """Make a number at a limit, a text or bytes."""
    numbers = [
        0,
        1,
        2,
        -1,
        LARGEST,
        LARGEST + 1,
        -LARGEST - 1,
        LONGEST,
        -LONGEST - 1,
        1e300,
        -1e300,
        0.5,
        rng.getrandbits(62),
    ]
    return rng.choice([rng.choice(numbers), rng.randbytes(rng.randrange(9)), "".join(rng.choices("a\0'\"[{é\n", k=5))])


def any_headers(rng: random.Random) -> object:
    """Make headers with foreign counts and histories, or another value."""
    name = rng.choice(["onceonlyattempts", "onceonlyheld", "onceonlyhistory", "onceonlyalone", "id", "source", "type", "é"])
    value = rng.choice(["9" * 400, "-1", "[[[", "1", "0x1", "[]", "[{}]", str(LONGEST), "null", "٣"])
    plain = f'[["ce-{name}","{value}"]]'
    cut = plain[: rng.randrange(len(plain))]
    return rng.choice([plain, cut, plain.encode("utf-8", "surrogatepass"), "[" * 5000, '[["a"]]', "{}", "null", any_value(rng)])
