"""A client whose host is gone says nothing more, not even goodbye: the server ends its transaction, and its locks with it."""

import asyncio
import os
import socket
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly import Endpoint
from onceonly.config.deduplication import Tokens
from onceonly.config.endpoint import Settings
from onceonly.config.worker import WorkerSettings
from onceonly.model.errors import ConflictError, RetryableError
from onceonly.model.remote import Peer
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from tests.servers.available import on_postgresql
from tests.sql.harness import add, handle, look, message, opened, orders, records, session_of

IDLE = "SHOW idle_in_transaction_session_timeout"


async def test_a_unit_that_is_silent_for_too_long_is_ended(url: str, database: Database, store: SqlStore) -> None:
    """Crash here: 1 the claim is made, 2 nothing more is said, 3 the server ends it, 4 another worker has the message."""
    async with opened(url) as far:
        far.dialect.expect(0.5)
        vanished = await SqlStore(far, "shop").begin([message()])
        await add(vanished, "lost")
        assert await until_free(store) == {"new": ["m1"]}
        await handle(store, message())
        with pytest.raises(RetryableError):
            await vanished.commit(records(message()))
        await far.settle()
    assert await orders(database) == ["m1"]


async def test_the_limit_is_set_once_for_a_connection(database: Database, store: SqlStore) -> None:
    """Each of its transactions has it, also after one that was rolled back; a later, longer limit replaces it."""
    seen: list[str | None] = []
    for seconds in (75.0, 80.0, 60.0):
        database.dialect.expect(seconds)
        for _ in range(2):
            unit = await store.begin([message()])
            seen.append(await session_of(unit.resources).scalar(text(IDLE)))
            unit.abandon()
            async with database.writing() as connection:
                seen.append(await connection.scalar(text(IDLE)))
    assert seen == ["75s"] * 4 + ["80s"] * 8


async def test_a_session_of_a_users_engine_keeps_its_own_limit(url: str, database: Database) -> None:
    """There the limit is that of each transaction, and travels with BEGIN."""
    engine = create_async_engine(url)
    try:
        async with opened(engine) as far:
            await far.ready()
            far.dialect.expect(75.0)
            async with far.writing() as connection:
                assert await connection.scalar(text(IDLE)) == "75s"
            unit = await SqlStore(far, database.prefix).begin([message()])
            assert await session_of(unit.resources).scalar(text(IDLE)) == "75s"
            unit.abandon()
        async with engine.connect() as own:
            assert await own.scalar(text(IDLE)) == "0"
    finally:
        await engine.dispose()


@pytest.mark.usefixtures("database")
async def test_a_transaction_in_a_process_that_opened_nothing_has_a_limit(url: str) -> None:
    """Its process may be stopped for ever, while it holds the lock of its key."""
    shop = Endpoint("shop", store=url, transport=url)
    for asked, expected in ((None, "35s"), (timedelta(minutes=2), "125s")):
        async with shop.transaction(idempotency_key=f"k-{expected}", max_commit=asked) as tx:
            assert await tx.sql.scalar(text(IDLE)) == expected


@pytest.mark.usefixtures("database")
async def test_a_shorter_limit_of_an_administrators_stays(url: str) -> None:
    """It is a policy; a longer one is shortened."""
    name = make_url(url).database
    await on_postgresql(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '20s'")
    try:
        async with opened(url) as far:
            await far.ready()
            far.dialect.expect(30.0)
            async with far.writing() as connection:
                assert await connection.scalar(text(IDLE)) == "20s"
        async with opened(url) as far:
            await far.ready()
            far.dialect.expect(10.0)
            async with far.writing() as connection:
                assert await connection.scalar(text(IDLE)) == "10s"
    finally:
        await on_postgresql(f"ALTER DATABASE {name} RESET idle_in_transaction_session_timeout")


async def test_both_sides_ask_whether_the_other_is_there(database: Database) -> None:
    """The server's limits are settings of the session, the client's are options of its socket; both end within a lease."""
    async with database.reading() as connection:
        found = [await connection.scalar(text(f"SHOW tcp_{name}")) for name in ("keepalives_idle", "keepalives_interval")]
        found += [await connection.scalar(text(f"SHOW tcp_{name}")) for name in ("keepalives_count", "user_timeout")]
        assert found == ["10", "5", "3", "20000"]
        raw = await connection.get_raw_connection()
        with socket.socket(fileno=os.dup(descriptor(raw.driver_connection))) as own:
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert [own.getsockopt(socket.IPPROTO_TCP, each) for each in options] == [10, 5, 3, 20_000]


@pytest.mark.parametrize(
    ("changed", "least"),
    [
        ({}, 30 + 10 + 1),
        ({"timeout": 100.0}, 100 + 10 + 1),
        ({"worker": WorkerSettings(concurrency=4, grace=5.0, budget=3.0)}, 4 * (30 + 5) + 3),
        ({"max_commit": timedelta(minutes=10)}, 600),
        ({"blobs": "folder:///var/lib/shop"}, 30 + 10 + 1 + 60),
        ({"peers": [Peer("https://payments.example/onceonly")]}, 30 + 10 + 1 + 60),
        ({"deduplication": Tokens("postgresql://tokens.example/tokens")}, 30 + 10 + 1 + 60),
    ],
)
def test_no_legal_unit_is_ended(changed: dict[str, Any], least: float) -> None:
    """The limit is above whatever a unit may wait for, but not by much; a handler's own time-out counts as well."""
    settings = Settings(name="shop", store="postgresql://db/shop", transport="amqp://mq", **changed)
    assert least < settings.longest_silence() <= least + 10
    assert settings.longest_silence(1000.0) > 1000.0 * settings.worker.at_once


async def until_free(store: SqlStore) -> dict[str, list[str]]:
    """Look until nobody has the message's claim; gives what is found then."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await look(store, message())
            except ConflictError:
                continue


def descriptor(driver: Any) -> int:
    """Return the socket of a driver's connection."""
    if hasattr(driver, "fileno"):
        return int(driver.fileno())
    return int(driver._transport.get_extra_info("socket").fileno())
