"""Every rule about brokers fails on a broken RabbitMQ adapter, on a running server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly.conformance.broker_suite import BrokerSuite
from onceonly.conformance.suite import broken, rules
from tests.broken_adapters import brokers
from tests.conformance.rabbitmq_subjects import RabbitMQSubject

BROKERS: dict[brokers.Break, list[str]] = {
    brokers.takes_nacks_for_acks: [
        "what_a_full_queue_refuses_is_not_taken",
        "a_delivery_that_a_full_queue_refuses_back_is_not_lost",
    ],
    brokers.settles_what_has_no_copy: ["a_delivery_that_a_full_queue_refuses_back_is_not_lost"],
    brokers.drops_what_is_due_for_nobody: ["what_is_due_while_its_queue_is_deleted_arrives_when_it_is_declared_again"],
}
BITES = [pytest.param(each, f"test_{rule}", id=f"{each.__name__}-{rule}") for each, found in BROKERS.items() for rule in found]


class Brittle(BrokerSuite):
    """The suite on RabbitMQ. It does not wait long for a message that the broken adapter has lost."""

    patience: ClassVar[float] = 3.0

    @asynccontextmanager
    async def open_broker(self) -> AsyncIterator[RabbitMQSubject]:
        """Open a prefix of its own."""
        async with RabbitMQSubject.open() as subject:
            yield subject


@pytest.mark.parametrize(("breaks", "rule"), BITES)
async def test_a_broken_adapter_is_caught_by_the_rule_that_it_breaks(
    breaks: brokers.Break, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/conformance/test_rabbitmq.py` shows that the adapter itself passes."""
    breaks(monkeypatch)
    assert (await broken(Brittle(), rule)).startswith("AssertionError")


def test_every_rule_has_an_adapter_that_breaks_it() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for found in BROKERS.values() for rule in found} == set(rules(BrokerSuite))
