"""A prefix of its own on an emulator of SQS and SNS, and plain clients in addition to the library's."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

from onceonly.adapters.aws.sqs import topology
from onceonly.adapters.aws.sqs.address import read_sqs
from onceonly.adapters.aws.sqs.client import SqsLink
from onceonly.adapters.aws.sqs.transport import SqsTransport
from onceonly.model.message import Delivery, Message, Send
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemClock

EVENT = "shop.order.v1"
TOPOLOGY = Topology(endpoint="shop", events=(EVENT,))
PATIENCE = 20.0


class Broker:
    """Transports behind one prefix."""

    def __init__(self, stack: AsyncExitStack, endpoint: str, options: str) -> None:
        self.url = f"sqs://test:test@eu-central-1?prefix=t{uuid4().hex[:10]}-&endpoint={endpoint}{options}"
        self._stack = stack

    async def link(self, url: str = "") -> SqsLink:
        """Open clients that no transport uses."""
        link = await SqsLink.open(read_sqs(url or self.url))
        self._stack.push_async_callback(link.close)
        return link

    async def transport(self, endpoint: str = "shop", *, url: str = "", clock: Clock | None = None) -> SqsTransport:
        """Open a transport with clients of its own."""
        transport = SqsTransport(await self.link(url), endpoint, clock=clock or SystemClock())
        self._stack.push_async_callback(transport.close)
        return transport

    async def put(self, body: str, attributes: dict[str, Any] | None = None, **options: object) -> None:
        """Send to the queue `shop` as another program does: values of attributes are texts or bytes."""
        link = await self.link()
        url = await link.need(link.names.queue("shop"))
        await link.sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=plain(attributes or {}), **options)

    async def change(self, endpoint: str = "shop", **settings: str) -> None:
        """Change a queue as an operator does."""
        link = await self.link()
        url = await link.need(link.names.queue(endpoint))
        await link.sqs.set_queue_attributes(QueueUrl=url, Attributes=settings)


@asynccontextmanager
async def opened(endpoint: str, *topologies: Topology, options: str = "") -> AsyncIterator[Broker]:
    """Declare these queues under a prefix of their own; delete everything at the end."""
    declared = topologies or (TOPOLOGY,)
    async with AsyncExitStack() as stack:
        broker = Broker(stack, endpoint, options)
        link = await broker.link()
        stack.push_async_callback(topology.remove, link, declared)
        await topology.declare(link, declared)
        yield broker


def plain(attributes: dict[str, Any]) -> dict[str, dict[str, object]]:
    """Write attributes as boto wants them."""
    return {
        name: {"DataType": "Binary", "BinaryValue": value}
        if isinstance(value, bytes)
        else {"DataType": "String", "StringValue": value}
        for name, value in attributes.items()
    }


def message(name: str = "m1", body: bytes = b'{"total": 1}', **fields: Any) -> Message:
    """Make a message."""
    return Message(id=name, source="till", type=EVENT, body=body, **fields)


def commands(*names: str, to: str = "shop", due: int = 0) -> list[Send]:
    """Make commands."""
    return [Send(message=message(name), to=to, due=due) for name in names]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """Name deliveries."""
    return [dict(delivery.headers)["ce-id"] for delivery in deliveries]


async def take(transport: SqsTransport, count: int) -> list[Delivery]:
    """Receive this many, in as many calls as it takes."""
    got: list[Delivery] = []
    while len(got) < count and (more := await transport.receive(count - len(got), PATIENCE)):
        got += more
    return got
