"""Transports on a stand-in of their own, and the plain client of the SDK in addition to the library."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient

from onceonly.adapters.azure.servicebus.address import read_servicebus
from onceonly.adapters.azure.servicebus.link import ServiceBusLink
from onceonly.adapters.azure.servicebus.transport import ServiceBusTransport
from onceonly.model.message import Delivery, Message, Send
from onceonly.ports.transport import Topology
from tests.servers.servicebus.amqp import Broker
from tests.servers.servicebus.entities import Entity
from tests.servers.servicebus.standin import StandIn, standin

EVENT = "shop.order.v1"
TOPOLOGY = Topology(endpoint="shop", events=(EVENT,))
PATIENCE = 20.0


class Place:
    """A namespace. `server` is the stand-in, `client` does not use the library."""

    def __init__(self, stack: AsyncExitStack, server: StandIn, client: ServiceBusClient, options: str) -> None:
        self.server = server
        self.client = client
        self.url = f"{server.url}&timeout=10{options}"
        self._stack = stack

    @property
    def broker(self) -> Broker:
        """Return what a test can break."""
        return self.server.broker

    @property
    def queue(self) -> Entity:
        """Return the queue `shop`, as the service has it."""
        return self.broker.namespace.queues["shop"]

    async def transport(self, endpoint: str = "shop", *, url: str = "") -> ServiceBusTransport:
        """Open a transport on connections of its own."""
        link = ServiceBusLink(read_servicebus(url or self.url))
        self._stack.push_async_callback(link.close)
        transport = ServiceBusTransport(link, endpoint)
        self._stack.push_async_callback(transport.close)
        return transport

    async def put(self, *messages: ServiceBusMessage, entity: str = "shop") -> None:
        """Send as a foreign producer does."""
        async with self.client.get_queue_sender(entity) as sender:
            for each in messages:
                await sender.send_messages(each)

    async def read(self, queue: str) -> ServiceBusReceivedMessage:
        """Receive as a foreign consumer does."""
        async with self.client.get_queue_receiver(queue) as receiver:
            (got,) = await receiver.receive_messages(1, max_wait_time=PATIENCE)
            await receiver.complete_message(got)
        return got


@asynccontextmanager
async def opened(*topologies: Topology, options: str = "") -> AsyncIterator[Place]:
    """Run a stand-in, with these queues."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(standin())
        client = ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)
        await stack.enter_async_context(client)
        place = Place(stack, server, client, options)
        await (await place.transport()).declare(topologies or (TOPOLOGY,))
        yield place


def message(name: str = "m1", **fields: Any) -> Message:
    """Make a message."""
    return Message(**{"id": name, "source": "till", "type": EVENT, "body": b'{"total": 1}'} | fields)


def keyed(name: str, key: str, *, to: str = "shop", due: int = 0) -> Send:
    """Make a command with a key."""
    return Send(message=message(name, extensions=(("partitionkey", key),)), to=to, due=due)


def commands(*names: str, to: str = "shop", due: int = 0) -> list[Send]:
    """Make commands."""
    return [Send(message=message(name), to=to, due=due) for name in names]


def foreign(body: bytes = b'{"total": 1}', *, more: dict[Any, Any] | None = None, **attributes: str) -> ServiceBusMessage:
    """Make a CloudEvent as a plain producer does."""
    known = {"specversion": "1.0", "id": "o1", "source": "legacy", "type": EVENT} | attributes
    properties: dict[Any, Any] = {f"cloudEvents_{name}": value for name, value in known.items() if value} | (more or {})
    return ServiceBusMessage(body, application_properties=properties, content_type="application/json")


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """Name deliveries."""
    return [next(value for name, value in delivery.headers if name.endswith(("_id", "-id"))) for delivery in deliveries]


async def take(transport: ServiceBusTransport, count: int) -> list[Delivery]:
    """Receive this many, in as many calls as it takes."""
    got: list[Delivery] = []
    while len(got) < count and (more := await transport.receive(count - len(got), PATIENCE)):
        got += more
    return got


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(3 * PATIENCE):
        while not condition():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.02)


async def soon(awaited: Awaitable[Any]) -> Any:
    """Wait for something that must happen."""
    async with asyncio.timeout(PATIENCE):
        return await awaited
