"""Messages that end their process, among good ones: the good ones are handled once, and only those that kill are given up."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly.assembly import open_database, open_dead_letters, open_transport, schemas, temporary_transport
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import FailureKind, Message, Send
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from onceonly.sql.database import Database
from onceonly.sql.schema import create
from tests.servers.available import RABBITMQ, need, postgresql_database

GOOD, KILLERS = 200, 6
ENDS = ("exit", "kill")
DEADLINE = 300.0
"""Seconds, as a generous limit: nothing is judged by it."""


def messages() -> list[Message]:
    """Make them: the ones that kill are spread among the others."""
    bodies = [{"id": f"good-{number}"} for number in range(GOOD)]
    for number in range(KILLERS):
        bodies.insert(number * (GOOD // KILLERS) + 7, {"id": f"kills-{number}", "ends": ENDS[number % 2]})
    return [Message(id=each["id"], source="test", type="Work", body=str(each).replace("'", '"').encode()) for each in bodies]


async def prepare(store: str, transport: str) -> None:
    """Make the tables and the queue, and send all messages."""
    async with open_database(store) as database:
        await _create(database)
    async with open_transport(transport, "shop") as queue:
        await queue.declare([Topology(endpoint="shop")])
        await queue.send([Send(message=each, to="shop") for each in messages()])


async def _create(database: Database) -> None:
    for schema in schemas():
        await create(database, schema)
    async with database.writing() as connection:
        await connection.execute(text("CREATE TABLE works_done (line SERIAL PRIMARY KEY, id VARCHAR(40))"))


async def rows(store: str) -> Counter[str]:
    """Count what was committed."""
    engine = create_async_engine(store.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.connect() as connection:
            return Counter((await connection.scalars(text("SELECT id FROM works_done"))).all())
    finally:
        await engine.dispose()


async def letters(store: str) -> list[DeadLetter]:
    """Read the dead letters."""
    async with open_dead_letters(store) as kept:
        return list(await kept.page(Filter(), limit=1000))


@asynccontextmanager
async def place(kind: str, store: str) -> AsyncIterator[str]:
    """Return the URL of a transport."""
    if kind == "sql":
        yield f"{store}?lease=2"
        return
    url = f"{need(RABBITMQ)}?prefix=killers-{uuid4().hex[:8]}-"
    async with temporary_transport(url, [Topology(endpoint="shop")]):
        yield url


@pytest.fixture
def store() -> Iterator[str]:
    """Return a database."""
    with postgresql_database() as url:
        yield url


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kind", "handler"),
    [
        ("rabbitmq", "single"),
        pytest.param("sql", "single", marks=pytest.mark.repeated),
        pytest.param("rabbitmq", "batch", marks=pytest.mark.soak),
    ],
)
async def test_only_messages_that_kill_are_given_up(kind: str, handler: str, store: str, tmp_path: Path) -> None:
    """Six among two hundred, two processes, no retries: 200 rows, 6 dead letters with the reason, no innocent one."""
    shutil.copy(Path(__file__).with_name("killer_program.py"), tmp_path / "killers.py")
    async with place(kind, store) as transport:
        await prepare(store, transport)
        environment = {**os.environ, "KILLERS_STORE": store, "KILLERS_TRANSPORT": transport}
        environment |= {"KILLERS_BATCH": "1"} if handler == "batch" else {}
        command = (sys.executable, "-m", "onceonly", "run", "killers:shop", "--processes", "2")
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(DEADLINE):
                while len(await rows(store)) < GOOD or len(await letters(store)) < KILLERS:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(1)
        except TimeoutError:
            pytest.fail(f"{len(await rows(store))} handled, {[each.key for each in await letters(store)]} given up")
        finally:
            process.terminate()
            await process.wait()
        assert await rows(store) == Counter(f"good-{number}" for number in range(GOOD))
        given_up = await letters(store)
    assert sorted(each.message.id for each in given_up if each.message) == [f"kills-{number}" for number in range(KILLERS)]
    for each in given_up:
        assert {failure.kind for failure in each.history} == {FailureKind.KILLED}
        assert each.attempts == 1
        assert "handler of this message was running" in each.reason
