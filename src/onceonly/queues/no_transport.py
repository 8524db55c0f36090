"""The transport of an endpoint without one: a host brings its messages, and it sends none."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from onceonly.model.errors import SetupError
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Depth, Topology, Traits, Transport

MOST_BODY = 128 * 1024 * 1024
"""Bytes of a body that a host may hand over."""
SEND_PROBLEM = 'the endpoint has no transport: set transport="..." to send messages'
RECEIVE_PROBLEM = (
    'the endpoint has no transport, so it has no queue to receive from: set transport="...", '
    "or hand its messages over with hosted()"
)


class NoTransport:
    """A transport that takes nothing: no call of it can ever succeed, but those that do nothing."""

    def __init__(self) -> None:
        self.traits = Traits(lease=None, max_body=MOST_BODY, orders_keys=True)

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Raise SetupError."""
        raise SetupError(RECEIVE_PROBLEM)

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Raise SetupError, unless there is nothing to send."""
        if sends:
            raise SetupError(SEND_PROBLEM)
        return ()

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: it delivers nothing."""

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: it delivers nothing."""

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: it delivers nothing."""

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Raise SetupError, unless nothing is to be declared."""
        if topologies:
            raise SetupError(RECEIVE_PROBLEM)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Raise SetupError."""
        raise SetupError(f"endpoint {endpoint!r} has no transport, so it has no queue")


@asynccontextmanager
async def open_transport(
    url: object,  # noqa: ARG001 - see the protocol of a transport service
    endpoint: str,  # noqa: ARG001 - the same
    *,
    clock: Clock,  # noqa: ARG001 - the same
    random: RandomSource,  # noqa: ARG001 - the same
) -> AsyncIterator[Transport]:
    yield NoTransport()


@asynccontextmanager
async def temporary_transport(
    url: object,  # noqa: ARG001 - the same
    topologies: Sequence[Topology],  # noqa: ARG001 - the same
    *,
    clock: Clock,  # noqa: ARG001 - the same
    random: RandomSource,  # noqa: ARG001 - the same
) -> AsyncIterator[None]:
    """Raise SetupError."""
    raise SetupError(RECEIVE_PROBLEM)
    yield
