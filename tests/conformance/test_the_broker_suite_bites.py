"""Every rule about brokers, and about their faults, fails on a broken RabbitMQ adapter, on a running server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly_conformance.broker_suite import BrokerSuite
from onceonly_conformance.fault_suite import FaultSuite
from onceonly_conformance.suite import Suite, broken, rules
from tests.broken_adapters import brokers
from tests.conformance.rabbitmq_subjects import RabbitMQSubject

BROKERS: dict[brokers.Break, list[str]] = {
    brokers.takes_nacks_for_acks: [
        "what_a_full_queue_refuses_is_not_taken",
        "a_delivery_that_a_full_queue_refuses_back_is_not_lost",
    ],
    brokers.settles_what_has_no_copy: [
        "a_delivery_that_a_full_queue_refuses_back_is_not_lost",
        "a_release_into_a_deleted_queue_fails",
    ],
    brokers.takes_what_is_returned: ["a_command_to_a_deleted_queue_is_refused"],
    brokers.trusts_its_consumer: ["a_receiver_works_on_when_its_queue_is_declared_again"],
    brokers.drops_what_is_due_for_nobody: ["what_is_due_while_its_queue_is_deleted_arrives_when_it_is_declared_again"],
}
FAULTS: dict[brokers.Break, list[str]] = {
    brokers.counts_nothing_without_an_answer: ["a_depth_that_is_counted_on_a_connection_that_breaks_is_correct"],
    brokers.declares_exchanges_for_one_run_of_the_server: ["what_was_taken_survives_a_restart"],
    brokers.hides_that_a_declaration_failed: ["a_declaration_whose_connection_breaks_can_be_repeated"],
    brokers.never_forgets_what_it_declared: ["a_transport_works_on_when_the_broker_has_lost_everything"],
    brokers.settles_before_it_copies: [
        "a_delivery_whose_connection_breaks_is_delivered_again",
        "a_message_that_comes_too_early_survives_a_connection_that_breaks",
    ],
    brokers.takes_silence_for_a_confirm: [
        "a_message_that_a_broken_connection_lost_is_not_taken",
        "events_and_delays_survive_a_connection_that_breaks",
    ],
}
BITES = [
    pytest.param(suite, each, f"test_{rule}", id=f"{each.__name__}-{rule}")
    for suite, table in ((BrokerSuite, BROKERS), (FaultSuite, FAULTS))
    for each, found in table.items()
    for rule in found
]


class Brittle(Suite):
    """A suite on RabbitMQ. It does not wait long for a message that the broken adapter has lost."""

    patience: ClassVar[float] = 3.0
    quiet: ClassVar[float] = 0.4

    @asynccontextmanager
    async def open_broker(self) -> AsyncIterator[RabbitMQSubject]:
        """Open a prefix of its own."""
        async with RabbitMQSubject.open() as subject:
            yield subject

    open_faulty = open_broker


@pytest.mark.parametrize(("suite", "breaks", "rule"), BITES)
@pytest.mark.slow
async def test_a_broken_adapter_is_caught_by_the_rule_that_it_breaks(
    suite: type[Suite], breaks: brokers.Break, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/conformance/test_rabbitmq.py` shows that the adapter itself passes."""
    breaks(monkeypatch)
    brittle = type("Brittle", (Brittle, suite), {})()
    assert (await broken(brittle, rule)).startswith(("AssertionError", "TimeoutError", "SetupError"))


def test_every_rule_has_an_adapter_that_breaks_it() -> None:
    """A rule that nothing breaks proves nothing."""
    for suite, table in ((BrokerSuite, BROKERS), (FaultSuite, FAULTS)):
        assert {f"test_{rule}" for found in table.values() for rule in found} == set(rules(suite))
