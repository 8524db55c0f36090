"""Relays and transactions beside the workers: without them the worlds leak, and the auditor sees what they must not do."""

import pytest
from msgspec.structs import replace

from onceonly_verify import CHECKS, Check, render, run_check
from onceonly_verify.simulation import Simulation, at_once
from onceonly_verify.world import Bounds
from onceonly_verify.world_player import InitialState

NAMED = {check.name: check for check in CHECKS}
GIVEN_UP = [check for check in CHECKS if check.name.startswith("given up while it is handled")]
TRANSACTION = NAMED["a committed transaction whose process died"]


@pytest.mark.parametrize("check", GIVEN_UP, ids=lambda check: check.name)
def test_without_a_relay_a_message_that_is_given_up_while_it_is_handled_owes_for_ever(check: Check) -> None:
    """No delivery is left that would lead to its record."""
    result = run_check(replace(check, relays=0))
    assert result.violation == "leak: the record of 'a' is still there", render(result)


@pytest.mark.parametrize("check", GIVEN_UP, ids=lambda check: check.name)
def test_a_dead_letter_that_was_handled_is_allowed_only_where_a_check_says_so(check: Check) -> None:
    """Elsewhere it is a violation."""
    result = run_check(replace(check, workload=replace(check.workload, may_be_both=False)))
    assert result.violation == "both: 'a' was handled, and is a dead letter", render(result)


def test_without_a_relay_a_transaction_whose_process_died_owes_for_ever() -> None:
    """Its row is there, and nobody is told."""
    assert run_check(replace(TRANSACTION, relays=0)).violation == "leak: the record of 't' is still there"


def test_a_relay_that_never_has_anything_to_do_fails_its_check() -> None:
    """Each of its calls must occur, as each of a worker's."""
    idle = replace(TRANSACTION, workload=replace(TRANSACTION.workload, transactions=()), bounds=Bounds())
    result = run_check(idle)
    assert result.complete
    assert result.missing == ("relay: forget: applied", "relay: send: applied")


def test_a_world_says_who_is_beside_its_workers() -> None:
    """In its bound."""
    assert TRANSACTION.bound == "1 transaction, 2 relays, 1 crash, 1 failed call"
    assert GIVEN_UP[0].bound == ("1 copy of 1 message, 2 workers, batches of 1, 1 relay, 2 crashes, 1 early lease expiry")


def test_there_is_no_rest_while_a_relay_has_something_to_do() -> None:
    """In a play as in the search: a committed record waits."""
    simulation = Simulation(InitialState(TRANSACTION))
    caller = 0
    at_once(simulation.take(next(simulation.options(caller)), simulation.usual))
    while simulation.workers[caller]:
        at_once(simulation.take(next(simulation.options(caller)), simulation.usual))
    assert not simulation.is_at_rest()
    told = []
    while not simulation.is_at_rest():
        option = next(simulation.options(1))
        told.append(simulation.player.step(option, at_once(simulation.take(option, simulation.usual))))
    assert [f"{step.who}: {step.what}" for step in told] == [
        "worker B: relay: wakes up to look",
        "worker B: relay: undispatched 1",
        "worker B: relay: send 't.0 by 1.1.1' to sink, 't.1 by 1.1.1' to sink",
        "worker B: relay: forget t",
    ]
    assert simulation.violation() == ""
