"""A handler that writes into two databases of one MariaDB server, while its processes are killed: both agree."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import NamedTuple
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from onceonly.assembly import open_database, open_transport, schemas
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from onceonly.sql.schema import create
from tests.cli.terminal import Terminal
from tests.cli.test_health import probed
from tests.faults.test_metrics_under_kills import kill_one
from tests.servers.available import mariadb_database, on_mariadb

pytestmark = pytest.mark.slow
MESSAGES, KILLS, PROCESSES, COPIES = 600, 10, 2, 2
PATIENCE = 240.0
PROGRAM = """
import asyncio
from dataclasses import dataclass
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from onceonly import Endpoint, History, Off, WorkerSettings

@dataclass
class Move:
    number: int

shop = Endpoint(
    {name!r},
    store={store!r},
    transport={transport!r},
    deduplication={deduplication},
    worker=WorkerSettings(batch_size=10, concurrency=1),
)

@shop.handler
async def move(message: Move, connection: AsyncConnection) -> None:
    await connection.execute(text("INSERT INTO {one}.t VALUES (:number, :number)"), {{"number": message.number}})
    await asyncio.sleep(0.005)  # most kills come here
    await connection.execute(text("INSERT INTO {two}.t VALUES (:number, -:number)"), {{"number": message.number}})
"""


class Databases(NamedTuple):
    """Two databases of one server. The store of the endpoint is in the first one, and so is its queue."""

    name: str
    store: str
    transport: str
    one: str
    two: str

    def program(self, deduplication: str) -> str:
        """Return the program of the endpoint."""
        return PROGRAM.format(**self._asdict(), deduplication=deduplication)


@pytest.fixture
async def databases() -> AsyncIterator[Databases]:
    """Make both databases, with a table in each that takes a number more than once, and send the messages."""
    with ExitStack() as stack:
        urls = [stack.enter_context(mariadb_database()) for _ in range(2)]
        one, two = (str(make_url(url).database) for url in urls)
        name = f"moves_{uuid4().hex[:8]}"
        made = Databases(name, urls[0], f"{urls[0]}?lease=2", one, two)
        async with open_database(made.store) as database:
            for schema in schemas("store", "transport"):
                await create(database, schema)
        for each in (one, two):
            await on_mariadb(f"CREATE TABLE {each}.t (number INTEGER NOT NULL, amount INTEGER NOT NULL) ENGINE=InnoDB")
        async with open_transport(made.transport, "web") as sender:
            await sender.declare([Topology(endpoint=name, commands=("Move",))])
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            sends = [
                Send(message=Message(id=f"m{n}", source="web", type="Move", body=b'{"number": %d}' % n, time=now), to=name)
                for _ in range(COPIES)  # a copy is in another batch than its original
                for n in range(MESSAGES)
            ]
            assert {*await sender.send(sends)} == {Answer.TAKEN}
        yield made


class Tables(NamedTuple):
    """How often each number is in each table, whether their amounts cancel out, and how many messages wait."""

    one: Counter[int]
    two: Counter[int]
    total: int
    waiting: int


async def read(databases: Databases) -> Tables:
    """Read both tables in one snapshot, and the queue before it."""
    async with open_database(databases.store) as database, database.reading() as connection:
        waiting = int(await connection.scalar(text("SELECT COUNT(*) FROM onceonly_messages")) or 0)
        rows = f"SELECT 1, number, amount FROM {databases.one}.t UNION ALL SELECT 2, number, amount FROM {databases.two}.t"  # noqa: S608 - tables of our own
        found = list(await connection.execute(text(rows)))
    one, two = (Counter(number for table, number, _ in found if table == which) for which in (1, 2))
    return Tables(one, two, sum(amount for _, _, amount in found), waiting)


async def run_under_kills(onceonly: Terminal, databases: Databases, deduplication: str, kills: int) -> Tables:
    """Run the endpoint until its queue is empty, and kill its processes by turns while they hold messages."""
    (onceonly.folder / "moving.py").write_text(databases.program(deduplication))
    killed = 0
    end = time.monotonic() + PATIENCE
    with probed(onceonly, "moving:shop", "-p", str(PROCESSES)) as (run, port):
        while (now := await read(databases)).waiting:
            assert time.monotonic() < end, (now.waiting, killed, run.process.poll())
            assert now.one == now.two, "one database has what the other one has not"
            if killed < kills and sum(now.one.values()) >= (killed + 1) * MESSAGES / (kills + 2):
                killed += await asyncio.to_thread(kill_one, port, killed % PROCESSES) is not None
            await asyncio.sleep(0.01)
        run.stop()
    assert killed == kills
    return await read(databases)


@pytest.mark.timeout(300)
async def test_two_databases_of_a_server_agree_whatever_is_killed(onceonly: Terminal, databases: Databases) -> None:
    """Every message came twice, and ten processes were killed while they held messages: nothing is doubled, nothing lost."""
    after = await run_under_kills(onceonly, databases, "History()", KILLS)
    assert after.one == after.two == Counter(range(MESSAGES))
    assert after.total == 0


@pytest.mark.timeout(300)
async def test_doubles_would_be_noticed(onceonly: Terminal, databases: Databases) -> None:
    """Without deduplication a copy in another batch is handled again: the test above can fail."""
    after = await run_under_kills(onceonly, databases, "Off()", 0)
    assert set(after.one) == set(range(MESSAGES))
    assert after.one.total() > MESSAGES
