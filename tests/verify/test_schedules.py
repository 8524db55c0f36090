"""Random schedules: the same ones for a seed, blind to nothing, and silent about the shipping code."""

import asyncio
from hashlib import sha256

import pytest
from msgspec.structs import replace

from onceonly_verify import Check, parallel
from onceonly_verify.checks.larger import DEEP, LARGE
from onceonly_verify.histories import programs_of, same
from onceonly_verify.mutations import change
from onceonly_verify.mutations.operations import insert_before
from onceonly_verify.parallel import walk_in_processes
from onceonly_verify.programs import changed
from onceonly_verify.replay import replay as replay_on_a_loop
from onceonly_verify.schedules import Walk, WalkResult, walk_schedules
from onceonly_verify.simulation import Simulation, SteppedRun, at_once
from onceonly_verify.world_player import InitialState, OutOfBounds

LARGER = {check.name: check for check in LARGE}
CAUGHT_SOON = (
    "ack before forget",
    "OutcomeUnknown taken as success",
    "ack before processing",
    "claim by delivery instead of identity",
    "delayed copy acked before taken",
    "another body taken for a copy",
    "check before load",
    "no version check",
    "OutcomeUnknown retried in place",
    "a batch's death counted against each of it",
    "those that must run alone run in one unit",
    "one id for all that a message sends",
    "relay: forgotten before dispatch",
    "label not checked",
)


def without_relay(name: str) -> Check:
    """Return a world as it was before it had a relay. Then no lease ended early in it."""
    world = LARGER[name]
    return replace(world, relays=0, bounds=replace(world.bounds, expiries=0))


def test_the_shipping_code_stands_random_schedules() -> None:
    """In worlds beyond the bounds of the search: every state on the way, and the one at rest."""
    walked = walk_schedules(100)
    assert walked.passed, walked.violation
    assert walked.schedules == walked.wanted == 100
    assert walked.steps > 100 * 20


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        pytest.param(
            "large, a ring", "1:3219", id="a bucket is not ready, and a message beside it loses a race: both are released"
        ),
        pytest.param(
            "large, a ring", "1:110719", id="a copy is rejected, and before the next unit the message is past the retention"
        ),
        pytest.param(
            "large, a handler that kills", "1:193403", id="the unit of one that is given up fails, and a blamed one follows"
        ),
    ],
)
def test_a_schedule_on_which_the_log_of_a_batch_was_wrong(name: str, schedule: str) -> None:
    """The shipping code does what it documents there."""
    assert at_once(Walk(InitialState(LARGER[name]), schedule).go()) == ""


def test_a_schedule_of_a_world_that_had_no_relay_and_no_early_end_of_a_lease() -> None:
    """One half of a refused unit meets an outage, and a message of the other half runs by itself."""
    world = without_relay("large, two effects, refused commits, another body")
    assert at_once(Walk(InitialState(world), "1:877394").go()) == ""


def test_a_schedule_that_requires_a_relay() -> None:
    """A late acknowledgement of a dead letter is accepted for the delivery that is handled after all, and its process dies."""
    world = without_relay("large, given up with effects pending")
    assert at_once(Walk(InitialState(world), "3:811565").go()) == "leak: the record of 'b' is still there"


@pytest.mark.parametrize("schedule", ["2:166860", "2:650274", "2:729555"])
def test_a_schedule_on_which_an_artifact_was_left(schedule: str) -> None:
    """The network repeats the creation of an artifact, its attempt loses and cleans up, and then the repetition lands."""
    assert at_once(Walk(InitialState(LARGER["large, artifacts"]), schedule).go()) == ""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if number % 12 else []) for number, name in enumerate(CAUGHT_SOON)]
)
async def test_random_schedules_catch_mutants(name: str) -> None:
    """Within a few schedules; what is told happens again on an event loop, in fewer steps than it was found in."""
    programs = programs_of(name)  # without the log of the batch, as in a replay
    walked = walk_schedules(200, programs=programs)
    assert walked.violation
    assert walked.history
    opening = InitialState(LARGER[walked.history.check], programs)
    walk = Walk(opening, f"0:{walked.number}", record=True)
    assert at_once(walk.go()) == walked.violation
    assert len(walked.history.steps) <= len(walk.told)
    found = await replay_on_a_loop(replace(walked.history, mutant=name))
    assert same(found.violation, walked.history.violation)


def test_a_schedule_is_named_by_seed_and_number() -> None:
    """Whatever ran before it, and however many there are."""
    told = []
    for _ in range(2):
        walk = Walk(InitialState(LARGE[1]), "5:17", record=True)
        at_once(walk.go())
        told.append(walk.told)
    assert told[0] == told[1]
    other = Walk(InitialState(LARGE[1]), "5:18", record=True)
    at_once(other.go())
    assert other.told != told[0]
    halves = [walk_schedules(20, seed=5), walk_schedules(40, seed=5, first=20)]
    assert sum(half.steps for half in halves) == walk_schedules(40, seed=5).steps


WALKED = "4ce429421b45f9bf"
"""What the first two schedules of each world do, in one number.

A change of the algorithms, of the faults or of `LARGE` changes it. Then copy the new value from the failed test. A change that
only makes the walk faster must not change it: schedules are cited by seed and number.
"""


def test_schedules_are_those_that_were_walked_before() -> None:
    """Each draw, each step and each verdict."""
    openings, digest = [InitialState(check) for check in LARGE], sha256()
    for number in range(2 * len(LARGE)):
        walk = Walk(openings[number % len(openings)], f"0:{number}", record=True)
        violation = at_once(walk.go())
        steps = [(step.who, step.what, step.outcome) for step in walk.told]
        digest.update(repr((number, walk.steps, steps, violation)).encode())
    assert digest.hexdigest()[:16] == WALKED


def test_several_processes_answer_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the schedules; each schedule is the same."""
    monkeypatch.setattr(parallel, "CHUNK", 20)
    ticks: list[WalkResult] = []
    shared = walk_in_processes(50, seed=3, processes=2, tick=ticks.append)
    alone = walk_schedules(50, seed=3)
    assert (shared.schedules, shared.steps, shared.violation) == (alone.schedules, alone.steps, "")
    assert [tick.schedules for tick in ticks] == [20, 40, 50]
    later = walk_in_processes(50, seed=3, first=5, processes=2)
    assert (later.first, later.schedules, later.left) == (5, 45, 0)
    assert later.steps == alone.steps - walk_schedules(5, seed=3).steps


def test_an_interrupted_walk_tells_what_was_done_so_far() -> None:
    """Ctrl-C is no error."""

    def interrupt(walked: WalkResult) -> None:
        if walked.schedules:
            raise KeyboardInterrupt

    walked = walk_schedules(10_000, tick=interrupt)
    assert walked.passed
    assert 0 < walked.schedules < walked.wanted
    assert walked.schedules + walked.left == walked.wanted


def test_a_walk_that_never_rests_is_stuck() -> None:
    """A program that gives everything back for ever."""
    idle = change(
        "algorithms.delivery",
        "deliver",
        insert_before("release", "await release(deliveries, ports)\nreturn BatchReport(unknown=len(deliveries))"),
    )
    walked = walk_schedules(1, programs=changed([idle]))
    assert walked.violation.startswith(("stuck", "endless"))


def test_a_play_that_waits_is_an_error() -> None:
    """Stepped runs never wait: one that does is a mistake of the checker."""
    with pytest.raises(RuntimeError, match="waited for something"):
        at_once(asyncio.sleep(0))


def test_larger_worlds_have_names_of_their_own() -> None:
    """A counterexample's file names its world."""
    names = [check.name for check in (*DEEP, *LARGE)]
    assert len(set(names)) == len(names)


def test_bounds_are_kept() -> None:
    """What may go wrong no more is refused, whoever asks for it."""
    simulation = Simulation(InitialState(LARGE[0]), SteppedRun)
    lost = next(simulation.arrivals(0, lost=True))
    for _ in range(3):
        at_once(simulation.take(lost, simulation.usual))
    with pytest.raises(OutOfBounds, match="allow no more failures"):
        at_once(simulation.take(lost, simulation.usual))
