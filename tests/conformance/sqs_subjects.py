"""SQS as a subject of the suites: each transport has clients of its own, and names of its own."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self
from uuid import uuid4

from onceonly.adapters.aws.sqs import topology
from onceonly.adapters.aws.sqs.address import read_sqs
from onceonly.adapters.aws.sqs.batches import on_deliveries
from onceonly.adapters.aws.sqs.client import SqsLink
from onceonly.adapters.aws.sqs.inbox import SqsReceipt
from onceonly.adapters.aws.sqs.transport import SqsTransport
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Delivery
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Topology
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.suite import ENDPOINT, OTHER
from tests.conformance.aws_subjects import KEYS

QUEUES = (ENDPOINT, OTHER, "audit", "idle")


class NotedTransport(SqsTransport):
    """A transport that notes the handles of all deliveries, also of those that it has acknowledged."""

    def __init__(self, link: SqsLink, endpoint: str, *, clock: Clock) -> None:
        super().__init__(link, endpoint, clock=clock)
        self.handles: list[str] = []

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Receive, and note."""
        taken = await super().receive(limit, wait)
        self.handles += [each.receipt.handle for each in taken if isinstance(each.receipt, SqsReceipt)]
        return taken


class SqsSubject:
    """Everything behind one prefix on an emulator. The clock is the test's. Leases end when a test says so.

    SQS counts delays in whole seconds of its own time, so time that passes is real, and rounded up to seconds. With `runs` the
    leases are short and end by themselves.
    """

    def __init__(self, endpoint: str, *, lease: int, fifo: bool) -> None:
        self.clock = ManualClock()
        fifo_option = "&fifo=true" if fifo else ""
        self.url = f"sqs://{KEYS}eu-central-1?prefix=t{uuid4().hex[:10]}-&lease={lease}&endpoint={endpoint}{fifo_option}"
        self._lease = lease
        self._clocks = [self.clock]
        self._links: list[SqsLink] = []
        self._transports: list[NotedTransport] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, endpoint: str, *, lease: int = 3600, fifo: bool = False) -> AsyncIterator[Self]:
        """Begin with nothing; close every client at the end, and delete the queues."""
        subject = cls(endpoint, lease=lease, fifo=fifo)
        try:
            yield subject
        finally:
            await asyncio.gather(*(transport.close() for transport in subject._transports))
            with suppress(OnceOnlyError):
                await topology.remove(await subject._link(), [Topology(endpoint=name) for name in QUEUES])
            for link in subject._links:
                await link.close()

    async def transport(self, endpoint: str = ENDPOINT) -> NotedTransport:
        """Open a transport with clients of its own."""
        return await self._open(endpoint, self.clock)

    async def ahead(self, endpoint: str, milliseconds: int) -> NotedTransport:
        """Open a transport with clients of its own, and with a clock of its own."""
        self._clocks.append(ManualClock(self.clock.now() + milliseconds))
        return await self._open(endpoint, self._clocks[-1])

    async def limit(self, endpoint: str, most: int) -> None:
        """Fail: a queue has no limit. The rules that need one are waived."""
        raise AssertionError(f"cannot limit {endpoint} to {most} messages: SQS does not limit the length of a queue")

    async def delete(self, endpoint: str) -> None:
        """Delete the queue with its messages."""
        link = await self._link()
        await topology.delete_queue(link, link.names.queue(endpoint))

    def now(self) -> int:
        """Return the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass, also at the service, whose delays are in whole seconds."""
        for clock in self._clocks:
            clock.advance(milliseconds)
        await asyncio.sleep(math.ceil(milliseconds / 1000))

    async def lapse(self) -> None:
        """End all leases: what the transports have received, and is not deleted, becomes visible at once."""
        for clock in self._clocks:
            clock.advance(self._lease * 1000)
        for transport in self._transports:
            link, url = transport._link, await transport._link.url(transport._name)

            async def request(entries: list[dict[str, str]], link: SqsLink = link, url: str | None = url) -> object:
                changed = [{**entry, "VisibilityTimeout": 0} for entry in entries]
                return await link.sqs.change_message_visibility_batch(QueueUrl=url, Entries=changed)

            _, error = await on_deliveries(transport.handles, request, link, "end leases")
            assert error is None

    async def _open(self, endpoint: str, clock: ManualClock) -> NotedTransport:
        self._transports.append(NotedTransport(await self._link(), endpoint, clock=clock))
        return self._transports[-1]

    async def _link(self) -> SqsLink:
        self._links.append(await SqsLink.open(read_sqs(self.url)))
        return self._links[-1]
