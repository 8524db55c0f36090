"""Every rule about reservations fails on a broken register, and every broken register is caught."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onceonly_conformance.register_suite import RegisterSuite
from onceonly_conformance.suite import broken, rules
from tests.broken_adapters import registers
from tests.conformance.sql_subjects import SqlSubject, make_tables

REGISTERS: dict[type[registers.WrappedRegisters], list[str]] = {
    registers.UnitBlindRegisters: ["reservations_are_found_by_message_and_unit"],
    registers.SharingRegisters: ["an_endpoint_has_its_own_reservations"],
    registers.UnsortedRegisters: ["old_lists_the_oldest_first"],
    registers.TimelessRegisters: ["a_reservation_is_stamped_with_the_time"],
    registers.ForgivingRegisters: ["an_attempt_is_reserved_once"],
    registers.BoastingRegisters: [
        "cancel_reports_whether_there_is_a_reservation",
        "a_commit_consumes_its_reservations",
        "of_a_commit_and_a_cancellation_one_wins",
    ],
    registers.RuthlessRegisters: ["only_a_cancelled_reservation_is_removed"],
    registers.UnconsumingRegisters: [
        "a_commit_consumes_its_reservations",
        "a_commit_fails_without_one_of_its_reservations",
        "of_a_commit_and_a_cancellation_one_wins",
        "very_many_reservations_are_opened_found_and_consumed",
    ],
    registers.FirstRequestRegisters: ["very_many_reservations_are_opened_found_and_consumed"],
    registers.FirstAttemptRegisters: [
        "a_commit_consumes_its_reservations",
        "a_commit_fails_without_one_of_its_reservations",
        "very_many_reservations_are_opened_found_and_consumed",
    ],
}


def suite_of(kind: type[registers.WrappedRegisters], place: Path) -> RegisterSuite:
    """Make the suite for a broken register in a SQLite file."""

    class Brittle(RegisterSuite):
        @asynccontextmanager
        async def open_register(self) -> AsyncIterator[registers.WrappedRegisters]:
            async with SqlSubject.open(place) as subject:
                await subject.empty()
                yield kind(subject)

    return Brittle()


@pytest.mark.parametrize("kind", [*REGISTERS, registers.WrappedRegisters])
@pytest.mark.slow
async def test_a_broken_register_fails_exactly_the_rules_that_it_breaks(
    kind: type[registers.WrappedRegisters], tmp_path: Path
) -> None:
    """One that only passes its calls on fails none."""
    await make_tables(tmp_path / "register.db")
    suite = suite_of(kind, tmp_path / "register.db")
    failed = {rule.removeprefix("test_") for rule in rules(RegisterSuite) if await broken(suite, rule)}
    assert failed == set(REGISTERS.get(kind, []))


def test_every_rule_has_a_register_that_breaks_it() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for named in REGISTERS.values() for rule in named} == set(rules(RegisterSuite))
