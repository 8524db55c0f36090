"""A queue that is deleted while a worker runs, on real servers: the worker declares it again, as a restart would."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable
from uuid import uuid4

import aiormq
import pytest
from sqlalchemy import delete, table

from onceonly import Endpoint, message
from onceonly.assembly import open_database, open_transport
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology, Transport
from onceonly.sql import queue
from onceonly.sql.schema import create
from tests.adapters.rabbitmq.harness import line, until
from tests.servers.available import NATS, RABBITMQ, REDIS, need
from tests.servers.servicebus.standin import standin

ORDER, PAID = "shop.order.v1", "shop.paid.v1"
TOPOLOGY = Topology(endpoint="shop", events=(PAID,), commands=(ORDER,))
DECLARED = "queue was missing, declared again"
PATIENCE = 30.0


@message(ORDER, kind="command")
@dataclass
class Order:
    """A command."""

    name: str


@message(PAID)
@dataclass
class Paid:
    """An event."""

    name: str


@runtime_checkable
class Removable(Protocol):
    """A transport that can remove what it has declared."""

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Remove it."""


class Shop:
    """An endpoint that keeps what it has handled."""

    def __init__(self, folder: Path, transport: str) -> None:
        self.endpoint = Endpoint("shop", store=f"sqlite:///{folder}/shop.db", transport=transport)
        self.endpoint.handler(self._place)
        self.endpoint.handler(self._take_payment)
        self.handled: asyncio.Queue[str] = asyncio.Queue()

    async def _place(self, order: Order) -> None:
        self.handled.put_nowait(order.name)

    async def _take_payment(self, paid: Paid) -> None:
        self.handled.put_nowait(paid.name)

    async def handle(self, *names: str) -> None:
        """Wait until these were handled."""
        async with asyncio.timeout(PATIENCE):
            assert sorted([await self.handled.get() for _ in names]) == sorted(names)


def to_shop(name: str, *, event: bool = False) -> Send:
    """Make a message for the endpoint."""
    body = b'{"name": "%s"}' % name.encode()
    sent = Message(id=f"{name}-{uuid4().hex}", source="till", type=PAID if event else ORDER, body=body)
    return Send(message=sent, to="" if event else "shop")


async def delete_queue(url: str, transport: Transport) -> None:
    """Delete the queue past the library where that is easy, as a person does."""
    if url.startswith(("sqlite", "postgresql")):
        async with open_database(url, "transport") as database, database.engine.begin() as sql:
            await sql.execute(delete(table(f"{database.prefix}queues")))
    elif url.startswith("amqp"):
        await delete_from_rabbitmq(url)
    else:
        assert isinstance(transport, Removable)
        await transport.remove([TOPOLOGY])


async def delete_from_rabbitmq(url: str) -> None:
    """Delete the queue alone. Its exchanges stay."""
    connection = await aiormq.connect(RABBITMQ.url)
    try:
        await (await connection.channel()).queue_delete(f"{url.partition('prefix=')[2]}shop")
    finally:
        await connection.close()


async def remove(url: str) -> None:
    """Remove what the endpoint has at the broker."""
    async with open_transport(url, "till") as till:
        assert isinstance(till, Removable)
        await till.remove([TOPOLOGY])


@pytest.fixture(params=["sqlite", "postgresql", "rabbitmq", "nats", "redis", "sqs", "azure-queues", "servicebus"])
def transport_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a transport behind a prefix of its own; for Service Bus the name of the stand-in, which a test runs itself."""
    name, given = uuid4().hex[:10], request.getfixturevalue
    urls: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/queue.db",
        "postgresql": lambda: f"{given('postgresql_url')}?prefix=deleted_",
        "rabbitmq": lambda: f"{need(RABBITMQ)}?prefix=t{name}.",
        "nats": lambda: f"{need(NATS)}?prefix=t{name}.",
        "redis": lambda: f"{need(REDIS)}/0?prefix=t{name}:",
        "sqs": lambda: f"sqs://test:test@eu-central-1?prefix=t{name}-&endpoint={given('ministack_endpoint')}",
        "azure-queues": lambda: str(given("azurite_storage").url("queue", f"t{name}")),
        "servicebus": lambda: "servicebus",
    }
    return urls[request.param]()


async def test_a_worker_whose_queue_was_deleted_goes_on(
    tmp_path: Path, transport_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It handles the commands and the events that are sent after it has declared the queue, without a restart."""
    monkeypatch.setattr(queue, "CHECK_SECONDS", 0.1)  # a SQL queue notices it within this time
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(standin())).url if transport_url == "servicebus" else transport_url
        if url.startswith("postgresql"):
            await create(await stack.enter_async_context(open_database(url, "transport")), queue.SCHEMA)
        shop = Shop(tmp_path, url)
        async with shop.endpoint.running(), open_transport(url, "till") as till:
            if isinstance(till, Removable):
                stack.push_async_callback(remove, url)
            await till.send([to_shop("a"), to_shop("b", event=True)])
            await shop.handle("a", "b")
            await delete_queue(url, till)
            await until(line(caplog, DECLARED))
            assert await till.send([to_shop("c"), to_shop("d", event=True)]) == (Answer.TAKEN, Answer.TAKEN)
            await shop.handle("c", "d")


async def test_a_queue_of_rabbitmq_that_is_deleted_by_hand_while_messages_are_in_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the queue is gone: its exchanges and the connection stay. What was in work is handled and cannot be acknowledged."""
    url = f"{need(RABBITMQ)}?prefix=t{uuid4().hex[:10]}."
    shop = Shop(tmp_path, url)
    try:
        async with shop.endpoint.running(), open_transport(url, "till") as till:
            await till.send([to_shop(f"first {number}") for number in range(50)])
            await shop.handled.get()
            await delete_from_rabbitmq(url)
            await until(line(caplog, DECLARED))
            assert await till.send([to_shop("after"), to_shop("paid", event=True)]) == (Answer.TAKEN, Answer.TAKEN)
            missing = {"after", "paid"}
            async with asyncio.timeout(PATIENCE):
                while missing:
                    missing.discard(await shop.handled.get())
    finally:
        await remove(url)
