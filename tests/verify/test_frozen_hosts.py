"""Worlds with a host that freezes and thaws, and with a relay, a control message and an incoming message at once."""

import pytest
from msgspec.structs import replace

from onceonly_verify import CHECKS, MUTANTS, Mutant, render, run_check, run_mutant
from onceonly_verify.checks.drivers import DRIVER_CHECKS
from onceonly_verify.checks.frozen import FROZEN_CHECKS
from onceonly_verify.faults import UNIT_OVER
from onceonly_verify.mutants.drivers import DRIVERS
from onceonly_verify.mutants.frozen import FROZEN
from onceonly_verify.programs import changed
from onceonly_verify.runs import explore

NAMED = {check.name: check for check in CHECKS}
OVER = NAMED["a frozen host that thaws, and its transaction may be over"]
DEAD = NAMED["a frozen host that thaws, and was taken for dead"]
LISTED = NAMED["a relay on documents, two messages that do not come again"]
LEASED = NAMED["two relays on documents that lease what they take"]
QUICK = {
    OVER.name: 3_000,
    DEAD.name: 4_000,
    LISTED.name: 4_700,
    "three drivers at once in tables, a message and a transaction": 6_000,
}
"""Those that the tests explore each time, with a number of states below which something is no longer explored."""
EACH_WORLD = [
    pytest.param(name, QUICK.get(name, 500), marks=[] if name in QUICK else [pytest.mark.slow])
    for name in (*FROZEN_CHECKS, *DRIVER_CHECKS)
]
EACH_MUTANT = [
    pytest.param(mutant, id=mutant.name, marks=[] if number % 6 == 0 else [pytest.mark.slow])
    for number, mutant in enumerate(each for each in MUTANTS if each.name in {**FROZEN, **DRIVERS})
]
ENDED_UNITS = [mutant for mutant in MUTANTS if mutant.name in FROZEN and "that the database ended" in mutant.name]


@pytest.mark.parametrize(("name", "floor"), EACH_WORLD)
def test_worlds_of_frozen_hosts_and_of_three_drivers_pass(name: str, floor: int) -> None:
    """Each is complete, reaches what it promises to reach, and finds nothing that is wrong or stuck."""
    result = run_check(NAMED[name])
    assert result.passed, render(result)
    assert result.states >= floor


@pytest.mark.parametrize("mutant", EACH_MUTANT)
def test_their_mutants_are_caught_by_what_they_leave_behind(mutant: Mutant) -> None:
    """The violation is a loss, a double or a world that never rests. No broken version just raises."""
    result = run_mutant(mutant)
    assert result.caught, result.violation
    assert not result.violation.startswith("escape")


def test_each_of_these_worlds_catches_a_mutant() -> None:
    """A world that nothing can fail proves nothing."""
    assert {name for mutant in MUTANTS for name in mutant.checks} >= {*FROZEN_CHECKS, *DRIVER_CHECKS}


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=[] if number == 0 else [pytest.mark.slow])
        for number, mutant in enumerate(ENDED_UNITS)
    ],
)
def test_only_a_database_that_ends_units_shows_what_becomes_of_them(mutant: Mutant) -> None:
    """With the same host and the same lease that ends, but a transaction that stays open, each of them goes unseen."""
    assert ENDED_UNITS
    check = NAMED[mutant.checks[0]]
    found, _ = explore(replace(check, bounds=replace(check.bounds, rollbacks=0)), changed(mutant.changes))
    assert found.complete
    assert not found.violation


def test_a_thawed_host_learns_nothing_or_a_closed_connection() -> None:
    """Its commit is refused, or is not answered. Its acknowledgement is ignored or accepted."""
    _, happened = explore(OVER)
    assert {"unit: ends with its worker at work", f"commit: {UNIT_OVER}"} <= happened
    assert {"ack: late, ignored", "ack: late, accepted", "release: late, ignored", "release: late, accepted"} <= happened


def test_without_a_relay_a_document_that_does_not_come_again_is_pending_for_ever() -> None:
    """The list is what the relay finds it by."""
    result = run_check(replace(LISTED, relays=0))
    assert result.violation.startswith("leak: the record of "), render(result)


def test_a_relay_comes_before_and_after_the_end_of_a_lease() -> None:
    """Both kinds of relays take, and each finds a record that the other one has leased."""
    found, happened = explore(LEASED)
    assert found.complete
    assert not found.stuck
    assert {"relay: pending: applied", "relay: save: applied", "relay: wakes up: applied"} <= happened


def test_a_world_says_what_may_end_at_work() -> None:
    """In its bound."""
    assert DEAD.bound == (
        "1 copy of 1 message, 2 workers, batches of 1, a host that receives, "
        "2 early lease expiries, 1 unit ended by the database, 1 process taken for dead"
    )
