"""The checks explore what they say, and say so when something is wrong."""

import asyncio

import pytest
from msgspec.structs import replace

from onceonly_verify import (
    CHECKS,
    MUTANTS,
    Check,
    CheckResult,
    Mutant,
    all_passed,
    render,
    run_check,
    run_checks,
    run_mutant,
    run_mutants,
)
from onceonly_verify.check import HASTY
from onceonly_verify.checks.larger import DEEP, LARGE
from onceonly_verify.explorer import Explorer
from onceonly_verify.faults import FORMS
from onceonly_verify.histories import history_of
from onceonly_verify.mutations import CodeChange, change
from onceonly_verify.mutations.operations import drop, drop_element, insert_first
from onceonly_verify.mutations.places import named
from onceonly_verify.programs import changed
from onceonly_verify.replay import replay
from onceonly_verify.runs import explore
from onceonly_verify.workload import Behaviour, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds, Label, State

NAMED = {check.name: check for check in CHECKS}
SMALL = {
    "two messages in one unit, one is unsteady": 10000,
    "a handler that fails: retry, then dead letter": 10000,
    "a handler that fails, and nothing else does": 50,
    "a commit that is refused": 3000,
    "a message that kills its process": 1000,
    "a message that kills its process, no retries": 100,
    "a handler that fails, and no copy can be made": 20000,
    "an unsteady handler, and no copy can be made": 20000,
    "a message that kills its process, and no copy can be made": 100,
    "the same id with another body": 1000,
    "given up with its effects pending": 7000,
    "a message that kills its process, beside one that must run alone": 900,
    "given up while it is handled, blocking store": 20000,
    "a committed transaction whose process died": 300,
    "two transactions whose processes died": 1000,
    "an outage of the store": 2000,
    "duplicates within and across batches, optimistic store": 9000,
    "a chain, two workers each": 600,
    "a chain, one worker each, a crash and a failed call": 10000,
    "a chain, one worker and one relay each": 7000,
    "a chain, both handlers fail": 6000,
    "a chain, two senders with one id, two effects each": 7000,
    "an entity and its history, two messages": 3000,
    "two entities in one batch": 2000,
    "a document next to an entity, history": 1000,
    "a document next to an entity, a dedup store and a lease that ends early": 200,
    "a document next to an entity, tokens and two copies": 4000,
    "one document next to two entities": 700,
    "one document next to two entities, and a failed call": 1000,
    "a document next to an entity, and a handler that fails in the batch": 4000,
    "a dedup store, two copies": 2000,
    "a dedup store, a lease that ends early": 3000,
    "a dedup store, a crash and a failed call": 1000,
    "tokens, two copies": 5000,
    "tokens, a lease that ends early": 8000,
    "tokens and a sweeper, a crash": 2000,
    "tokens and a sweeper, a failed call": 3000,
    "a chain with tokens, two copies and a failed call": 3000,
    "tokens in the same database, a chain": 8000,
    "tokens in the same database, and a relay": 2000,
    "an artifact, a crash and a failed call": 6000,
    "an artifact, and early sweeps": 3000,
    "a relay, and two attempts with one key": 1000,
    "a relay, and two requests under one key, optimistic store": 1000,
    "a control message, two workers": 5000,
    "a control message, and a client's key": 5000,
    "a control message, and a key without an entity": 8000,
    "one key, two requests": 400,
    "one key, two entities": 500,
    "one key, with an entity and without": 400,
    "a client that retries": 1000,
    "two clients that retry, two requests under one key, optimistic store": 1800,
    "a block that fails, and two attempts with one key": 400,
    "tokens elsewhere, a transaction with two effects": 4000,
    "a control message that another endpoint processes": 200,
    "stray control messages next to a good message, and a crash": 1700,
    "a control message next to a good message": 500,
    "tokens elsewhere, asked by another service, and a failed call": 600,
    "asked by another service for two things": 400,
    "asked by another service at the deadline": 300,
    "an artifact and a request, and a failed call": 300,
    "two artifacts, and an early sweep": 1200,
    "a chain with tokens, and a sweeper at each endpoint": 550,
    "a chain with tokens elsewhere, and a sweeper at each endpoint": 200,
    "tokens elsewhere, and a sweeper whose page is full": 200,
    "tokens elsewhere, two transactions, and a relay that sends both": 3500,
    "tokens in the same database, two messages in one batch": 1400,
    "tokens in the same database, two attempts with one key, and a relay": 1300,
    "tokens in the same database, two enlisted transactions, and a relay": 1200,
    "tokens in the same database, asked by another service, and a failed call": 700,
    "tokens elsewhere, two messages whose processes died, a relay and a failed call": 8000,
    "a chain with tokens, and a sweeper of both endpoints": 4000,
    "a chain with tokens elsewhere, a sweeper of both endpoints, and a failed call": 1900,
    "an event without declared subscribers next to a good message, tokens": 6000,
    "an event without declared subscribers next to a good message, tokens in the same database": 3500,
    "an artifact, a relay and a failed call": 1200,
    "an artifact, a relay, and two attempts": 1400,
    "an artifact, a relay, and an early sweep": 400,
    "time, delays of retries, and a crash": 2300,
    "time, delays of retries, and clocks that differ": 400,
    "time, tokens and a sweeper, and a crash": 1600,
    "time, tokens elsewhere and a sweeper, and a failed call": 2100,
    "time, a ring, claims without an instant, and a failed call": 14000,
    "a ring, copies that come late, and nothing to send": 1000,
    "rings, the retention is raised, late copies": 20000,
    "rings, the retention is raised, copies at the end of a ring": 40000,
    "rings, the retention is lowered, late copies": 20000,
    "rings, the retention is lowered, copies at the end of a ring": 45000,
    "rings, the retention is lowered where the ring is shared, late copies": 15000,
    "rings, the retention is lowered, a message to send, and a crash": 20000,
    "rings, the retention is raised, labels behind their truncation": 12000,
    "a ring, and a bucket's next slice": 6000,
    "a ring, two slices of one bucket": 5000,
    "a ring, two slices of one bucket, and a failed call": 2000,
    "a ring, and copies that come late, optimistic store": 9000,
    "a ring, and one message of another sender": 2000,
    "a ring, and one message of another sender, optimistic store": 2000,
    "a message whose receive is not answered, no retries": 800,
    "a message brought ahead to a process that dies": 7000,
    "a message that must run alone, and nobody sees its process die": 3000,
    "two messages with two effects each, and a failed call": 1000,
    "two messages with two effects each, one is always refused": 1000,
    "two messages that sometimes fail, with different counts": 500,
    "a message that must run alone and fails": 3000,
    "two messages whose handlers decide differently on each run, and a crash": 8000,
    "another body and another time under one id, beside a good message": 4000,
    "an event with two subscribers": 3000,
    "an event with two subscribers, a dedup store": 240,
    "two messages of one entity in a batch, its history, and a failed call": 1000,
    "two messages of one entity in a batch, a dedup store, and a failed call": 1500,
    "two messages with two artifacts each": 5000,
}
"""Checks that take a second or two, with a number of states below which something is no longer explored."""
EACH_SMALL = [pytest.param(name, floor, marks=[pytest.mark.slow] if floor > 900 else []) for name, floor in SMALL.items()]
SAMPLED = 16
"""`make test` runs each sixteenth mutant. `make test-slow` runs all of them, as `onceonly verify` does."""
EACH_MUTANT = [
    pytest.param(mutant, id=mutant.name, marks=[pytest.mark.slow] if number % SAMPLED else [])
    for number, mutant in enumerate(MUTANTS)
]


@pytest.mark.parametrize(("name", "floor"), EACH_SMALL)
def test_a_small_check_passes_and_explores_enough(name: str, floor: int) -> None:
    """It is complete, reaches every call that it promises to reach, and finds nothing that is wrong or stuck."""
    result = run_check(NAMED[name])
    assert result.passed, render(result)
    assert result.states >= floor


@pytest.mark.slow
def test_every_kind_of_failing_call_fails_somewhere() -> None:
    """Across small checks, each call that can fail does so, and each form of it occurs."""
    happened: set[str] = set()
    for name in (
        "two messages in one unit, one is unsteady",
        "a handler that fails: retry, then dead letter",
        "a message that must run alone, and nobody sees its process die",
        "a dedup store, a crash and a failed call",
        "tokens, a lease that ends early, and a failed call",
        "a document next to an entity, history and a failed call",
        "an artifact, a crash and a failed call",
        "an artifact, a relay, a crash and a failed call",
        "a relay, and two requests under one key, optimistic store",
        "a ring, two slices of one bucket, and a failed call",
        "a request, a failed call",
        "a response, a crash and a failed call",
        "asked by another service, and a failed call",
    ):
        happened |= {": ".join(kind.split(": ")[-2:]) for kind in explore(NAMED[name])[1]}
    assert {f"{point}: {form}" for point, forms in FORMS.items() for form in forms} <= happened


@pytest.mark.parametrize("mutant", EACH_MUTANT)
def test_every_mutant_is_caught(mutant: Mutant) -> None:
    """A known-bad version ends in a violation or stuck, with a history that leads there, on an event loop as well."""
    result = run_mutant(mutant)
    assert result.caught, result.violation
    assert result.violation
    assert "NameError" not in result.violation, "the patch names what its module does not know"
    assert result.steps
    found = asyncio.run(replay(history_of(result.check, result.violation, result.steps, mutant.name)))
    assert found.is_the_same, found.diverged
    assert found.steps == len(result.steps)


def test_there_are_mutants_enough_and_each_has_its_own_name() -> None:
    """The list is the protocols' core list, as far as it applies, and what was found since."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 50


def test_each_check_has_its_own_name() -> None:
    """Two tables cannot use one name for two checks."""
    assert len({check.name for check in (*CHECKS, *DEEP, *LARGE)}) == len(CHECKS) + len(DEEP) + len(LARGE)


def test_a_mutant_that_breaks_nothing_survives_and_fails_the_verdict() -> None:
    """A survivor means that a check is missing."""
    harmless = Mutant(
        "harmless",
        ("given up with its effects pending",),
        (change("algorithms.outbox", "process", insert_first("unused = 1")),),
    )
    results = run_mutants([harmless])
    assert not results[0].caught
    assert not all_passed(results)


@pytest.mark.parametrize(
    ("stale", "words"),
    [
        pytest.param(change("algorithms.outbox", "process", drop("no_such_call")), "no_such_call", id="gone"),
        pytest.param(change("algorithms.outbox", "process", drop("unit.abandon")), "unit.abandon", id="not unique"),
        pytest.param(change("algorithms.outbox", "no_such_function", drop("_commit")), "no_such_function", id="no function"),
        pytest.param(change("algorithms.inbox", "process", drop("_commit")), "algorithms.inbox", id="no module"),
    ],
)
def test_a_mutant_that_does_not_apply_fails_loudly(stale: CodeChange, words: str) -> None:
    """A target that is gone, or there more than once, is no mutant; nor is one of a function or module that was renamed."""
    result = run_mutant(Mutant("stale", ("one message",), (stale,)))
    assert not all_passed([result])
    assert "does not apply" in result.violation
    assert words in result.violation


def test_a_counterexample_reads_as_numbered_steps() -> None:
    """The shortest history, who did what and what came of it, and the violation last."""
    lines = render(run_mutant(next(mutant for mutant in MUTANTS if mutant.name == "ack before processing"))).splitlines()
    assert lines[0] == "  1. worker A: receive delivery 1.1 of 'a': applied"
    assert lines[1].startswith("  2. worker A: ack delivery 1.1")
    assert lines[-1] == "     => lost: 'a' is neither handled nor a dead letter"


def test_results_are_told_as_they_come() -> None:
    """Whoever watches sees progress and each result."""
    seen: list[CheckResult] = []
    ticks: list[str] = []
    small = NAMED["given up with its effects pending"]
    results = run_checks([small], progress=lambda name, _states, _transitions: ticks.append(name), done=seen.append)
    assert tuple(seen) == results
    assert all_passed(results)
    assert set(ticks) == {small.name}


def test_nothing_checked_is_nothing_proved() -> None:
    """An empty list does not pass."""
    assert not all_passed([])


def test_a_check_whose_faults_never_happen_fails() -> None:
    """A call that the check promises to reach, and does not, is reported."""
    idle = replace(NAMED["given up with its effects pending"], name="promises too much", reaches=("extend",))
    result = run_check(idle)
    assert result.complete
    assert "extend: applied" in result.missing
    assert not all_passed([result])


def test_every_endpoint_of_a_chain_must_reach_every_call() -> None:
    """What happens at one endpoint only is missing at the other."""
    result = run_check(replace(NAMED["a chain, two workers each"], name="promises too much", reaches=("extend",)))
    assert set(result.missing) == {"shop: extend: applied", "billing: extend: applied"}


def test_steps_of_a_chain_say_at_which_endpoint() -> None:
    """A letter for the worker, the endpoint, and messages under names that tell which one they answer."""
    lines = render(run_mutant(next(mutant for mutant in MUTANTS if mutant.name == "one id for all that a message sends")))
    assert "worker A: shop: commit a (2 to send): applied" in lines
    assert "worker A: shop: send 'a.0 by 1.1.2' to billing, 'a.1 by 1.1.2' to billing: applied" in lines
    assert "worker B: billing: commit a.0 (2 to send): applied" in lines


def test_a_check_that_is_cut_short_fails() -> None:
    """What was not explored completely proves nothing."""
    result = run_check(NAMED["given up with its effects pending"], limit=100)
    assert not result.complete
    assert not all_passed([result])


def test_an_error_that_escapes_the_delivery_shell_is_a_violation() -> None:
    """The runtime gets a report, whatever the ports answer."""
    narrow = change("algorithms.settlement", "_finish", drop_element(named("ConflictError")))
    one = Check(name="one", workload=NAMED["one message"].workload, bounds=Bounds(failures=1))
    result = run_check(one, programs=changed([narrow]))
    assert result.violation.startswith("escape: the delivery shell let ConflictError escape")


@pytest.mark.parametrize(
    ("deduplication", "relays", "left"),
    [
        pytest.param(DeduplicationMode.CLAIMS, 1, "", id="a SQL store, as every endpoint on one runs it"),
        pytest.param(DeduplicationMode.CLAIMS, 0, "leak: the record of 'a' is still there", id="without its relay"),
        pytest.param(DeduplicationMode.HISTORY, 0, "leak: the record of 'a' is still there", id="documents"),
        pytest.param(DeduplicationMode.DEDUP, 0, "leak: the record of 'a' is still there", id="documents and a dedup store"),
    ],
)
def test_what_is_given_up_and_handled_all_the_same_is_sent_by_a_relay(
    deduplication: DeduplicationMode, relays: int, left: str
) -> None:
    """The letter is stored, and not acknowledged. Without a relay it takes a retry of the letter, as the guarantees say."""
    workload = Workload(
        arrivals=copies("a"),
        behaviours=(("a", Behaviour.UNSTEADY),),
        deduplication=deduplication,
        retry=HASTY,
        may_be_both=True,
    )
    bounds = Bounds(crashes=1, failures=1, whims=1)
    result = run_check(Check(name="both", workload=workload, bounds=bounds, workers=1, relays=relays, reaches=("dead-letter",)))
    assert result.violation == left
    assert left or (result.complete and not result.missing)


class Corridor:
    """A world of four rooms: from room 0 one door leads to rest in room 1, another into the dead end of rooms 2 and 3."""

    initial: State = (0, 0, 0, 0)
    doors = ((0, 1), (0, 2), (2, 3), (3, 2))

    def successors(self, state: State) -> list[tuple[Label, int, State]]:
        """Go through a door."""
        return [(Label("door", str(to), "applied"), -1, (to, 0, 0, 0)) for at, to in self.doors if at == state[0]]

    def is_at_rest(self, state: State) -> bool:
        """Room 1 is the only place to rest."""
        return state[0] == 1


class Warden:
    """Finds some rooms bad."""

    def __init__(self, bad: int = -1, bad_to_rest_in: int = -1) -> None:
        """Name the bad rooms."""
        self._bad = bad
        self._bad_to_rest_in = bad_to_rest_in

    def violation(self, state: State) -> str:
        """Judge a room."""
        return "bad room" if state[0] == self._bad else ""

    def violation_at_rest(self, state: State) -> str:
        """Judge a place to rest."""
        return "bad rest" if state[0] == self._bad_to_rest_in else ""


def test_states_from_which_nothing_comes_to_rest_are_stuck() -> None:
    """Going round for ever is stuck, though there is always a next step."""
    found = Explorer(Corridor(), Warden()).explore(100)
    assert (found.states, found.transitions, found.resting) == (4, 4, 1)
    assert found.stuck == 2
    assert [step.what for step in found.steps] == ["door 2"]


@pytest.mark.parametrize(
    ("warden", "violation", "way"),
    [
        (Warden(bad=3), "bad room", ["door 2", "door 3"]),
        (Warden(bad_to_rest_in=1), "bad rest", ["door 1"]),
        (Warden(bad=0), "bad room", []),
    ],
)
def test_the_nearest_violation_is_found(warden: Warden, violation: str, way: list[str]) -> None:
    """Breadth first: the history is as short as can be."""
    found = Explorer(Corridor(), warden).explore(100)
    assert found.violation == violation
    assert not found.complete
    assert [step.what for step in found.steps] == way
