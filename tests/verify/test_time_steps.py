"""Worlds in which time passes: what their clock allows, and that a replay and a random schedule keep the same time."""

import asyncio

import pytest
from msgspec.structs import replace

from onceonly.model.retention import CLOCK_MARGIN_MS
from onceonly_verify import CHECKS, MUTANTS, Check, render, run_check, run_mutant
from onceonly_verify.check import named
from onceonly_verify.checks.timed import TIMED_CHECKS
from onceonly_verify.histories import history_of
from onceonly_verify.replay import replay
from onceonly_verify.runs import explore
from onceonly_verify.schedules import walk_schedules
from onceonly_verify.time_steps import HANDLED_AGAIN, STEP, TICKS, ExpiringWorld, Timing, drop_expired
from onceonly_verify.world import Bounds

NAMED = {check.name: check for check in CHECKS}
HISTORY = NAMED["time, history, two copies and another message, nothing to send"]
CONTROL = NAMED["time, a control message, a key without an entity, and a crash"]
ARTIFACT = NAMED["time, an artifact, and a crash"]
RETRIES = NAMED["time, delays of retries, and a crash"]
RING = NAMED["time, a ring, two slices of one bucket, and a crash"]


def timed(check: Check, **changes: object) -> Check:
    """Return a check with another timing."""
    assert check.workload.timing is not None
    return replace(check, workload=replace(check.workload, timing=replace(check.workload.timing, **changes)))


def test_the_margin_covers_a_clock_that_is_ahead_and_a_write_that_is_late() -> None:
    """Two steps are shorter than the margin, three are longer."""
    assert 2 * STEP < CLOCK_MARGIN_MS < 3 * STEP


def test_something_is_forgotten_only_after_the_retention() -> None:
    """The clock moves, and a copy is handled again in some history. With a shorter time, none is, and the check fails."""
    _, happened = explore(HISTORY)
    assert {HANDLED_AGAIN, f"{TICKS}: applied"} <= happened
    short = run_check(timed(HISTORY, steps=2))
    assert short.missing == (HANDLED_AGAIN,)


def test_clocks_that_differ_by_more_than_the_margin_allows_lose_history() -> None:
    """So the check exercises the margin: the oracle reads the clock of the world only."""
    assert run_check(timed(HISTORY, skews=(0, 3))).violation.startswith("forgotten: 'a' is unknown")


def test_a_sweeper_that_is_too_early_leaves_an_artifact() -> None:
    """Artifact leaks are asserted, because the sweeper waits for the age at which an attempt is dead."""
    found = run_check(timed(ARTIFACT, sweep_after=1))
    assert found.violation.startswith("leak: '1.1.1/0' is there"), render(found)


def test_a_policy_with_shorter_delays_than_the_check_promises_is_found() -> None:
    """The check states the delays by itself. It does not ask the policy that runs."""
    assert run_check(timed(RETRIES, retry_after=(0, 2, 2))).violation == "hasty: 'a' was retried 1 steps after failure 2"


def test_clocks_may_differ_by_what_their_skews_allow() -> None:
    """Of two runs, and of a run and a sweeper."""
    assert Timing(steps=1).difference == 0
    assert Timing(steps=1, skews=(-1, 0), sweeper_skews=(1,)).difference == 2


def test_the_clock_of_a_ring_moves_with_the_clock_of_the_world() -> None:
    """A janitor rotates a bucket by it."""
    _, happened = explore(replace(RING, bounds=Bounds()))
    assert {"janitor: rotate: applied", f"{TICKS}: applied"} <= happened
    assert explore(timed(replace(RING, bounds=Bounds()), steps=0, rest=0))[0].stuck


def test_without_time_a_delayed_message_is_never_delivered() -> None:
    """A control message waits for its instant, so nothing comes to rest."""
    assert run_check(timed(CONTROL, steps=0, rest=0)).stuck


@pytest.mark.parametrize("name", ["history forgotten a step early", "control message delivered a step early"])
def test_a_counterexample_with_time_is_replayed(name: str) -> None:
    """The clock moves at the same steps, and each run has the same clock."""
    caught = run_mutant(next(mutant for mutant in MUTANTS if mutant.name == name))
    assert any(step.what == TICKS for step in caught.steps)
    found = asyncio.run(replay(history_of(caught.check, caught.violation, caught.steps, name)))
    assert found.is_the_same, found.diverged


@pytest.mark.parametrize("check", named(TIMED_CHECKS), ids=lambda check: check.name)
def test_random_schedules_keep_the_same_time(check: Check) -> None:
    """No search is involved."""
    walked = walk_schedules(20, checks=[check])
    assert walked.passed, walked.violation


def test_a_service_drops_only_what_has_expired() -> None:
    """At the instant of its expiry a document is still there."""
    world = ExpiringWorld(expires=frozenset([("a", 10)]))
    assert world.expired(20) == frozenset()
    assert drop_expired(world, 20)[0] == world


def test_a_bound_states_the_time() -> None:
    """The number of steps, and whether clocks differ."""
    assert "4 steps of the clock, clocks that differ by a step" in HISTORY.bound
    assert Timing(steps=1).kept == STEP
