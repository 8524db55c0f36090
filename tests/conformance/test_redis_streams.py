"""The Redis transport keeps every promise of its port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from onceonly_conformance.broker_suite import BrokerSuite
from onceonly_conformance.fault_suite import FaultSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.faulty_subjects import FaultyRedis
from tests.conformance.redis_subjects import RedisSubject

NO_LIMIT = "Redis does not limit the length of a stream; tests/adapters/redis/test_servers.py has a server without memory"


class TestRedisStreams(TransportSuite):
    """Streams on a running server."""

    quiet: ClassVar[float] = 0.05

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[RedisSubject]:
        """Open a prefix of its own."""
        async with RedisSubject.open() as subject:
            yield subject


class TestRedisStreamsAsABroker(BrokerSuite):
    """Queues that are deleted."""

    waived: ClassVar[dict[str, str]] = {
        "test_what_a_full_queue_refuses_is_not_taken": NO_LIMIT,
        "test_a_delivery_that_a_full_queue_refuses_back_is_not_lost": NO_LIMIT,
    }

    @asynccontextmanager
    async def open_broker(self) -> AsyncIterator[RedisSubject]:
        """Open a prefix of its own."""
        async with RedisSubject.open() as subject:
            yield subject


class TestRedisStreamsWithFaults(FaultSuite):
    """Connections that break, and a server that is killed."""

    quiet: ClassVar[float] = 0.05

    @asynccontextmanager
    async def open_faulty(self) -> AsyncIterator[FaultyRedis]:
        """Start a server of its own."""
        async with FaultyRedis.run() as subject:
            yield subject
