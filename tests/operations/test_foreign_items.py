"""Letters that actions have stored, and that cannot be read any more: the others are restored, and their outcomes are read."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.dead_letters import DocumentDeadLetters
from onceonly.formats import undecodable
from onceonly.formats.log_events import LoggedKeys
from onceonly.formats.records import encode_letter
from onceonly.model.action import Action, ActionItem, ActionKind, ActionState, ItemOutcome
from onceonly.model.errors import SetupError
from onceonly.operations.actions import ActionParts, Operator, read_outcomes
from onceonly.operations.audit import UnstoredActionLog
from onceonly.operations.edits import restore
from onceonly.ports.dead_letters import Filter
from onceonly_conformance.clock import ManualClock
from tests.documents.test_foreign_dead_letters import letter
from tests.fuzzing import Inputs
from tests.log_events import event_in

ANA = Operator("ana", "cli")
GOOD = encode_letter(letter("good"))
UNREADABLE = (b"\x01", b"\x02", b"\xff", b"\x01" + b"\x91" * 5000, b"\x01\xc1")


@pytest.fixture(autouse=True)
def _none_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecodable, "_REPORTED", LoggedKeys())


async def parts_with(kind: ActionKind, outcome: ItemOutcome, stored: Sequence[bytes]) -> tuple[ActionParts, Action]:
    """Make an action that has stored these letters."""
    clock = ManualClock()
    letters = DocumentDeadLetters(MemoryDocuments(Live()), clock=clock)
    parts = ActionParts(letters=letters, log=UnstoredActionLog(clock))
    action = await parts.log.begin(Action(actor="ana", method="cli", action=kind, endpoint="shop", runner="r"))
    items = [
        ActionItem(action=action.position, number=number, letter=f"k{number}", outcome=outcome, stored=each)
        for number, each in enumerate(stored, 1)
    ]
    assert await parts.log.settle(replace(action, state=ActionState.DONE), items)
    return parts, action


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_an_unreadable_letter_of_an_action_keeps_no_other_from_being_restored(
    stored: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged. Alone it is an error that says so."""
    parts, action = await parts_with(ActionKind.DELETE, ItemOutcome.DELETED, [stored, GOOD, stored])
    assert (await restore(parts, ANA, action.position)).done == 1
    assert [each.key for each in await parts.letters.page(Filter())] == [letter("good").key]
    assert len([each for each in caplog.records if event_in(each) == "stored data unreadable"]) == 2
    with pytest.raises(SetupError, match="cannot be read"):
        await restore(parts, ANA, action.position, "k1")


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_the_outcome_of_an_unreadable_letter_is_unknown(stored: bytes) -> None:
    """The outcomes of the others are read."""
    parts, action = await parts_with(ActionKind.RETRY, ItemOutcome.WAITING, [stored, GOOD])
    await parts.letters.add(replace(letter("good"), at=1))
    outcomes = [item.outcome for item in await read_outcomes(parts, action)]
    assert outcomes[0] is ItemOutcome.UNKNOWN
    assert outcomes[1] is not ItemOutcome.WAITING
    assert [item.outcome for item in await parts.log.items(action.position)] == outcomes


async def test_fuzz_letters_of_actions() -> None:
    """The good one is restored, and each item gets an outcome."""
    inputs = Inputs()
    for _ in inputs.rounds(10):
        stored = [inputs.changed(GOOD) or b"\x01" for _ in range(10)]
        parts, action = await parts_with(ActionKind.RETRY, ItemOutcome.WAITING, [*stored, GOOD])
        assert ItemOutcome.WAITING not in [item.outcome for item in await read_outcomes(parts, action)]
        parts, action = await parts_with(ActionKind.DELETE, ItemOutcome.DELETED, [*stored, GOOD])
        assert (await restore(parts, ANA, action.position)).done >= 1
        assert await parts.letters.get(letter("good").key) is not None
