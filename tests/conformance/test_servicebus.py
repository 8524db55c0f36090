"""The Azure Service Bus transport keeps every promise of its port, on a local stand-in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly_conformance.broker_suite import BrokerSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.servicebus_subjects import ServiceBusSubject

COUNTED_AS_WAITING = "Service Bus counts what receivers hold with what waits"
DELETED_WITH_ITS_QUEUE = "Service Bus stores scheduled messages in their queue, and deletes them with it"

SETTLED_WHERE_IT_IS_HELD = "a message of a session is settled by the process that holds the session; this rule uses another"


class TestServiceBus(TransportSuite):
    """Queues with peek-lock."""

    quiet: ClassVar[float] = 0.15
    waived: ClassVar[dict[str, str]] = {"test_depth_counts_what_waits_is_held_and_is_delayed": COUNTED_AS_WAITING}

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[ServiceBusSubject]:
        """Open a namespace of its own."""
        async with ServiceBusSubject.open() as subject:
            yield subject


class TestServiceBusAsABroker(BrokerSuite):
    """Queues with limits, and queues that are deleted."""

    waived: ClassVar[dict[str, str]] = {
        "test_what_is_due_while_its_queue_is_deleted_arrives_when_it_is_declared_again": DELETED_WITH_ITS_QUEUE
    }

    @asynccontextmanager
    async def open_broker(self) -> AsyncIterator[ServiceBusSubject]:
        """Open a namespace of its own."""
        async with ServiceBusSubject.open() as subject:
            yield subject


@pytest.mark.slow  # the same transport, with one option
@pytest.mark.slow
@pytest.mark.repeated
class TestServiceBusWithSessions(TransportSuite):
    """Queues with sessions. A session that nobody takes from is closed after half a second."""

    quiet: ClassVar[float] = 1.0
    waived: ClassVar[dict[str, str]] = {
        "test_depth_counts_what_waits_is_held_and_is_delayed": COUNTED_AS_WAITING,
        "test_a_cancelled_receive_loses_nothing": SETTLED_WHERE_IT_IS_HELD,
    }

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[ServiceBusSubject]:
        """Open a namespace of its own."""
        async with ServiceBusSubject.open("&sessions=true&lease=60&timeout=10") as subject:
            yield subject


@pytest.mark.slow
@pytest.mark.repeated
class TestServiceBusWithSessionsAsABroker(BrokerSuite):
    """Queues with sessions and limits, and such queues that are deleted."""

    waived: ClassVar[dict[str, str]] = {
        "test_what_is_due_while_its_queue_is_deleted_arrives_when_it_is_declared_again": DELETED_WITH_ITS_QUEUE
    }

    @asynccontextmanager
    async def open_broker(self) -> AsyncIterator[ServiceBusSubject]:
        """Open a namespace of its own."""
        async with ServiceBusSubject.open("&sessions=true&lease=60&timeout=10") as subject:
            yield subject
