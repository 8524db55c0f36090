"""Hosted delivery on a database server and on documents: overlapping calls, copies, and a caller that is cut off."""

import asyncio
from uuid import uuid4

from msgspec import Struct

from onceonly import Context, Endpoint
from onceonly.assembly import open_database, open_transport
from onceonly.assembly.documents import create
from onceonly.ports.transport import Topology
from onceonly.sql.schema import create as create_tables
from onceonly.sql.store import SCHEMA
from tests.endpoint.hosted_harness import TWICE, Base, HostQueue, Order, Placed, order, pending, rows, sql_shop

CALLS, SIZE = 12, 5


class Balance(Struct):
    """An entity."""

    id: str = ""
    amount: int = 0


async def test_overlapping_calls_on_postgresql(postgresql_url: str) -> None:
    """Each message arrives in two calls at the same time: rows and ids on the wire once, and every copy is settled."""
    queue = f"memory://{uuid4().hex}"
    shop = sql_shop(postgresql_url, queue, retry=TWICE)
    async with open_database(postgresql_url) as database, database.writing() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    async with open_database(postgresql_url) as database:
        await create_tables(database, SCHEMA)
    names = [[f"{number}-{position}" for position in range(SIZE)] for number in range(CALLS)]
    hosts = [HostQueue([order(name) for name in some]) for some in (*names, *names)]
    async with open_transport(queue, "listener") as listener:
        await listener.declare([Topology(endpoint="listener", events=("Placed",))])
        async with shop.hosted() as hosted, asyncio.timeout(60):
            while any(host.waiting for host in hosts):
                await asyncio.gather(*[host.deliver(hosted, remaining=30.0) for host in hosts])
            assert await pending(shop) == 0
        taken = await listener.receive(1000, 1.0)
    assert await rows(postgresql_url) == sorted(name for some in names for name in some)
    assert len({dict(each.headers)["ce-id"] for each in taken}) == CALLS * SIZE
    assert not any(outcome.is_dead for host in hosts for outcome in host.outcomes)
    async with open_database(postgresql_url) as database, database.writing() as connection:
        await connection.run_sync(Base.metadata.drop_all)


async def test_entities_on_dynamodb(ministack_endpoint: str) -> None:
    """Several deposits into two entities, with copies: the sums are right, and the messages are sent once by id."""
    queue, table = f"memory://{uuid4().hex}", f"t{uuid4().hex[:10]}"
    store = f"dynamodb://test:test@eu-central-1/{table}?endpoint={ministack_endpoint}"
    await create(store)
    shop, seen = Endpoint("bank", store=store, transport=queue, retry=TWICE), {}

    @shop.handler(entity=Balance, key="id")
    async def deposit(order: Order, balance: Balance, context: Context) -> None:
        balance.amount += 1
        seen[order.id] = balance.amount
        context.publish(Placed(order.id))

    messages = [order(f"{account}-{number}", body=b'{"id":"%d"}' % account) for account in (1, 2) for number in range(5)]
    host = HostQueue([*messages, *messages[:4]])
    async with open_transport(queue, "listener") as listener:
        await listener.declare([Topology(endpoint="listener", events=("Placed",))])
        async with shop.hosted() as hosted, asyncio.timeout(60):
            while host.waiting:
                await host.deliver(hosted)
        taken = await listener.receive(100, 1.0)
    assert seen == {"1": 5, "2": 5}
    assert len({dict(each.headers)["ce-id"] for each in taken}) == len(messages)
    assert not any(outcome.is_dead for outcome in host.outcomes)
