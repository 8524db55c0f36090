"""The NATS JetStream transport keeps every promise of its port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from onceonly_conformance.broker_suite import BrokerSuite
from onceonly_conformance.fault_suite import FaultSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.faulty_subjects import FaultyNats
from tests.conformance.nats_subjects import NatsSubject

COUNTED_AS_HELD = "JetStream counts a message whose lease has ended as held until it is delivered again"


class NatsLeases(TransportSuite):
    """Short leases of the server, which no test can move. For one rule, in real time."""

    quiet: ClassVar[float] = 0.4

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[NatsSubject]:
        """Open a prefix of its own."""
        async with NatsSubject.open(lease=6.0, runs=True) as subject:
            yield subject


class TestNats(TransportSuite):
    """Work-queue streams on a running server."""

    quiet: ClassVar[float] = 0.4
    waived: ClassVar[dict[str, str]] = {"test_depth_counts_what_came_back_as_waiting": COUNTED_AS_HELD}

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[NatsSubject]:
        """Open a prefix of its own."""
        async with NatsSubject.open() as subject:
            yield subject

    async def test_extending_keeps_a_delivery(self) -> None:
        """`extend` restarts the lease of a delivery, in real time."""
        await NatsLeases().test_extending_keeps_a_delivery()


class TestNatsAsABroker(BrokerSuite):
    """Queues with limits, and queues that are deleted."""

    @asynccontextmanager
    async def open_broker(self) -> AsyncIterator[NatsSubject]:
        """Open a prefix of its own."""
        async with NatsSubject.open() as subject:
            yield subject


class TestNatsWithFaults(FaultSuite):
    """Connections that break, and a server that is killed."""

    quiet: ClassVar[float] = 0.4

    @asynccontextmanager
    async def open_faulty(self) -> AsyncIterator[FaultyNats]:
        """Start a server of its own."""
        async with FaultyNats.run() as subject:
            yield subject
