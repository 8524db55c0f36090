"""The Azure Queue transport keeps every promise of its port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly_conformance.broker_suite import BrokerSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.azure_queue_subjects import AzureQueueSubject
from tests.servers.azurite import Azurite

HIDES_WHOLE_SECONDS = "Azure hides a message that is not due for a whole number of seconds, which no test can move"
DELETED_WITH_ITS_QUEUE = "Azure deletes held messages with their queue, and reports both alike: the message does not exist"
NO_LIMIT = "Azure does not limit the number of messages in a queue"


@pytest.fixture(autouse=True)
def _emulator(request: pytest.FixtureRequest, azurite_storage: Azurite) -> None:
    request.instance.emulator = azurite_storage


class AzureQueueLeases(TransportSuite):
    """Short leases of the service, which no test can move. For one rule, in real time."""

    quiet: ClassVar[float] = 0.4

    def __init__(self, emulator: Azurite) -> None:
        self.emulator = emulator

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[AzureQueueSubject]:
        """Open a prefix of its own."""
        async with AzureQueueSubject.open(self.emulator, lease=6, runs=True) as subject:
            yield subject


class TestAzureQueues(TransportSuite):
    """Queues in an account of the emulator."""

    quiet: ClassVar[float] = 0.05
    waived: ClassVar[dict[str, str]] = {"test_a_delayed_message_that_was_looked_for_too_early_is_not_late": HIDES_WHOLE_SECONDS}

    emulator: Azurite

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[AzureQueueSubject]:
        """Open a prefix of its own."""
        async with AzureQueueSubject.open(self.emulator) as subject:
            yield subject

    async def test_extending_keeps_a_delivery(self) -> None:
        """`extend` restarts the lease of a delivery, in real time."""
        await AzureQueueLeases(self.emulator).test_extending_keeps_a_delivery()


@pytest.mark.repeated
class TestAzureQueuesAsABroker(BrokerSuite):
    """Queues that are deleted."""

    waived: ClassVar[dict[str, str]] = {
        "test_what_a_full_queue_refuses_is_not_taken": NO_LIMIT,
        "test_a_delivery_that_a_full_queue_refuses_back_is_not_lost": NO_LIMIT,
        "test_a_release_into_a_deleted_queue_fails": DELETED_WITH_ITS_QUEUE,
    }

    emulator: Azurite

    @asynccontextmanager
    async def open_broker(self) -> AsyncIterator[AzureQueueSubject]:
        """Open a prefix of its own."""
        async with AzureQueueSubject.open(self.emulator) as subject:
            yield subject
