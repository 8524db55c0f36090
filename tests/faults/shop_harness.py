"""A shop on real servers, some of whose messages ruin every unit that they are in."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import msgspec
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly import Endpoint, Retry
from onceonly.assembly import open_database, open_dead_letters, open_transport, schemas, temporary_transport
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology, Transport
from onceonly.sql.schema import create, drop
from tests.servers.available import RABBITMQ, need, on_postgresql

DEADLINE = 120
"""Seconds after which a test gives up."""
SCHEMA = "CREATE TABLE {} (id VARCHAR(40) PRIMARY KEY, total INTEGER NOT NULL)"

RUINS = {
    ("postgresql", "kill"): "SELECT pg_terminate_backend(pg_backend_pid())",
    ("postgresql", "race"): "DO $$ BEGIN RAISE SQLSTATE '40001' USING MESSAGE = 'could not serialize'; END $$",
    ("postgresql", "deadlock"): "DO $$ BEGIN RAISE SQLSTATE '40P01' USING MESSAGE = 'deadlock detected'; END $$",
    ("postgresql", "full"): "DO $$ BEGIN RAISE SQLSTATE '53100' USING MESSAGE = 'could not extend file'; END $$",
    ("mysql", "kill"): "KILL CONNECTION CONNECTION_ID()",
    ("mysql", "race"): "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'",
    ("mysql", "deadlock"): "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'",
    ("mysql", "full"): "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'",
}
"""How a handler ruins the unit that it is in."""


@dataclass
class Place:
    """A message: `how` says what its handler does besides adding a row."""

    id: str
    how: str = ""


class Shop:
    """An endpoint, its databases, and what its handlers did."""

    def __init__(self, store: str, transport: str, table: str) -> None:
        self.store = store
        self.transport = transport
        self.system = store.partition(":")[0].partition("+")[0]
        self.table = table
        self.runs: Counter[str] = Counter()
        """How often each message's handler ran."""
        self.order: list[str] = []
        """The ids of the messages, in the order in which their handlers began."""

    def endpoint(self, *, store: str = "", retry: Retry | None = None, **settings: Any) -> Endpoint:
        """Make the endpoint; without another policy the first failure that is counted makes a dead letter."""
        policy = retry or Retry(immediate=0, delayed=0)
        shop = Endpoint("shop", store=store or self.store, transport=self.transport, retry=policy, **settings)

        @shop.handler
        async def place(message: Place, connection: AsyncConnection) -> None:
            self.runs[message.id] += 1
            self.order.append(message.id)
            await connection.execute(text(f"INSERT INTO {self.table} VALUES (:id, 0)"), {"id": message.id})  # noqa: S608 - a table of our own
            if message.how in {"KeyboardInterrupt", "SystemExit"}:
                raise {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}[message.how]
            if message.how == "lock":
                await connection.execute(text(f"UPDATE {self.table} SET total = total + 1 WHERE id = 'the row'"))  # noqa: S608 - a table of our own
            elif message.how.startswith("idle"):
                await asyncio.sleep(float(message.how.partition(" ")[2]))
                await connection.execute(text("SELECT 1"))
            elif message.how:
                await connection.exec_driver_sql(RUINS[self.system, message.how])

        return shop

    async def send(self, *messages: Place) -> None:
        """Send these, with their own ids."""
        async with open_transport(self.transport, "web") as transport:
            await transport.declare([Topology(endpoint="shop")])
            assert {*await transport.send([sent(message) for message in messages])} == {Answer.TAKEN}

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        """Keep sending good messages beside the block."""

        async def feed(transport: Transport) -> None:
            for number in count():
                await transport.send([sent(Place(f"more {number}.{each}")) for each in range(5)])
                await asyncio.sleep(0.02)

        async with open_transport(self.transport, "web") as transport:
            feeding = asyncio.create_task(feed(transport))
            try:
                yield
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)

    async def rows(self) -> list[str]:
        """Return the ids that handlers committed."""
        async with open_database(self.store) as database, database.reading() as connection:
            return sorted(await connection.scalars(text(f"SELECT id FROM {self.table} WHERE id <> 'the row'")))  # noqa: S608 - a table of our own

    async def dead(self) -> dict[str, DeadLetter]:
        """Return the dead letters by id."""
        async with open_dead_letters(self.store) as letters:
            return {letter.message.id: letter for letter in await letters.page(Filter()) if letter.message is not None}

    async def until(self, is_so: Callable[[], Any]) -> None:
        """Wait until this is so, or the deadline is over."""
        async with asyncio.timeout(DEADLINE):
            while not await is_so():  # noqa: ASYNC110 - the server has no event
                await asyncio.sleep(0.1)

    async def until_rows(self, number: int) -> None:
        """Wait until this many rows are committed."""

        async def is_so() -> bool:
            return len(await self.rows()) >= number

        await self.until(is_so)

    async def until_dead(self, number: int) -> None:
        """Wait until there are this many dead letters."""

        async def is_so() -> bool:
            return len(await self.dead()) >= number

        await self.until(is_so)

    @asynccontextmanager
    async def row_locked(self) -> AsyncIterator[None]:
        """Hold the lock of the row that the handlers of "lock" need."""
        async with open_database(self.store) as database, database.engine.connect() as connection:
            await connection.exec_driver_sql("BEGIN")
            await connection.execute(text(f"SELECT total FROM {self.table} WHERE id = 'the row' FOR UPDATE"))  # noqa: S608 - a table of our own
            try:
                yield
            finally:
                await connection.exec_driver_sql("ROLLBACK")

    async def total(self) -> int:
        """Return how often the row was changed that was locked."""
        async with open_database(self.store) as database, database.reading() as connection:
            return int(await connection.scalar(text(f"SELECT total FROM {self.table} WHERE id = 'the row'")) or 0)  # noqa: S608 - a table of our own


@asynccontextmanager
async def idle_limited(url: str) -> AsyncIterator[None]:
    """Have the server end transactions of this database that are idle for longer than a second, in new sessions."""
    change = f'ALTER DATABASE "{make_url(url).database}"'
    await on_postgresql(f"{change} SET idle_in_transaction_session_timeout = 1000", url=url)
    try:
        yield
    finally:
        await on_postgresql(f"{change} RESET idle_in_transaction_session_timeout", url=url)


def sent(message: Place) -> Send:
    """Send it with its own id."""
    body = msgspec.json.encode(message)
    return Send(message=Message(id=message.id, source="web", type="Place", body=body), to="shop")


@asynccontextmanager
async def opened_shop(url: str, *, queue: str) -> AsyncIterator[Shop]:
    """Make the tables and the queue of a shop, on RabbitMQ or in the store's database, and drop them."""
    mine = f"b{uuid4().hex[:8]}_"
    store = f"{url}?prefix={mine}"
    transport = f"{need(RABBITMQ)}?prefix={mine}" if queue == "rabbitmq" else store
    shop = Shop(store, transport, f"{mine}orders")
    async with open_database(store) as database:
        for schema in schemas("store", "transport"):
            await create(database, schema)
        try:
            async with database.writing() as connection:
                await connection.execute(text(SCHEMA.format(shop.table)))
                await connection.execute(text(f"INSERT INTO {shop.table} VALUES ('the row', 0)"))  # noqa: S608 - a table of our own
            topology = [Topology(endpoint="shop"), Topology(endpoint="web")]
            if queue == "rabbitmq":
                async with temporary_transport(transport, topology):
                    yield shop
            else:
                yield shop
        finally:
            for schema in schemas("store", "transport"):
                await drop(database, schema)
            async with database.writing() as connection:
                await connection.execute(text(f"DROP TABLE {shop.table}"))


def address(url: str) -> tuple[str, int]:
    """Return where a server listens."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def through(url: str, port: int) -> str:
    """Return the URL of the same place behind a port of this machine."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}".removeprefix("@")))
