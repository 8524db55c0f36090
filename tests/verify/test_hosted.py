"""Worlds with a host that receives and acknowledges, and with a key in the caller's own transaction."""

import asyncio

import pytest
from msgspec.structs import replace

from onceonly_verify import CHECKS, MUTANTS, Mutant, render, run_check, run_mutant
from onceonly_verify.faults import TIME_OVER_APPLIED, TIME_OVER_LATER, TIME_OVER_NOT
from onceonly_verify.histories import history_of
from onceonly_verify.mutants.hosted import HOSTED, OWN_TRANSACTIONS
from onceonly_verify.replay import replay
from onceonly_verify.runs import explore

NAMED = {check.name: check for check in CHECKS}
GIVES_UP = NAMED["a host that gives up, and a relay"]
LARGE = {
    "a host whose time ends, and every kind of fault",
    "a host, two copies, and every kind of fault",
    "a host that gives up, a relay, and every kind of fault",
    "a host that redelivers to the same process, and its time ends",
    "a host, a handler that fails while the host redelivers",
}
"""Those that take seconds."""
WORLDS = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else [])
    for name in NAMED
    if name.startswith(("a host", "hosts of", "a key in the caller's"))
]
EARLY = next(mutant for mutant in MUTANTS if mutant.name == "a host that acknowledges early")


@pytest.mark.parametrize("name", WORLDS)
def test_worlds_of_hosts_and_of_callers_pass(name: str) -> None:
    """Each is complete, and finds nothing that is wrong or stuck."""
    result = run_check(NAMED[name])
    assert result.passed, render(result)


@pytest.mark.parametrize(
    "mutant", [each for each in MUTANTS if each.name in {**HOSTED, **OWN_TRANSACTIONS}], ids=lambda each: each.name
)
def test_their_mutants_are_caught_by_what_they_leave_behind(mutant: Mutant) -> None:
    """The violation is a loss, a double or a world that never rests. No broken version just raises."""
    result = run_mutant(mutant)
    assert result.caught
    assert not result.violation.startswith("escape")


def test_a_host_that_acknowledges_early_loses_a_message_that_is_not_handled() -> None:
    """The worlds see the loss that the contract forbids, also on an event loop."""
    result = run_mutant(EARLY)
    assert result.violation == "lost: 'a' is neither handled nor a dead letter"
    found = asyncio.run(replay(history_of(result.check, result.violation, result.steps, EARLY.name)))
    assert found.is_the_same, found.diverged


def test_without_a_relay_a_message_that_its_host_gives_up_may_be_handled_and_not_sent() -> None:
    """It was committed, its process died, and the host delivers it no more."""
    result = run_check(replace(GIVES_UP, relays=0))
    assert result.violation == "leak: the record of 'a' is still there", render(result)


def test_a_host_gives_up_what_was_never_committed_and_it_has_no_effect() -> None:
    """Both ends occur: a message that is put away before its commit, and one after it."""
    found, happened = explore(GIVES_UP)
    assert not found.violation
    assert "host: gives up: applied" in happened
    assert found.resting > 1


def test_the_time_of_a_host_ends_at_each_call() -> None:
    """The call was applied, was not, or lands after the host was answered."""
    _, happened = explore(NAMED["a host whose time ends while it redelivers"])
    assert {f"commit: {form}" for form in (TIME_OVER_APPLIED, TIME_OVER_NOT, TIME_OVER_LATER)} <= happened
    assert {f"send: {form}" for form in (TIME_OVER_APPLIED, TIME_OVER_NOT, TIME_OVER_LATER)} <= happened
    assert f"begin: {TIME_OVER_NOT}" in happened


def test_a_world_says_that_a_host_receives() -> None:
    """In its bound."""
    assert GIVES_UP.bound == (
        "1 copy of 1 message, 2 workers, batches of 1, a host that receives, gives up after 2 deliveries, 1 relay, 2 crashes"
    )
    assert NAMED["a key in the caller's transaction"].bound == (
        "1 client's attempt, in transactions of their own, 1 crash, 1 failed call"
    )
