"""A process that uses one queue on RabbitMQ, with whatever version of the library is on its path.

It is told what to do by lines of JSON, `[operation, *arguments]`, and answers each with a line.
"""

import asyncio
import json
import sys
from typing import Any

from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import Link
from onceonly.adapters.rabbitmq.topology import TopologyNames
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.message import Message, Send
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemClock, SystemRandomSource


class Process:
    """One transport, and what it holds."""

    def __init__(self, url: str, endpoint: str, names: TopologyNames) -> None:
        self.link = Link(read_address(url), SystemRandomSource())
        self.transport = RabbitMQTransport(self.link, endpoint, clock=SystemClock(), names=names)
        self.held: list[Any] = []

    async def declare(self, endpoint: str, events: list[str]) -> None:
        """Declare a queue and its subscriptions."""
        await self.transport.declare([Topology(endpoint=endpoint, events=tuple(events))])

    async def send(self, to: str, kind: str, names: list[str], delay: int) -> list[str]:
        """Send commands, or publish events where `to` is empty."""
        due = SystemClock().now() + delay if delay else 0
        messages = [Message(id=name, source="till", type=kind, body=b"{}") for name in names]
        return [answer.name for answer in await self.transport.send([Send(message=each, to=to, due=due) for each in messages])]

    async def take(self, wait: float) -> list[str]:
        """Receive, and hold."""
        got = await self.transport.receive(100, wait)
        self.held += got
        return [dict(delivery.headers)["ce-id"] for delivery in got]

    async def ack(self) -> None:
        """Acknowledge all that is held."""
        held, self.held = self.held, []
        await self.transport.ack(held)

    async def depth(self, endpoint: str) -> list[int]:
        """Count."""
        depth = await self.transport.depth(endpoint)
        return [depth.waiting, depth.held, depth.delayed]


async def main(url: str, endpoint: str, names: TopologyNames) -> None:
    """Do what the lines say, until the process is killed."""
    process = Process(url, endpoint, names)
    while line := await asyncio.to_thread(sys.stdin.readline):
        operation, *arguments = json.loads(line)
        sys.stdout.write(json.dumps(await getattr(process, operation)(*arguments)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], TopologyNames(sys.argv[3], levels=int(sys.argv[4]), tick=int(sys.argv[5]))))
