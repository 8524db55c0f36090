"""The SQS transport keeps every promise of its port, with standard and with FIFO queues."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly_conformance.broker_suite import BrokerSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.sqs_subjects import SqsSubject

FULL = {
    "test_what_a_full_queue_refuses_is_not_taken": "SQS does not limit the length of a queue",
    "test_a_delivery_that_a_full_queue_refuses_back_is_not_lost": "SQS does not limit the length of a queue",
}
DELETED = {
    "test_what_is_due_while_its_queue_is_deleted_arrives_when_it_is_declared_again": (
        "SQS keeps delayed messages in the queue itself, and deletes them with it"
    )
}


class OnSqs:
    """A prefix for each test."""

    fifo: bool = False
    lease: ClassVar[int] = 3600

    @pytest.fixture(autouse=True)
    def _emulator(self, ministack_endpoint: str) -> None:
        self._endpoint = ministack_endpoint

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[SqsSubject]:
        """Open a prefix of its own."""
        async with SqsSubject.open(self._endpoint, lease=self.lease, fifo=self.fifo) as subject:
            yield subject

    open_broker = open_transport


class SqsLeases(OnSqs, TransportSuite):
    """Short leases of the service, which no test can move. For one rule, in real time."""

    lease: ClassVar[int] = 8
    quiet: ClassVar[float] = 0.4

    def __init__(self, other: OnSqs) -> None:
        self._endpoint, self.fifo = other._endpoint, other.fifo


class TestSqs(OnSqs, TransportSuite):
    """Standard queues."""

    quiet: ClassVar[float] = 1.0

    async def test_extending_keeps_a_delivery(self) -> None:
        """`extend` restarts the lease of a delivery, in real time."""
        await SqsLeases(self).test_extending_keeps_a_delivery()


@pytest.mark.slow
@pytest.mark.repeated
class TestSqsFifo(TestSqs):
    """FIFO queues, each with another queue for delayed messages."""

    fifo = True


@pytest.mark.repeated
class TestSqsAsABroker(OnSqs, BrokerSuite):
    """Queues that are deleted."""

    waived: ClassVar[dict[str, str]] = FULL | DELETED


@pytest.mark.repeated
class TestSqsFifoAsABroker(OnSqs, BrokerSuite):
    """FIFO queues that are deleted."""

    fifo = True
    waived: ClassVar[dict[str, str]] = FULL
