"""Queues behind a prefix of their own in the emulator, and a plain client in addition to the library."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.queue.aio import QueueClient, QueueServiceClient

from onceonly.adapters.azure.queue.address import QueueNames, read_queue
from onceonly.adapters.azure.queue.client import QueueLink
from onceonly.adapters.azure.queue.transport import AzureQueueTransport
from onceonly.model.message import Delivery, Message, Send
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemClock
from tests.servers.azurite import ACCOUNT, KEY, Azurite
from tests.servers.cutting_http import HttpCutter, Request, cutting_http

EVENT = "shop.order.v1"
TOPOLOGY = Topology(endpoint="shop", events=(EVENT,))
PATIENCE = 20.0


class Broker:
    """Transports behind one prefix. `service` is a client that does not use the library."""

    def __init__(self, stack: AsyncExitStack, emulator: Azurite, service: QueueServiceClient) -> None:
        self.prefix = f"t{uuid4().hex[:10]}"
        self.emulator = emulator
        self.service = service
        self.names = QueueNames(self.prefix)
        self.queue = self.names.queue("shop")
        self.delayed = self.names.delayed("shop")
        self._stack = stack

    def url(self, options: str = "", *, through: str = "") -> str:
        """Return the URL of the prefix, through a proxy or directly."""
        return self.emulator.url("queue", self.prefix, through=through) + "&poll=0.1" + options

    @property
    def plain(self) -> QueueClient:
        """Return a plain client of the queue `shop`."""
        return self.service.get_queue_client(self.queue)

    async def link(self, url: str = "") -> QueueLink:
        """Open a connection of its own."""
        link = await QueueLink(read_queue(url or self.url())).open()
        self._stack.push_async_callback(link.close)
        return link

    async def transport(self, endpoint: str = "shop", *, url: str = "", clock: Clock | None = None) -> AzureQueueTransport:
        """Open a transport on a connection of its own."""
        transport = AzureQueueTransport(await self.link(url), endpoint, clock=clock or SystemClock())
        self._stack.push_async_callback(transport.close)
        return transport

    async def cut(self, is_write: Callable[[Request], bool]) -> tuple[HttpCutter, str]:
        """Put a proxy that cuts connections before the service; gives it, and a URL through it."""
        cutter, through = await self._stack.enter_async_context(cutting_http(self.emulator.queue, is_write))
        return cutter, self.url(through=through)

    async def texts(self, queue: str = "") -> list[str]:
        """Peek at the visible messages of a queue."""
        client = self.service.get_queue_client(queue or self.queue)
        return [str(each.content) for each in await client.peek_messages(32)]


@asynccontextmanager
async def opened(emulator: Azurite, *topologies: Topology) -> AsyncIterator[Broker]:
    """Declare these queues behind a prefix of their own; delete everything behind it at the end."""
    async with AsyncExitStack() as stack:
        credential = AzureNamedKeyCredential(ACCOUNT, KEY)
        service = QueueServiceClient(f"{emulator.queue}/{ACCOUNT}", credential=credential)
        await stack.enter_async_context(service)
        broker = Broker(stack, emulator, service)
        stack.push_async_callback(_empty, broker)
        await (await broker.transport()).declare(topologies or (TOPOLOGY,))
        yield broker


async def _empty(broker: Broker) -> None:
    async for queue in broker.service.list_queues(name_starts_with=f"{broker.prefix}-"):
        await broker.service.delete_queue(queue)


def message(name: str = "m1", **fields: Any) -> Message:
    """Make a message."""
    return Message(**{"id": name, "source": "till", "type": EVENT, "body": b'{"total": 1}'} | fields)


def commands(*names: str, to: str = "shop", due: int = 0) -> list[Send]:
    """Make commands."""
    return [Send(message=message(name), to=to, due=due) for name in names]


def event_text(**attributes: object) -> str:
    """Write a CloudEvent in JSON format, as a plain producer does."""
    return json.dumps({"specversion": "1.0", "id": "o1", "source": "legacy", "type": "PlaceOrder"} | attributes)


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """Name deliveries."""
    return [dict(delivery.headers)["ce-id"] for delivery in deliveries]


async def take(transport: AzureQueueTransport, count: int) -> list[Delivery]:
    """Receive this many, in as many calls as it takes."""
    got: list[Delivery] = []
    while len(got) < count and (more := await transport.receive(count - len(got), PATIENCE)):
        got += more
    return got


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(3 * PATIENCE):
        while not await condition():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.05)
