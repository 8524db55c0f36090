"""What the delivery shell and the relay do and return is checked against what they were given."""

import asyncio
from typing import Any

import pytest

from onceonly.algorithms.relay import RelayResult
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly_verify import CHECKS
from onceonly_verify.generated.generator import generated_mutants
from onceonly_verify.invariants.logged import LoggedMessage
from onceonly_verify.invariants.reports import WrongReportError, with_each_record
from onceonly_verify.invariants.reruns import Reruns
from onceonly_verify.programs import changed
from onceonly_verify.runs import explore

ONE, OTHER = (Record(Identity("shop", name), ()) for name in "ab")


async def returned(value: Any) -> Any:
    """Return this from a program."""
    return value


FAILING = "a message in an isolated unit, beside one that fails"
ANY = "three messages, and one that ends in any way"
HOPELESS = "three messages, two of which can never be committed"
HELD = "a message that was held too often, and one that was not"
KILLING = "a message that kills its process, and no copy can be made"
CONTROL = "a control message, two effects"
LOOKING_TWICE = "a control message"
LOOKING = "a control message, and a client's key"
ON = "a full isolated batch, one that runs on and one that fails"
RUINED = "a full batch, two that ruined their units and end in any way behind one that fails"
TWO_RUIN = "a full batch, two of four ruin their units"
OUTAGE = "a full batch, two of three ruin their units, and an outage"
ENDING = "a full batch of three messages that end in any way"
SPOILED = "a full isolated batch, two that spoil units between two that fail"
LOCKED = "a message that waits for a lock, and no copy can be made"
DIED = "two messages of a process that died, which failed before"
GIVEN_UP = "two copies of a message that fails in a batch, and a failed call"
ONE_MESSAGE = "one message"
WRONG = [
    (
        FAILING,
        "settlement.give_up: drop argument dead for BatchReport #1",
        "miscounted: of 1 deliveries, 1 are dead and 0 are reported",
    ),
    (
        FAILING,
        "delivery._take_through: drop argument isolated for run #1",
        "wrong unit: the first one with b, a is not isolated",
    ),
    (FAILING, "settlement._final: drop argument attempts for DeadLetter #1", "wrong letter: 'b' is given up because"),
    (
        ANY,
        "blame.RunResult.__add__: drop argument trouble for RunResult #1",
        "the error of a unit is not reported",
    ),
    (
        ANY,
        "blame.RunResult.__add__: drop argument unknown for RunResult #1",
        "left behind: of 2 deliveries, 1 are",
    ),
    (ANY, "blame.RunResult.__add__: drop argument needs_upgrade for RunResult #1", "1 are needs_upgrade and 0 are reported"),
    (HOPELESS, "blame._run: put 1 for 2 in len(items) // 2 #1", "endless: "),
    (HELD, "deaths: put 21 for 20 in MOST_HELD = 20 #1", "miscopied: the copy of 'b' is"),
    (HELD, "delivery.deliver: swap do and run_alone #1", "wrong unit: 'b' runs alone, and 'a' is still held"),
    (KILLING, "deaths: put TIMEOUT for FailureKind.KILLED #1", "unfair: 'a' did not fail like this: timeout"),
    (
        CONTROL,
        "delivery._settle_control: negate outcome is ControlOutcome.UNKNOWN #1",
        "wrong look: a control message is released",
    ),
    (
        ON,
        "blame._find_cause: drop return _abandoned(suspect, error) + await _run(others, ports, isolate... #1",
        "wrong unit: 'b' runs again",
    ),
    (ON, "blame._find_cause: drop argument isolated for _run #2", "wrong unit: a handler is likely to fail in this batch"),
    (
        RUINED,
        "blame._run_each_alone: drop return ran + RunResult(unknown=tuple(items[items.index(item):])) #1",
        "wrong unit: 'd' runs by itself, and an earlier unit shows an outage",
    ),
    (
        ENDING,
        "blame._run: drop return await _run(items, ports, isolated=True) #1",
        "wrong unit: the last one failed and is not repeated",
    ),
    (
        SPOILED,
        "blame._retry_without_handler: drop _is_committed_without for False #1",
        "unfair: the unit of 'c' failed, and it was not tried without",
    ),
    (
        TWO_RUIN,
        "blame._find_cause: negate ran.unknown #1",
        "wrong unit: 'c' ended its last unit, and is released without a run by itself",
    ),
    (
        LOCKED,
        "blame._retry_without_handler: drop return _locked(item, error) #1",
        "unfair: a unit with b begins without handlers",
    ),
    (DIED, "deaths.isolate_suspects: first of suspects #1", "and no death is looked up"),
    (GIVEN_UP, "settlement.give_up: swap _is_committed and dead_letters.add #1", "both: 'a' is given up, and no fence"),
    (ONE_MESSAGE, "blame._is_committed_without: drop return False #1", "torn: a unit with known messages is committed"),
    (OUTAGE, "blame._is_committed_without: drop unit.abandon #2", "leak: a unit with c is neither committed nor abandoned"),
]


@pytest.mark.parametrize(("check", "mutant", "words"), WRONG, ids=[mutant for _, mutant, _ in WRONG])
def test_what_contradicts_the_calls_of_a_batch_is_a_violation(check: str, mutant: str, words: str) -> None:
    """A copy, a dead letter, a decision, the order of units, and each number of the report."""
    name = f"generated: algorithms.{mutant}"
    wrong = next(each.change for each in generated_mutants() if each.name == name)
    found, _ = explore(next(each for each in CHECKS if each.name == check), changed([wrong]), limit=5000)
    assert words in found.violation


LOOKS = [
    (LOOKING, "check_transaction: drop attempts.entry for None #1", "is acked, and its key was not read"),
    (LOOKING, "check_transaction: turn control.look < len(controls.delays) #1", "wrong look: a control message leads to"),
    (LOOKING, "check_transaction: negate control.look < len(controls.delays) #1", "wrong look: a control message leads to"),
    (
        LOOKING,
        "check_transaction: negate record is not None or entry is not None #1",
        "is acked, and its attempt may still be committed",
    ),
    (
        LOOKING,
        "check_transaction: drop operand record.effects of record is not None and record.effects #1",
        "and nothing was sent",
    ),
    (LOOKING, "check_transaction: put UNKNOWN for ControlOutcome.OVER #1", "is released, and no call failed"),
    (LOOKING, "announce: drop argument key for Control #1", "is announced by"),
    (
        LOOKING_TWICE,
        "check_transaction: swap _check_later and attempts.bury #1",
        "is given up, and this is not the last look at it",
    ),
]


@pytest.mark.parametrize(("check", "mutant", "words"), LOOKS, ids=[mutant for _, mutant, _ in LOOKS])
def test_what_contradicts_a_look_is_a_violation(check: str, mutant: str, words: str) -> None:
    """The reads, the message of the next look, what ends the attempt, and how the control message is settled."""
    wrong = next(each.change for each in generated_mutants() if each.name == f"generated: algorithms.control.{mutant}")
    found, _ = explore(next(each for each in CHECKS if each.name == check), changed([wrong]), limit=8000)
    assert found.violation.startswith("wrong look: ")
    assert words in found.violation


def test_each_relayed_record_is_reported_once() -> None:
    """As finished, refused or unknown."""
    fine = RelayResult(finished=(ONE,), unknown=(OTHER,))
    assert asyncio.run(with_each_record(returned(fine), [ONE, OTHER])) is fine
    for wrong in (RelayResult(finished=(ONE,)), RelayResult(finished=(ONE, OTHER), refused=(ONE,))):
        with pytest.raises(WrongReportError, match="2 records were relayed"):
            asyncio.run(with_each_record(returned(wrong), [ONE, OTHER]))


@pytest.mark.parametrize(
    ("unanswered", "is_wrong"),
    [pytest.param("a", False, id="in the other half"), pytest.param("d", True, id="in its own half")],
)
def test_an_outage_counts_for_the_half_of_a_unit_that_met_it(unanswered: str, is_wrong: bool) -> None:  # noqa: FBT001
    """The halves of a refused unit do not wait for each other. A message runs behind those of its own half."""
    logged = {name: LoggedMessage(Message(id=name, source="shop", type="T", body=b"")) for name in "abcd"}
    reruns = Reruns(lambda _: "")
    reruns.begins([*logged.values()])
    reruns.ended([*logged.values()], CommitRefused("a constraint"), None, isolated=True)
    for unit in ([logged["a"], logged["b"]], [logged["c"], logged["d"]]):
        reruns.begins(unit)
        if logged["c"] in unit:
            reruns.ended(unit, OutcomeUnknown("the commit is not answered"), logged["c"], isolated=True)
            reruns.begins([logged["d"]])
        if logged[unanswered] in unit:
            left = [each for each in unit if each is not logged["c"]]
            reruns.ended(left, CommitFailed("the broker does not answer"), None, isolated=True)
    if is_wrong:
        with pytest.raises(WrongReportError, match="'c' runs by itself, and an earlier unit shows an outage"):
            reruns.begins([logged["c"]])
    else:
        reruns.begins([logged["c"]])
