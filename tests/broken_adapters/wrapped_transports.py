"""Transports that pass every call on, for the broken ones to spoil one of them."""

from collections.abc import Sequence

from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology, Traits, Transport
from onceonly_conformance.suite import ENDPOINT
from onceonly_conformance.transport_suite import TransportSubject


class WrappedTransport:
    """A transport whose calls go through a `WrappedTransports`."""

    def __init__(self, owner: "WrappedTransports", inner: Transport) -> None:
        self.traits = owner.traits(inner)
        self._owner = owner
        self._inner = inner

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Receive, as the wrapper does it; it knows what it handed out, by the message's own bytes."""
        got = tuple(self._owner.deliver(delivery) for delivery in await self._owner.receive(self._inner, limit, wait))
        self._owner.given |= {_copy(delivery): delivery for delivery in got}
        return got

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send, as the wrapper does it."""
        return await self._owner.send(self._inner, [self._owner.post(send) for send in sends])

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle, as the wrapper does it."""
        await self._owner.ack(self._inner, deliveries)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Return back, as the wrapper does it."""
        await self._owner.release(self._inner, deliveries)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Renew, as the wrapper does it."""
        await self._owner.extend(self._inner, deliveries)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Declare, as the wrapper does it."""
        await self._owner.declare(self._inner, topologies)
        self._owner.declared |= {topology.endpoint for topology in topologies}
        self._owner.wanted |= {(event, topology.endpoint) for topology in topologies for event in topology.events}

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count, as the wrapper does it."""
        return await self._owner.depth(self._inner, endpoint, events)


class WrappedTransports:
    """A subject that passes everything on. What breaks a promise overrides one of these methods.

    `given` holds what was handed out last of each message, `declared` the queues, `wanted` who subscribed to what.
    """

    def __init__(self, inner: TransportSubject) -> None:
        self.inner = inner
        self.given: dict[tuple[object, bytes], Delivery] = {}
        self.declared: set[str] = set()
        self.wanted: set[tuple[str, str]] = set()

    def traits(self, inner: Transport) -> Traits:
        """Return what it declares."""
        return inner.traits

    async def transport(self, endpoint: str = ENDPOINT) -> Transport:
        """Open a transport."""
        return WrappedTransport(self, await self.inner.transport(endpoint))

    async def ahead(self, endpoint: str, milliseconds: int) -> Transport:
        """Open a transport of a process whose clock is ahead."""
        return WrappedTransport(self, await self.inner.ahead(endpoint, milliseconds))

    def now(self) -> int:
        """Return the time."""
        return self.inner.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        await self.inner.pass_time(milliseconds)

    async def lapse(self) -> None:
        """End every lease."""
        await self.inner.lapse()

    def deliver(self, delivery: Delivery) -> Delivery:
        """Hand out a delivery."""
        return delivery

    def post(self, send: Send) -> Send:
        """Hand over a message."""
        return send

    def latest(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return what was handed out last of the same messages."""
        return [self.given.get(_copy(delivery), delivery) for delivery in deliveries]

    def subscribers(self, event: str) -> set[str]:
        """Name the queues that subscribed to this type."""
        return {queue for wanted, queue in self.wanted if wanted == event}

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Receive."""
        return await inner.receive(limit, wait)

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send."""
        return await inner.send(sends)

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Settle."""
        await inner.ack(deliveries)

    async def release(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Return back."""
        await inner.release(deliveries)

    async def extend(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Renew."""
        await inner.extend(deliveries)

    async def declare(self, inner: Transport, topologies: Sequence[Topology]) -> None:
        """Declare."""
        await inner.declare(topologies)

    async def depth(self, inner: Transport, endpoint: str, events: Sequence[str]) -> Depth:
        """Count."""
        return await inner.depth(endpoint, events)


def _copy(delivery: Delivery) -> tuple[object, bytes]:
    return delivery.headers, delivery.body
