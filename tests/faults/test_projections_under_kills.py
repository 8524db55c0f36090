"""Processes are killed while they write projections: each key ends with the newest state, and no version went back."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from sqlalchemy import text

from onceonly.assembly import open_database, open_transport, schemas
from onceonly.assembly.document_places import create as create_place
from onceonly.assembly.document_places import open_documents
from onceonly.documents.projections import DocumentProjection, ProjectedValue
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import LIVE
from onceonly.sql.schema import create, drop
from tests.cli.terminal import Terminal
from tests.cli.test_health import probed
from tests.faults.test_metrics_under_kills import kill_one

pytestmark = pytest.mark.slow
MESSAGES, ACCOUNTS, KILLS, PROCESSES, COPIES = 400, 12, 10, 2, 2
PATIENCE = 240.0
LATE_SECONDS = 3.0
PROGRAM = """
import asyncio
from dataclasses import dataclass
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from onceonly import Context, Endpoint, WorkerSettings
from onceonly.documents import projections

write, LAST = projections.DocumentProjection.write, {last!r}

async def stored(projection, key):
    name = projection._prefix + key
    found = (await projection._documents.load([name])).get(name)
    return projections._read(name, found).version if found else 0

async def overtaken(projection, writes):
    try:
        async with asyncio.timeout({late}):
            for each in writes:
                while each.version == LAST[each.key] - 1 and await stored(projection, each.key) < LAST[each.key]:
                    await asyncio.sleep(0.02)
    except TimeoutError:
        pass
    if {compares}:
        return await write(projection, writes)
    newer = [replace(each, version=max(each.version, await stored(projection, each.key) + 1)) for each in writes]
    return await write(projection, newer)

projections.DocumentProjection.write = overtaken

@dataclass
class Deposit:
    account: int
    amount: int

bank = Endpoint(
    {name!r},
    store={store!r},
    transport={transport!r},
    projections={{"balances": {projection!r}}},
    worker=WorkerSettings(batch_size=8, concurrency=2),
    relay_after=2.0,
)

@bank.handler
async def deposit(message: Deposit, connection: AsyncConnection, context: Context) -> None:
    change = "UPDATE {name} SET balance = balance + :amount, version = version + 1 WHERE id = :id RETURNING balance, version"
    balance, version = (await connection.execute(text(change), {{"id": message.account, "amount": message.amount}})).one()
    balances, key = context.projections["balances"], f"account:{{message.account}}"
    if balance % 5:
        balances.put(key, balance, version=version)
    else:
        balances.delete(key, version=version)
"""


class Bank(NamedTuple):
    """An endpoint with a table of its own on PostgreSQL, and the place of its projection."""

    name: str
    store: str
    transport: str
    projection: str
    last: dict[str, int]
    """How many messages each key gets: the version of its last write. The one before it is made after it."""

    def program(self, *, compares: bool = True) -> str:
        """Return the endpoint. Without `compares` the last write that comes is kept."""
        return PROGRAM.format(**self._asdict(), compares=compares, late=LATE_SECONDS)

    async def all(self, statement: str) -> list[Any]:
        """Return the rows of a query."""
        async with open_database(self.store) as database, database.reading() as connection:
            return list(await connection.execute(text(statement)))

    async def run(self, *statements: str) -> None:
        """Change the database."""
        async with open_database(self.store) as database, database.autocommitting() as connection:
            for statement in statements:
                await connection.execute(text(statement))


@pytest.fixture(params=["redis_url", pytest.param("ministack_endpoint", marks=pytest.mark.repeated)], ids=["redis", "s3"])
async def bank(request: pytest.FixtureRequest, postgresql_url: str) -> AsyncIterator[Bank]:
    """Make the tables and the place, and send the messages."""
    name, server = f"bank_{uuid4().hex[:8]}", request.getfixturevalue(request.param)
    projection = (
        f"s3://test:test@{name.replace('_', '-')}/balances?region=eu-central-1&endpoint={server}"
        if request.param == "ministack_endpoint"
        else server
    )
    random = Random(7)  # noqa: S311 - the same messages in every run
    orders = [(n, random.randrange(ACCOUNTS), random.randrange(1, 10)) for n in range(MESSAGES)]
    last = Counter(f"account:{account}" for _, account, _ in orders)
    store = f"{postgresql_url}?prefix={name}_"
    made = Bank(name, store, f"{store}&lease=2", projection, dict(last))
    await create_place(projection)
    async with open_database(made.store) as database:
        for schema in schemas("store", "transport"):
            await create(database, schema)
    await made.run(
        f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, version BIGINT NOT NULL)",
        *(f"INSERT INTO {name} VALUES ({account}, 0, 0)" for account in range(ACCOUNTS)),  # noqa: S608 - a table of our own
    )
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sends = [
        Send(message=Message(id=f"m{n}", source="web", type="Deposit", body=body, time=now), to=name)
        for _ in range(COPIES)
        for n, account, amount in orders
        if (body := b'{"account": %d, "amount": %d}' % (account, amount))
    ]
    async with open_transport(made.transport, "web") as sender:
        await sender.declare([Topology(endpoint=name, commands=("Deposit",))])
        assert {*await sender.send(sends)} == {Answer.TAKEN}
    try:
        yield made
    finally:
        await made.run(f"DROP TABLE {name}")
        async with open_database(made.store) as database:
            await drop(database, *schemas("store", "transport"))


class Watcher:
    """Looks at the projection all the time: what it sees of a key only gets newer."""

    def __init__(self, projection: DocumentProjection) -> None:
        self._projection = projection
        self.versions: dict[str, int] = {}
        self.looks = 0

    async def look(self) -> None:
        """Read all keys once."""
        for account in range(ACCOUNTS):
            key = f"account:{account}"
            found = await self._projection.get(key)
            if found is not None:
                assert found.version >= self.versions.get(key, 0), f"{key} went back to {found}"
                self.versions[key] = found.version
                self.looks += 1


class Found(NamedTuple):
    """What a run left: the balances and versions of the accounts, and those of the projection."""

    expected: dict[int, tuple[int, int] | None]
    stored: dict[int, ProjectedValue | None]
    handled: int


async def run_to_end(onceonly: Terminal, bank: Bank, *, kills: int, compares: bool) -> Found:
    """Handle all messages in two processes, and kill some while they hold messages."""
    (onceonly.folder / "projecting.py").write_text(bank.program(compares=compares))
    killed, end = 0, time.monotonic() + PATIENCE
    async with AsyncExitStack() as stack:
        documents = await stack.enter_async_context(open_documents(bank.projection, clock=LIVE.clock))
        projection = DocumentProjection(documents, "balances", clock=LIVE.clock)
        watcher = Watcher(projection)
        run, port = stack.enter_context(probed(onceonly, "projecting:bank", "-p", str(PROCESSES)))
        while left := (await bank.all(f"SELECT COUNT(*) FROM {bank.name}_messages"))[0][0]:  # noqa: S608 - the same
            assert time.monotonic() < end, (left, killed, run.process.poll())
            await watcher.look()
            handled = (await bank.all(f"SELECT SUM(version) FROM {bank.name}"))[0][0]  # noqa: S608 - the same
            if killed < kills and handled >= (killed + 1) * MESSAGES / (kills + 2):
                killed += await asyncio.to_thread(kill_one, port, killed % PROCESSES) is not None
            await asyncio.sleep(0.01)
        run.stop()
        await watcher.look()
        rows = await bank.all(f"SELECT id, balance, version FROM {bank.name}")  # noqa: S608 - the same
        stored = {account: await projection.get(f"account:{account}") for account, _, _ in rows}
    assert killed == kills
    assert watcher.looks
    assert await bank.all(f"SELECT 1 FROM {bank.name}_records") == []  # noqa: S608 - the same
    expected = {account: (balance, version) if balance % 5 else None for account, balance, version in rows}
    return Found(expected, stored, sum(version for _, _, version in rows))


@pytest.mark.timeout(400)
async def test_a_projection_ends_with_the_newest_state_of_each_key(onceonly: Terminal, bank: Bank) -> None:
    """Every message came twice, ten processes were killed while they held messages, and old writes came late."""
    found = await run_to_end(onceonly, bank, kills=KILLS, compares=True)
    assert found.handled == MESSAGES
    assert {account: each and (each.json(), each.version) for account, each in found.stored.items()} == found.expected


@pytest.mark.timeout(400)
@pytest.mark.parametrize("bank", ["redis_url"], ids=["redis"], indirect=True)
async def test_without_a_look_at_the_version_a_late_write_stays(onceonly: Terminal, bank: Bank) -> None:
    """So the test above can fail."""
    found = await run_to_end(onceonly, bank, kills=0, compares=False)
    assert found.handled == MESSAGES
    stored = {account: each and each.json() for account, each in found.stored.items()}
    assert stored != {account: each and each[0] for account, each in found.expected.items()}
