"""Workers on SQL servers: more units at once while handlers wait for something else than the database, and only then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from onceonly import Endpoint, WorkerSettings
from onceonly.assembly import units_at_once
from onceonly.runtime.worker import growth
from tests.sql.every_database import emptied
from tests.sql.harness import url

AT_ONCE, COUNT = 6, 12
POSTGRESQL = "postgresql+asyncpg://postgres@127.0.0.1:1/nowhere"


@dataclass
class Work:
    """A command."""

    number: int


class InHandlers:
    """How many handlers are in progress, and were at most."""

    enough_of = AT_ONCE

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self.enough, self.all_done = asyncio.Event(), asyncio.Event()

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now >= self.enough_of:
            self.enough.set()

    def __exit__(self, *_: object) -> None:
        self.now -= 1
        self.done += 1
        if self.done >= COUNT:
            self.all_done.set()


@asynccontextmanager
async def working(shop: Endpoint) -> AsyncIterator[None]:
    """Run it with messages in its queue."""
    async with emptied(str(shop.settings.store)), shop.running():
        async with shop.transaction() as transaction:
            for number in range(COUNT):
                transaction.send(Work(number), to="shop")
        async with asyncio.timeout(90):
            yield


async def test_handlers_that_wait_for_something_else_run_side_by_side(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With default settings: six of twelve must be in progress before any of them ends."""
    monkeypatch.setattr(growth, "IDLE", 0.0)  # other tests use the CPU
    shop, inside = Endpoint("shop", store=server, transport=f"memory://{uuid4()}"), InHandlers()

    @shop.handler
    async def work(_: Work, session: AsyncSession) -> None:
        await session.execute(text("SELECT 1"))
        with inside:
            await inside.enough.wait()

    async with working(shop):
        await inside.all_done.wait()
    assert AT_ONCE <= inside.most <= WorkerSettings().max_concurrency


async def test_handlers_that_wait_for_the_database_run_one_after_another(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them at once would only hold more locks. A busy machine may make one sample late, which opens one more turn."""
    monkeypatch.setattr(growth, "IDLE", 0.0)
    shop, inside = Endpoint("shop", store=server, transport=f"memory://{uuid4()}"), InHandlers()

    @shop.handler
    async def work(_: Work, session: AsyncSession) -> None:
        with inside:
            sleeps = "pg_sleep" if server.startswith("postgresql") else "SLEEP"
            await session.execute(text(f"SELECT {sleeps}(0.03)"))

    async with working(shop):
        await inside.all_done.wait()
    assert inside.most <= 2


def test_only_a_sql_server_has_several_units_at_once(file: Path) -> None:
    """Not SQLite, which has one writer, nor a store without connections."""
    limits = {
        place: units_at_once(Endpoint("shop", store=place, transport="memory://t").settings, entities=False)
        for place in (POSTGRESQL, url(file), "memory://m")
    }
    assert limits == {POSTGRESQL: WorkerSettings().max_concurrency, url(file): 1, "memory://m": 1}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_concurrency_that_was_chosen_stays(concurrency: int) -> None:
    """Also if it is one."""
    worker = WorkerSettings(concurrency=concurrency)
    shop = Endpoint("shop", store=POSTGRESQL, transport="memory://t", worker=worker)
    assert units_at_once(shop.settings, entities=False) == concurrency


def test_entities_are_handled_by_one_unit_at_a_time() -> None:
    """Their versions have an order."""
    shop = Endpoint("shop", store=POSTGRESQL, transport="memory://t")
    assert units_at_once(shop.settings, entities=True) == 1


def test_the_pool_of_a_users_engine_is_not_used_up() -> None:
    """Four connections are left; without a limit the setting holds."""
    pools = {
        "default": create_async_engine(POSTGRESQL),
        "small": create_async_engine(POSTGRESQL, pool_size=2, max_overflow=0),
        "unlimited": create_async_engine(POSTGRESQL, max_overflow=-1),
        "none": create_async_engine(POSTGRESQL, poolclass=NullPool),
    }
    limits = {
        name: units_at_once(Endpoint("shop", store=engine, transport="memory://t").settings, entities=False)
        for name, engine in pools.items()
    }
    assert limits == {"default": 11, "small": 1, "unlimited": 20, "none": 20}


async def test_handlers_that_take_a_connection_are_in_two_batches(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One computes while the other one waits for a statement. No handler ends before two are in progress."""
    monkeypatch.setattr(growth, "IDLE", 2.0)  # a sample never opens a turn
    monkeypatch.setattr(InHandlers, "enough_of", 2)
    shop, inside = Endpoint("shop", store=server, transport=f"memory://{uuid4()}"), InHandlers()

    @shop.handler
    async def work(_: Work, _connection: AsyncConnection) -> None:
        with inside:
            await inside.enough.wait()

    async with working(shop):
        await inside.all_done.wait()
    assert inside.most == 2


async def test_a_chosen_concurrency_holds_for_connections_too(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One keeps the order of the queue."""
    monkeypatch.setattr(growth, "IDLE", 2.0)
    settings = WorkerSettings(concurrency=1)
    shop, inside = Endpoint("shop", store=server, transport=f"memory://{uuid4()}", worker=settings), InHandlers()

    @shop.handler
    async def work(_: Work, connection: AsyncConnection) -> None:
        with inside:
            await connection.execute(text("SELECT 1"))

    async with working(shop):
        await inside.all_done.wait()
    assert inside.most == 1
