"""The RabbitMQ transport keeps every promise of its port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from onceonly.conformance.transport_suite import EVENT, TransportSuite
from tests.conformance.rabbitmq_subjects import RabbitMQSubject

NO_LEASE = "a delivery is held until its connection ends; there is nothing to extend"


class TestRabbitMQ(TransportSuite):
    """Quorum queues on a running server."""

    quiet: ClassVar[float] = 0.4
    waived: ClassVar[dict[str, str]] = {"test_extending_keeps_a_delivery": NO_LEASE}

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[RabbitMQSubject]:
        """Open a prefix of its own."""
        events = (EVENT, EVENT.upper(), EVENT[:-1], EVENT + "0", "%", "*", "#", "shop.other.v1")
        async with RabbitMQSubject.open(*events) as subject:
            yield subject
