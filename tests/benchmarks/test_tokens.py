"""What a chain with tokens leaves behind is counted, and something that is left is a failure."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.tokens.census import Sums, TokenCensus, problems, take
from benchmarks.tokens.running import TokensJob, TokensOutcome, run
from onceonly import WorkerSettings
from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.bookkeeping import DocumentCounter, DocumentJournals
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.maintenance_journal import MaintenanceJournal
from onceonly.model.token import Token
from onceonly.ports.documents import Change

MESSAGES = 200
FAST = WorkerSettings(wait=0.05)


async def through(store: str, tokens: str = "") -> TokensOutcome:
    """Run it in this process."""
    job = TokensJob(messages=MESSAGES, store=store, tokens=tokens, transport="memory://queues", worker=FAST)
    return await run(job, lambda _: None)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("store", "tokens"),
    [
        ("memory://store", ""),
        ("memory://store", "memory://tokens"),
        ("sqlite:///{}/store.db", ""),
        ("sqlite:///{}/store.db", "sqlite:///{}/tokens.db"),
        ("sqlite:///{}/store.db", "memory://tokens"),
    ],
)
async def test_nothing_is_left_of_messages_but_what_they_did(store: str, tokens: str, tmp_path: Path) -> None:
    """No token, no record, no claim; no copy was handled, and the entities are as small as they were halfway."""
    outcome = await through(store.format(tmp_path), tokens.format(tmp_path))
    assert (outcome.problems, outcome.late.left(), outcome.copies) == ([], {}, MESSAGES // 10)
    assert outcome.refused <= outcome.copies  # a copy that came with the first counts as nothing
    assert (outcome.late.size, outcome.late.largest) == (outcome.early.size, outcome.early.largest)
    assert {sums.count for sums in outcome.late.sums.values()} == {MESSAGES}


@pytest.mark.timeout(120)
async def test_tokens_that_are_never_removed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a token store whose `remove` does nothing leaves all, and handles copies twice."""

    async def keep(_store: DocumentTokens, _tokens: Sequence[Token]) -> None:
        """Remove nothing."""

    monkeypatch.setattr(DocumentTokens, "remove", keep)
    outcome = await through("memory://store")
    assert outcome.late.left().keys() == {"live"}
    assert outcome.late.live >= 2 * MESSAGES
    assert any(f"{outcome.late.live} left of live" in problem for problem in outcome.problems)


async def test_what_every_endpoint_keeps_is_not_left_over() -> None:
    """A counter of drops and a janitor's journal, however many messages came; anything else that lies there is."""
    place = MemoryDocuments(Live())
    await DocumentCounter(place, "dropped").add(1)
    await DocumentJournals(place, "till").write(MaintenanceJournal(at=1, interval=1))
    assert (await take({"place": place}, [])).left() == {}
    await place.save([Change(key="unknown/thing", body=b"{}", expected="")])
    assert (await take({"place": place}, [])).left() == {"other": 1}


def test_each_thing_that_should_not_be_there_is_a_problem() -> None:
    """Whatever it is, and however little."""
    right = {"Shop": Sums(3, 6), "Region": Sums(3, 6)}
    assert problems(TokenCensus(sums=right), TokenCensus(), messages=3) == []
    for name in ("prepared", "live", "records", "claims", "register", "dead", "other", "entities", "largest", "size"):
        assert len(problems(TokenCensus(sums=right, **{name: 1}), TokenCensus(), messages=3)) == 1
    for sums in (Sums(2, 6), Sums(3, 7)):
        assert len(problems(TokenCensus(sums={**right, "Shop": sums}), TokenCensus(), messages=3)) == 1
