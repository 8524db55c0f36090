"""Transports whose traits are not true."""

from collections.abc import Sequence

from msgspec.structs import replace

from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Traits, Transport
from onceonly_conformance.suite import ENDPOINT
from tests.broken_adapters.wrapped_transports import WrappedTransports

LONGEST_SECONDS = 900


class NegativeTransport(WrappedTransports):
    """Takes bodies of no size."""

    def traits(self, inner: Transport) -> Traits:
        """Declare what cannot be."""
        return replace(inner.traits, max_body=0)


class UnequalTransport(WrappedTransports):
    """Declares another limit for each endpoint."""

    async def transport(self, endpoint: str = ENDPOINT) -> Transport:
        """Change the limit."""
        opened = await super().transport(endpoint)
        opened.traits = replace(opened.traits, max_body=len(endpoint))
        return opened


class DisorderedTransport(WrappedTransports):
    """Declares that it keeps order, and receives the youngest messages first."""

    def traits(self, inner: Transport) -> Traits:
        """Claim it."""
        return replace(inner.traits, orders_keys=True)

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Turn them round."""
        return (await inner.receive(limit, wait))[::-1]


class CompetingTransport(WrappedTransports):
    """Declares that it keeps order, and gives messages with one key to several receivers."""

    def traits(self, inner: Transport) -> Traits:
        """Claim it."""
        return replace(inner.traits, orders_keys=True)


class CuttingTransport(WrappedTransports):
    """Delays for 15 minutes at most, and declares no limit."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send at once what would have to wait for longer."""
        latest = self.now() + LONGEST_SECONDS * 1000
        return await inner.send([replace(each, due=0) if each.due > latest else each for each in sends])


class PromisingTransport(WrappedTransports):
    """Declares late subscribers, and chooses the subscribers when an event is sent."""

    def traits(self, inner: Transport) -> Traits:
        """Claim it."""
        return replace(inner.traits, late_subscribers=True)
