"""Transport: a queue or a log of messages."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer

__all__ = ["Depth", "Topology", "Traits", "Transport"]


class Traits(Struct, frozen=True, kw_only=True):
    """What a broker can do: data that the runtime reads, so that nobody branches on its name.

    `lease` is for how many seconds a received delivery is kept from others, None when until the connection ends. `max_body`
    is in bytes. `ordered` says that releasing a delivery also releases every later one of its partition.
    """

    lease: float | None
    max_body: int
    ordered: bool = False


class Topology(Struct, frozen=True, kw_only=True):
    """The input queue of one endpoint, the event types it subscribes to, and those it no longer wants.

    A type that is in neither is left as it is: while versions of an endpoint run side by side, the other one may want it.
    """

    endpoint: str
    events: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class Depth(Struct, frozen=True, kw_only=True):
    """How many messages of one queue wait, are held by a worker, and are not yet due."""

    waiting: int
    held: int
    delayed: int


class Transport(Protocol):
    """One endpoint's way in and out. Nothing here is part of the store's transaction."""

    traits: Traits

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what waits, at most `limit`, without waiting to fill; empty when nothing came for `wait` seconds.

        Each delivery is held for this receiver until it is acked or released, or its lease or connection ends; then it
        comes again, marked `suspect`.
        """

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Hand over messages; answers for each, in order. Not atomic: on an exception any subset may have been taken.

        TAKEN means durable. A command that cannot be routed is REFUSED; an event that nobody subscribed to is TAKEN.
        Sending the same id twice delivers it twice.
        """

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle these deliveries for good. One whose lease ended may be ignored. Not atomic across deliveries."""

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give these back uncounted: they come again, to anyone, not marked `suspect`. Not atomic across deliveries."""

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Renew the leases; does nothing for deliveries whose lease has ended."""

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Make sure that these queues and subscriptions exist, and those to what is `gone` do not; harmless when it is so."""

    async def depth(self, endpoint: str) -> Depth:
        """Count the messages of one endpoint's input queue. Raises QueueMissing when it was never declared."""
