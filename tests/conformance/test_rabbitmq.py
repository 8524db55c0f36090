"""The RabbitMQ transport keeps every promise of its port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from onceonly_conformance.broker_suite import BrokerSuite
from onceonly_conformance.fault_suite import FaultSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.rabbitmq_subjects import RabbitMQSubject

NO_LEASE = "a delivery is held until its connection ends; there is nothing to extend"


class TestRabbitMQ(TransportSuite):
    """Quorum queues on a running server."""

    quiet: ClassVar[float] = 0.4
    late_suspects: ClassVar[int] = 1  # the server marks what it sends to a consumer in the moment of its cancellation
    waived: ClassVar[dict[str, str]] = {"test_extending_keeps_a_delivery": NO_LEASE}

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[RabbitMQSubject]:
        """Open a prefix of its own."""
        async with RabbitMQSubject.open() as subject:
            yield subject


class TestRabbitMQAsABroker(BrokerSuite):
    """Queues with limits, and queues that are deleted."""

    patience: ClassVar[float] = 240.0  # RabbitMQ tries every 3 minutes to route what it could not route before

    @asynccontextmanager
    async def open_broker(self) -> AsyncIterator[RabbitMQSubject]:
        """Open a prefix of its own."""
        async with RabbitMQSubject.open() as subject:
            yield subject


class TestRabbitMQWithFaults(FaultSuite):
    """Connections that break."""

    quiet: ClassVar[float] = 0.4

    @asynccontextmanager
    async def open_faulty(self) -> AsyncIterator[RabbitMQSubject]:
        """Open a prefix of its own."""
        async with RabbitMQSubject.open() as subject:
            yield subject
