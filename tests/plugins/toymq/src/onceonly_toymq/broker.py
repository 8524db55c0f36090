"""The broker: one list of copies. It is lost with the process, so it is for tests only."""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from onceonly.errors import QueueMissing
from onceonly.formats.cloudevents import arrival, encode
from onceonly.model.message import Delivery, Headers, Send
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Answer, Depth, Topology, Traits, Transport
from onceonly.systems.shared import Shared

LEASE_SECONDS = 30.0
MAX_BODY = 4096
POLL_SECONDS = 0.01


@dataclass(eq=False)
class Copy:
    """One copy in one queue. `receipt` is None while nobody holds it."""

    queue: str
    headers: Headers
    body: bytes
    due: int
    suspect: bool = False
    receipt: Hashable = None
    until: int = 0


@dataclass
class Broker:
    """Everything in the broker."""

    copies: list[Copy] = field(default_factory=list)
    queues: set[str] = field(default_factory=set)
    subscriptions: set[tuple[str, str]] = field(default_factory=set)
    receipts: count = field(default_factory=count)

    async def close(self) -> None:
        """Forget everything."""
        self.copies.clear()


class ToyTransport:
    """The queue of one endpoint."""

    traits = Traits(lease=LEASE_SECONDS, max_body=MAX_BODY)

    def __init__(self, broker: Broker, endpoint: str, clock: Clock) -> None:
        """Use a broker; opens nothing."""
        self._broker = broker
        self._endpoint = endpoint
        self._clock = clock

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what is due; see the port. Nothing is taken by a call that is cancelled."""
        self._require(self._endpoint)
        try:
            async with asyncio.timeout(wait):
                while not (taken := self._take(limit)):  # noqa: ASYNC110 - leases and delays end by the clock
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            return self._take(limit)
        return taken

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Store the copies; see the port."""
        return tuple(map(self._store, sends))

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete copies that this receiver holds; see the port."""
        held = self._held(deliveries)
        self._broker.copies = [copy for copy in self._broker.copies if copy not in held]

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Return copies that this receiver holds; see the port."""
        for copy in self._held(deliveries):
            copy.receipt, copy.suspect = None, False

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Renew leases; see the port."""
        for copy in self._held(deliveries):
            copy.until = self._clock.now() + round(LEASE_SECONDS * 1000)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create queues and subscriptions; see the port."""
        for each in topologies:
            self._broker.queues.add(each.endpoint)
            self._broker.subscriptions |= {(event, each.endpoint) for event in each.events}
            self._broker.subscriptions -= {(event, each.endpoint) for event in each.gone}

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count; see the port. Raises QueueMissing."""
        self._require(endpoint)
        self._end_leases()
        mine = [copy for copy in self._broker.copies if copy.queue == endpoint]
        held = sum(copy.receipt is not None for copy in mine)
        delayed = sum(copy.receipt is None and copy.due > self._clock.now() for copy in mine)
        return Depth(waiting=len(mine) - held - delayed, held=held, delayed=delayed)

    def _require(self, endpoint: str) -> None:
        if endpoint not in self._broker.queues:
            raise QueueMissing(f"queue {endpoint!r} does not exist: start the endpoint, or run `onceonly topology create`")

    def _take(self, limit: int) -> tuple[Delivery, ...]:
        self._end_leases()
        now = self._clock.now()
        mine = [copy for copy in self._broker.copies if copy.queue == self._endpoint]
        free = [copy for copy in mine if copy.receipt is None and copy.due <= now]
        for copy in free[:limit]:
            copy.receipt, copy.until = next(self._broker.receipts), now + round(LEASE_SECONDS * 1000)
        return tuple(arrival(c.receipt, c.queue, c.headers, c.body, suspect=c.suspect) for c in free[:limit])

    def _store(self, send: Send) -> Answer:
        headers, body = encode(send)
        if len(body) > MAX_BODY or (send.to and send.to not in self._broker.queues):
            return Answer.REFUSED
        subscribed = {queue for event, queue in self._broker.subscriptions if event == send.message.type}
        for queue in {send.to} if send.to else subscribed:
            self._broker.copies.append(Copy(queue, headers, body, send.due))
        return Answer.TAKEN

    def _held(self, deliveries: Sequence[Delivery]) -> list[Copy]:
        self._end_leases()
        receipts = {delivery.receipt for delivery in deliveries}
        return [copy for copy in self._broker.copies if copy.receipt in receipts]

    def _end_leases(self) -> None:
        for copy in self._broker.copies:
            if copy.receipt is not None and copy.until <= self._clock.now():
                copy.receipt, copy.suspect = None, True


async def _make() -> Broker:
    return Broker()


_BROKERS = Shared(Broker.close)


@asynccontextmanager
async def open_transport(url: str, endpoint: str, *, clock: Clock, random: RandomSource) -> AsyncIterator[Transport]:  # noqa: ARG001 - nothing is random
    """Open the queue of one endpoint. The endpoints of a process with one URL share a broker."""
    async with _BROKERS.use(url, _make) as broker:
        yield ToyTransport(broker, endpoint, clock)


@asynccontextmanager
async def temporary_transport(
    url: str,
    topologies: Sequence[Topology],
    *,
    clock: Clock,
    random: RandomSource,
) -> AsyncIterator[None]:
    """Keep a broker open, with these queues."""
    async with open_transport(url, "", clock=clock, random=random) as transport:
        await transport.declare(topologies)
        yield
