"""A server of the test's own that is stopped and killed under load: nothing is lost, and nothing is handled twice."""

import asyncio
import time
from collections import Counter
from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from onceonly import Context, Endpoint, message
from onceonly.adapters.redis.transport import RedisTransport
from onceonly.model.errors import RetryableError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import SystemClock
from tests.adapters.redis.harness import EVENT, Broker, ids, opened, until
from tests.adapters.redis.harness import message as order
from tests.servers.available import MEASURED
from tests.servers.redis import OwnRedis, own_redis_server

COUNT = 3000
PART = 50
STOPS = 6
PLACED = "shop.placed"
TOPOLOGIES = (Topology(endpoint="shop", events=(EVENT,)), Topology(endpoint="heard", events=(PLACED,)))
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
EMPTY = Depth(waiting=0, held=0, delayed=0)


@message(EVENT)
@dataclass
class Order:
    """Something to handle."""

    total: int


@message(PLACED)
@dataclass
class Placed:
    """What the handler tells."""

    order: str


def shop_on(store: str, broker: Broker) -> Endpoint:
    """Make an endpoint that writes a row for each message that it handles, and tells of it."""
    shop = Endpoint("shop", store=store, transport=broker.url)

    @shop.handler
    async def place(_order: Order, session: AsyncSession, context: Context) -> None:
        await session.execute(text("INSERT INTO placed (id) VALUES (:id)"), {"id": context.message.id})
        context.publish(Placed(context.message.id))

    return shop


async def send_all(sender: RedisTransport, progress: list[str]) -> None:
    """Send every message until it is taken, some with a delay. What is unknown is sent again, as a worker does."""
    for start in range(0, COUNT, PART):
        left = [f"m{number}" for number in range(start, start + PART)]
        while left:
            soon = SystemClock().now() + 300
            sends = [
                Send(message=order(name), to="shop" if number % 2 else "", due=soon if number % 5 == 0 else 0)
                for number, name in enumerate(left)
            ]
            try:
                answers = await sender.send(sends)
            except RetryableError:
                await asyncio.sleep(0.05)
                continue
            progress += [name for name, answer in zip(left, answers, strict=True) if answer is Answer.TAKEN]
            left = [name for name, answer in zip(left, answers, strict=True) if answer is not Answer.TAKEN]


async def hear(receiver: RedisTransport, heard: dict[str, set[str]]) -> None:
    """Take what the shop tells, by order; gives under which ids each order was told of."""
    while True:
        try:
            got = await receiver.receive(100, 1.0)
            for each, name in zip(got, ids(got), strict=True):
                heard.setdefault(each.body.decode().partition(':"')[2].partition('"')[0], set()).add(name)
            await receiver.ack(got)
        except RetryableError:
            await asyncio.sleep(0.05)


async def interrupt(server: OwnRedis, progress: list[str], heard: dict[str, set[str]]) -> None:
    """Stop and kill the server in turn, while messages are sent, and measure until one is handled again."""
    for number in range(STOPS):
        goal = len(progress) + COUNT // (STOPS + 2)
        await until(lambda goal=goal: _reached(progress, goal))  # type: ignore[misc]
        await asyncio.to_thread(server.stop if number % 2 else server.kill)
        await asyncio.to_thread(server.start)
        back, known = time.monotonic(), len(heard)
        await until(lambda known=known: _reached(heard, known + 1))  # type: ignore[misc]
        how = "stopped" if number % 2 else "killed"
        MEASURED.append(f"Redis, {how}: first message handled {time.monotonic() - back:.1f} s after its return")


async def _reached(progress: Sized, goal: int) -> bool:
    return len(progress) >= min(goal, COUNT)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_nothing_is_lost_or_doubled_when_the_server_is_killed(tmp_path: Path) -> None:
    """With `appendfsync always`: each message that was taken is handled once, and told of under one id."""
    store, progress, heard = f"sqlite:///{tmp_path}/shop.db", list[str](), dict[str, set[str]]()
    engine = create_async_engine(store.replace("sqlite", "sqlite+aiosqlite"))
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE placed (id TEXT)"))
    with own_redis_server(*DURABLE) as server:
        async with opened(*TOPOLOGIES, server=server.url, options="&lease=3&timeout=5") as broker:
            shop = shop_on(store, broker)
            sender, receiver = await broker.transport(), await broker.transport("heard")
            hearing = asyncio.ensure_future(hear(receiver, heard))
            async with shop.running():
                await asyncio.gather(send_all(sender, progress), interrupt(server, progress, heard))
                returned = time.monotonic()
                await until_settled(sender)
                MEASURED.append(
                    f"Redis, {STOPS} restarts: all {COUNT:,} messages settled {time.monotonic() - returned:.1f} s after"
                )
            hearing.cancel()
            await asyncio.wait([hearing])
    async with engine.connect() as connection:
        rows = Counter((await connection.execute(text("SELECT id FROM placed"))).scalars())
    await engine.dispose()
    expected = {f"m{number}" for number in range(COUNT)}
    assert rows == dict.fromkeys(expected, 1)
    assert {name for name, each in heard.items() if len(each) == 1} == expected


async def until_settled(transport: RedisTransport) -> None:
    """Wait until all queues are empty: what was held when the server stopped comes again after a lease."""

    async def is_settled() -> bool:
        try:
            return [await transport.depth(name) for name in ("shop", "heard")] == [EMPTY, EMPTY]
        except RetryableError:
            return False

    async with asyncio.timeout(300):
        while not await is_settled():  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_server_without_a_file_loses_what_it_acknowledged() -> None:
    """The same kill without `appendonly`: what the warning says is true, and the test above can fail."""
    with own_redis_server("--appendonly", "no") as server:
        async with opened(*TOPOLOGIES, server=server.url, options="&timeout=5") as broker:
            sender = await broker.transport()
            assert await sender.send([Send(message=order(), to="shop")]) == (Answer.TAKEN,)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await sender.declare(TOPOLOGIES)
            assert await sender.receive(1, 0.1) == ()
