"""One entity that a thousand messages want to change, and sixteen workers at them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest

from onceonly import Context, Endpoint
from onceonly.assembly import open_database, open_dead_letters, open_transport, schemas, temporary_transport
from onceonly.model.message import Message, Send
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Depth, Topology, Transport
from onceonly.sql.schema import create, drop
from tests.servers.available import MEASURED, RABBITMQ, REDIS, need

MESSAGES, WORKERS = 1_000, 16
EMPTY = Depth(waiting=0, held=0, delayed=0)


@dataclass
class Deposit:
    """The command that all are."""

    account_id: str
    amount: int


@dataclass
class Account:
    """The entity that they all change."""

    account_id: str
    balance: int = 0
    deposits: int = 0


@dataclass
class Deposited:
    """What is announced: the account as this deposit left it."""

    account_id: str
    balance: int
    deposits: int


def bank(store: str, transport: str) -> Endpoint:
    """Make one of the workers."""
    bank = Endpoint("bank", store=store, transport=transport)

    @bank.handler(entity=Account, key="account_id")
    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.balance += message.amount
        account.deposits += 1
        context.send(Deposited(account.account_id, account.balance, account.deposits), to="ledger")

    return bank


@asynccontextmanager
async def postgresql_place(url: str) -> AsyncIterator[str]:
    """Make the tables of a store, and drop them."""
    store = f"{url}?prefix=hot_"
    async with open_database(store) as database:
        await create(database, *schemas("store"))
        try:
            yield store
        finally:
            await drop(database, *schemas("store"))


@asynccontextmanager
async def redis_place() -> AsyncIterator[str]:
    """Name a place of one's own, and empty it."""
    from redis.asyncio import Redis  # noqa: PLC0415 - only for this one

    prefix = f"t{uuid4().hex[:10]}:"
    url = need(REDIS)
    try:
        yield f"{url}?prefix={prefix}"
    finally:
        async with Redis.from_url(url) as client:
            keys = [key async for key in client.scan_iter(match=f"{prefix}*")]
            if keys:
                await client.delete(*keys)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["postgresql", "redis"])
async def test_a_thousand_changes_of_one_entity_by_sixteen_workers_are_each_made_once(where: str, postgresql_url: str) -> None:
    """The balance is exact, each state was announced once, nobody is a dead letter because of lost races."""
    transport = f"{need(RABBITMQ)}?prefix=t{uuid4().hex[:10]}."
    ledger = Topology(endpoint="ledger")
    place = postgresql_place(postgresql_url) if where == "postgresql" else redis_place()
    async with (
        place as store,
        temporary_transport(transport, [bank(store, transport).topology(), ledger]),
        open_transport(transport, "ledger") as outside,
    ):
        await outside.declare([ledger, bank(store, transport).topology()])
        await fill(outside)
        since = time.monotonic()
        await work(outside, [bank(store, transport) for _ in range(WORKERS)])
        MEASURED.append(
            f"one hot entity on {where}, {MESSAGES:,} messages, {WORKERS} workers: {time.monotonic() - since:.1f} s"
        )
        announced = await states(outside)
        assert {state.deposits: state.balance for state in announced} == dict(totals())
        async with open_dead_letters(store) as letters:
            assert await letters.count(Filter()) == 0


def totals() -> list[tuple[int, int]]:
    """Return the number of deposits and the balance after each; every deposit is of 7."""
    return [(number, 7 * number) for number in range(1, MESSAGES + 1)]


async def fill(outside: Transport) -> None:
    """Send the deposits."""
    body = b'{"account_id": "a1", "amount": 7}'
    sends = [Send(message=Message(id=f"m{n}", source="till", type="Deposit", body=body), to="bank") for n in range(MESSAGES)]
    await outside.send(sends)


async def work(outside: Transport, workers: list[Endpoint]) -> None:
    """Let them work until the queue is empty."""
    stop = asyncio.Event()
    running = asyncio.gather(*(worker.run(stop) for worker in workers))
    try:
        async with asyncio.timeout(60):
            while await outside.depth("bank") != EMPTY:
                assert not running.done(), running.result()
    finally:
        stop.set()
        await running


async def states(outside: Transport) -> list[Deposited]:
    """Take everything that was announced, a copy of the same message once."""
    found: dict[str, Deposited] = {}
    while deliveries := await outside.receive(100, 0.1):
        for delivery in deliveries:
            found[dict(delivery.headers)["ce-id"]] = Deposited(**json.loads(delivery.body))
        await outside.ack(deliveries)
    return list(found.values())
