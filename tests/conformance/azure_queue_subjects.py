"""Azure Queue Storage as a subject of the suites: each transport has a connection of its own, and its own names."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self
from uuid import uuid4

from onceonly.adapters.azure.queue.address import QueueNames, read_queue
from onceonly.adapters.azure.queue.client import LeaseLost, QueueLink, QueueNotFound
from onceonly.adapters.azure.queue.transport import AzureQueueTransport
from onceonly.model.errors import OnceOnlyError
from onceonly.ports.transport import Topology
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.suite import ENDPOINT
from tests.servers.azurite import Azurite

QUEUES = (ENDPOINT, "billing", "audit", "idle", *(f"e{number}" for number in range(10)))
LEASE_SECONDS = 3600


class RecordingLink(QueueLink):
    """A connection that remembers the delayed messages that it puts, so that a test can move the time of the service."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.delayed: dict[tuple[str, str], tuple[str, int]] = {}

    async def put(self, queue: str, text: str, *, hidden: int = 0) -> None:
        """Put a message as the class does, and keep its receipt."""
        if not hidden:
            await super().put(queue, text)
            return
        await self.put_plainly(queue, text, hidden)

    async def put_plainly(self, queue: str, text: str, hidden: int) -> None:
        """Put a message by the client of the driver."""
        async with self._request("send"):
            sent = await self._queue(queue).send_message(text, visibility_timeout=hidden, time_to_live=-1)
        self.delayed[queue, str(sent.id)] = str(sent.pop_receipt), hidden * 1000


class AzureQueueSubject:
    """Everything behind one prefix in an account. The clock is the test's. Leases end when a test says so.

    With `runs` the leases are short and end by themselves, and time that passes is real.
    """

    def __init__(self, stack: AsyncExitStack, emulator: Azurite, *, lease: int, runs: bool) -> None:
        self.clock = ManualClock()
        self.url = f"{emulator.url('queue', f't{uuid4().hex[:10]}')}&lease={lease}&poll=0.1"
        self._runs = runs
        self.address = read_queue(self.url)
        self.names = QueueNames(self.address.prefix)
        self._stack = stack
        self._clocks = [self.clock]
        self._links: list[RecordingLink] = []
        self._transports: list[AzureQueueTransport] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, emulator: Azurite, *, lease: int = LEASE_SECONDS, runs: bool = False) -> AsyncIterator[Self]:
        """Begin with nothing; close every connection at the end, and delete what was made."""
        async with AsyncExitStack() as stack:
            subject = cls(stack, emulator, lease=lease, runs=runs)
            try:
                yield subject
            finally:
                for transport in subject._transports:
                    with suppress(OnceOnlyError):
                        await transport.close()
                remover = await subject.transport()
                await remover.remove([Topology(endpoint=name) for name in QUEUES])

    async def transport(self, endpoint: str = ENDPOINT) -> AzureQueueTransport:
        """Open a transport on a connection of its own."""
        return await self._open(endpoint, self.clock)

    async def ahead(self, endpoint: str, milliseconds: int) -> AzureQueueTransport:
        """Open a transport on a connection of its own, with a clock of its own."""
        self._clocks.append(ManualClock(self.clock.now() + milliseconds))
        return await self._open(endpoint, self._clocks[-1])

    def now(self) -> int:
        """Return the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Move the clocks, and hide what is delayed for a shorter time."""
        for clock in self._clocks:
            clock.advance(milliseconds)
        if self._runs:
            await asyncio.sleep(milliseconds / 1000)
            return
        for link in self._links:
            for (queue, id_), (receipt, left) in list(link.delayed.items()):
                hidden = max(0, left - milliseconds)
                with suppress(LeaseLost, QueueNotFound):
                    receipt = await link.update(queue, id_, receipt, hidden=hidden // 1000)  # noqa: PLW2901 - the next one
                link.delayed[queue, id_] = receipt, hidden

    async def lapse(self) -> None:
        """End all leases, as the service does: the messages are visible, and their receipts are those of nobody."""
        for transport in self._transports:
            inbox = transport._inbox
            for held in list(inbox._held.values()):
                with suppress(LeaseLost, QueueNotFound):
                    await self._links[0].update(inbox._queue, held.id, held.receipt, hidden=0)

    async def limit(self, endpoint: str, most: int) -> None:
        """Fail: a queue has no limit. The rules that need one are waived."""
        raise AssertionError(f"cannot limit {endpoint} to {most} messages: Azure does not limit the length of a queue")

    async def delete(self, endpoint: str) -> None:
        """Delete the queue with its messages."""
        await self._links[0].drop(self.names.queue(endpoint))

    async def _open(self, endpoint: str, clock: ManualClock) -> AzureQueueTransport:
        link = RecordingLink(self.address)
        await link.open()
        self._stack.push_async_callback(link.close)
        self._links.append(link)
        self._transports.append(AzureQueueTransport(link, endpoint, clock=clock))
        return self._transports[-1]
