"""What attempts left behind is removed in the order that the register promises, and before a message is settled."""

import pytest

from onceonly_verify import CHECKS
from onceonly_verify.generated.generator import generated_mutants
from onceonly_verify.programs import changed
from onceonly_verify.runs import explore

LOSING = "an artifact in a store with claims, two copies, and no sweeper"
UNITS = "an artifact and a transaction, and a relay that sends both"
HISTORY = "two messages and their copies, history"
DROPPED = "artifacts and a dedup store, two batches of one worker alone"
COPIES = "three copies, tokens"
LEASES = "two messages of one entity in a batch, a dedup store, two workers and a crash"
RELAYED = "tokens elsewhere, given up with an effect that is refused once, and a relay"
SWEPT = "two artifacts, and an early sweep"
ASKED = "asked by another service, two effects, and a failed call"
FAILING = "tokens elsewhere, asked by another service, and two failed calls"
TRANSACTION = "tokens elsewhere, a transaction, a relay and two failed calls"
WRONG = [
    (LOSING, "effects.RegisteredEffects.discard: swap _register.cancel and self._delete #1", "is to be deleted, and the row"),
    (LOSING, "effects.RegisteredEffects.discard: negate record.attempt #1", "has lost, and its register row is not cancelled"),
    (UNITS, "effects.RegisteredEffects.clean: first of records #2", "the register rows of its attempts are not read"),
    (SWEPT, "effects.RegisteredEffects._clean: put False for True in return True #1", "rows reports 0, and 1 were swept"),
    (
        "time, an artifact, and a crash",
        "effects.RegisteredEffects.register: drop argument at for Reservation #1",
        "as one of now",
    ),
    (DROPPED, "outbox.process: drop argument attempt for Record #1", "leaves its own register row"),
    (HISTORY, "outbox._known: drop argument unit for Record #1", "is cleaned up in '', and not in its unit"),
    (COPIES, "outbox.drop: swap effects.clean and _forget_and_ack #1", "is acked, and what other attempts at it made"),
    (LEASES, "outbox.drop: first of dropped for _forget_and_ack #1", "is acked, and its record is not forgotten"),
    (RELAYED, "relay.relay: drop effects.clean #1", "is forgotten, and its message is not cleaned up"),
    (RELAYED, "relay.relay: drop admission.retire #1", "is forgotten, and its message is not retired"),
    (FAILING, "remote_execution.execute: drop admission.discard #1", "has lost, and its tokens are left"),
    (FAILING, "remote_execution.execute: swap opened.abandon and admission.discard #1", "neither committed nor abandoned"),
    (TRANSACTION, "transaction.complete: swap opened.abandon and admission.discard #1", "neither committed nor abandoned"),
    (ASKED, "remote_execution._dispatch: turn len((await relay(records, ports)).finished) < len(records) #1", "no call failed"),
]


@pytest.mark.parametrize(("check", "mutant", "words"), WRONG, ids=[mutant for _, mutant, _ in WRONG])
def test_what_is_left_behind_is_a_violation(check: str, mutant: str, words: str) -> None:
    """A row, an artifact, a record or an answer, told by the call that leaves it."""
    wrong = next(each.change for each in generated_mutants() if each.name == f"generated: algorithms.{mutant}")
    found, _ = explore(next(each for each in CHECKS if each.name == check), changed([wrong]), limit=5000)
    assert words in found.violation
