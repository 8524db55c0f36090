"""Counterexamples can be kept, replayed on an event loop, and blamed: another program does not go their way."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from onceonly.model.errors import SetupError
from onceonly_verify import CHECKS, MUTANTS, run_check, run_mutant
from onceonly_verify.histories import (
    STUCK,
    Counterexample,
    TraceStep,
    final,
    follow,
    history_of,
    load,
    opening_of,
    resolved,
    save,
)
from onceonly_verify.mutations import change
from onceonly_verify.mutations.operations import first_only, insert_before
from onceonly_verify.mutations.places import argument
from onceonly_verify.programs import changed
from onceonly_verify.replay import replay
from onceonly_verify.simulation import Simulation, at_once
from onceonly_verify.world_player import InitialState

NAMED = {mutant.name: mutant for mutant in MUTANTS}
VARIED = (
    "forgotten before dispatch",
    "no version check",
    "compensation after OutcomeUnknown",
)
"""A crash, an optimistic store, a program that makes calls while it dies. That every one does: tests of the mutants."""


def counterexample(name: str) -> Counterexample:
    """Find a mutant's counterexample."""
    result = run_mutant(NAMED[name])
    return history_of(result.check, result.violation, result.steps, name)


@pytest.mark.parametrize("name", VARIED)
async def test_a_counterexample_happens_again_as_tasks_of_an_event_loop(name: str) -> None:
    """Every step, in its order, and the very violation at the end; of the tasks nothing is left."""
    history = counterexample(name)
    told: list[str] = []
    found = await replay(history, lambda number, step: told.append(f"{number} {step.who}: {step.what}: {step.outcome}"))
    assert (found.violation, found.diverged) == (history.violation, "")
    assert found.is_the_same
    assert told == [f"{number} {line.who}: {line.what}: {line.outcome}" for number, line in enumerate(history.steps, 1)]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_shipping_code_does_not_go_the_way_of_a_mutant() -> None:
    """It makes another call than the history says, or nothing is wrong at the end."""
    strays = await replay(replace(counterexample("ack before processing"), mutant=""))
    assert not strays.reproduced
    assert strays.steps == 1
    assert "step 2 should be\n  worker A: ack delivery 1.1: applied\nbut worker A can only\n  begin a" in strays.diverged
    follows = await replay(replace(counterexample("no version check"), mutant=""))
    assert (follows.reproduced, follows.diverged, follows.steps) == (False, "", 4)


async def test_a_step_with_another_outcome_than_the_call_can_have_is_named() -> None:
    """A file that somebody changed by hand."""
    history = counterexample("ack before processing")
    changed = (*history.steps[:2], replace(history.steps[2], outcome="one refused"))
    found = await replay(replace(history, steps=changed))
    assert (
        "this can only come to: CommitFailed, ConflictError, OutcomeUnknown, not applied, applied, crash before"
        in found.diverged
    )


async def test_a_handler_that_the_history_does_not_know_of_ends_the_replay() -> None:
    """Which handlers ran, and how they ended, is part of the history."""
    history = counterexample("dispatch before commit")
    line = history.steps[1]
    silent = replace(line, what=line.what.partition(";")[0])
    found = await replay(replace(history, steps=(history.steps[0], silent)))
    assert "in step 2 the handler of a ran" in found.diverged
    loud = replace(history.steps[0], what=history.steps[0].what + "; the handler of a works")
    found = await replay(replace(history, steps=(loud,)))
    assert "in step 1 the handler of a should have run" in found.diverged


async def test_a_history_with_more_faults_than_its_check_allows_cannot_be_followed() -> None:
    """The bounds of a check may have changed since the file was saved."""
    lost = TraceStep("worker A", "receive delivery 1.{} of 'a'{}", "answer lost")
    steps = tuple(replace(lost, what=lost.what.format(number, " (suspect)" if number > 1 else "")) for number in range(1, 3))
    found = await replay(Counterexample(check="one message", violation="x", steps=steps))
    assert found.diverged == "in step 2, the check's bounds allow no more failures"


async def test_a_stuck_state_is_shown_by_going_on_without_faults() -> None:
    """A program that gives everything back for ever is stuck from its first step; the shipping one comes to rest."""
    steps = (TraceStep("worker A", "receive delivery 1.1 of 'a'", "applied"),)
    history = Counterexample(check="one message", violation=STUCK, steps=steps)
    assert not (await replay(history)).reproduced
    idle = change(
        "algorithms.delivery",
        "deliver",
        insert_before("release", "await release(deliveries, ports)\nreturn BatchReport(unknown=len(deliveries))"),
    )
    opening = InitialState(opening_of(history).check, changed([idle]))

    async def go() -> str:
        simulation = Simulation(opening)
        await follow(simulation, steps[0], 0)
        return await final(simulation, STUCK)

    assert at_once(go()).startswith(("stuck", "endless"))


def test_what_reads_the_same_is_told_apart() -> None:
    """Of two messages one is refused: which one it has to be is found by trying, and kept."""
    deaf = change("algorithms.outbox", "dispatch", first_only(argument("together", 0)))
    opening = InitialState(next(check for check in CHECKS if check.name == "two effects of one message"), changed([deaf]))
    found = run_check(opening.check, programs=opening.programs)
    ambiguous = [step.outcome for step in found.steps].index("one refused")
    lines = tuple(TraceStep(step.who, step.what, step.outcome) for step in found.steps)
    history = resolved(Counterexample(check=found.algorithm, violation=found.violation, steps=lines), opening)
    assert [line.variant for line in history.steps] == [int(at == ambiguous) for at in range(len(lines))]


def test_a_saved_counterexample_is_read_back(tmp_path: Path) -> None:
    """JSON, with a format number."""
    history = counterexample("ack before processing")
    file = str(tmp_path / "found.json")
    save(history, file)
    assert load(file) == history


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "is not a counterexample"),
        ("not JSON", "is not a counterexample"),
        ('{"check": "one message", "violation": "x", "steps": [], "format": 9}', "has format 9"),
    ],
)
def test_a_file_that_is_no_counterexample_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """A person has to give another file."""
    file = tmp_path / "found.json"
    file.write_text(text)
    with pytest.raises(SetupError, match=words):
        load(str(file))


def test_a_counterexample_of_a_check_or_mutant_that_is_gone_is_refused() -> None:
    """The names are looked up in this version's lists."""
    with pytest.raises(SetupError, match="unknown check 'gone'"):
        opening_of(Counterexample(check="gone", violation="x", steps=()))
    with pytest.raises(SetupError, match="unknown mutant 'gone'"):
        opening_of(Counterexample(check="one message", violation="x", steps=(), mutant="gone"))
