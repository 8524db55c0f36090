"""Each transport keeps the rules for destinations that are not endpoints."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly_conformance.destination_suite import DestinationSuite
from tests.conformance.destination_subjects import (
    AzureQueueDestinations,
    KafkaDestinations,
    NatsDestinations,
    RabbitMQDestinations,
    RedisDestinations,
    ServiceBusDestinations,
    SqsDestinations,
)
from tests.servers.azurite import Azurite


class TestRabbitMQ(DestinationSuite):
    """A queue and an exchange of a running server."""

    quiet: ClassVar[float] = 0.2

    @asynccontextmanager
    async def open_destinations(self) -> AsyncIterator[RabbitMQDestinations]:
        """Open a prefix of its own."""
        async with RabbitMQDestinations.open() as subject:
            yield subject


class TestNats(DestinationSuite):
    """A subject of a running server."""

    quiet: ClassVar[float] = 0.2

    @asynccontextmanager
    async def open_destinations(self) -> AsyncIterator[NatsDestinations]:
        """Open a prefix of its own."""
        async with NatsDestinations.open() as subject:
            yield subject


class TestRedisStreams(DestinationSuite):
    """A stream of a running server."""

    quiet: ClassVar[float] = 0.05

    @asynccontextmanager
    async def open_destinations(self) -> AsyncIterator[RedisDestinations]:
        """Open a prefix of its own."""
        async with RedisDestinations.open() as subject:
            yield subject


class TestKafka(DestinationSuite):
    """A topic of a broker that speaks Kafka's protocol."""

    quiet: ClassVar[float] = 0.2
    waived: ClassVar[dict[str, str]] = {
        "test_a_missing_destination_does_not_affect_other_messages": "it also sends to an endpoint, and Kafka has no queues:"
        " tests/adapters/kafka has the rule without it"
    }

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_url: str) -> None:
        self._url = kafka_url

    @asynccontextmanager
    async def open_destinations(self) -> AsyncIterator[KafkaDestinations]:
        """Open topics of its own."""
        async with KafkaDestinations.open(self._url) as subject:
            yield subject


class TestSqs(DestinationSuite):
    """Queues of SQS, and a topic of SNS, on the emulator."""

    quiet: ClassVar[float] = 0.5
    fifo: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _emulator(self, ministack_endpoint: str) -> None:
        self._endpoint = ministack_endpoint

    @asynccontextmanager
    async def open_destinations(self) -> AsyncIterator[SqsDestinations]:
        """Open a prefix of its own."""
        async with SqsDestinations.open(self._endpoint, fifo=self.fifo) as subject:
            yield subject


@pytest.mark.slow
class TestSqsFifo(TestSqs):
    """The same, of a transport whose own queues are FIFO ones."""

    fifo: ClassVar[bool] = True


class TestServiceBus(DestinationSuite):
    """A queue and a topic of the stand-in."""

    quiet: ClassVar[float] = 0.15

    @asynccontextmanager
    async def open_destinations(self) -> AsyncIterator[ServiceBusDestinations]:
        """Open a namespace of its own."""
        async with ServiceBusDestinations.open() as subject:
            yield subject


class TestAzureQueues(DestinationSuite):
    """A queue of the emulator."""

    quiet: ClassVar[float] = 0.05

    @pytest.fixture(autouse=True)
    def _emulator(self, azurite_storage: Azurite) -> None:
        self._storage = azurite_storage

    @asynccontextmanager
    async def open_destinations(self) -> AsyncIterator[AzureQueueDestinations]:
        """Open a prefix of its own."""
        async with AzureQueueDestinations.open(self._storage) as subject:
            yield subject
