"""What happens outside of units reaches the journal: later, many at once, and never at the cost of messages."""

import logging
from collections.abc import Sequence

import pytest

from onceonly.model.conversation import JournalEntry, JournalPart, JournalRun
from onceonly.model.errors import CommitFailed
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.retry import Retry
from onceonly.ports.dead_letters import Filter
from onceonly.runtime.observe import journal_recorder
from onceonly.runtime.observe.journal_recorder import JournalRecorder, recording
from tests.runtime.harness import SHOP, ScriptedHandlers, SimulatedEndpoint, failing
from tests.runtime.relay.harness import RelayHarness


class ListedJournal:
    """Entries in memory. The first `failing` writes fail."""

    every = 60.0

    def __init__(self, failing: int = 0) -> None:
        self.entries: list[JournalEntry] = []
        self.runs: dict[Identity, JournalRun] = {}
        self.seen: list[JournalRun] = []
        self.writes = 0
        self.failing = failing

    def ran(self, identity: Identity, run: JournalRun | None) -> None:
        """Keep it until it is forgotten."""
        if run is None:
            self.runs.pop(identity, None)
        else:
            self.runs[identity] = run
            self.seen.append(run)

    async def add(self, entries: Sequence[JournalEntry]) -> None:
        """Keep them, or fail."""
        self.writes += 1
        if self.failing:
            self.failing -= 1
            raise CommitFailed("the store is away")
        self.entries += entries

    async def rotate(self) -> int:
        """Keep all."""
        return 0

    async def conversation(self, key: bytes) -> JournalPart:
        """Find nothing."""
        return JournalPart()

    async def of_message(self, identity: Identity) -> JournalPart:
        """Find nothing."""
        return JournalPart()

    @property
    def story(self) -> list[tuple[str, str, int, str]]:
        """Ids, outcomes, attempts and errors, in order."""
        return [(each.message.id, each.outcome, each.attempt, each.error) for each in self.entries]


def failing_twice(retry: Retry | None = None) -> ScriptedHandlers:
    """Return handlers that fail twice for the message "bad"."""

    def script(message: Message, _resources: object) -> None:
        if message.id == "bad" and handlers.started.count("bad") <= 2:
            raise failing("no") from ValueError("no")

    handlers = ScriptedHandlers(script, retry)
    return handlers


async def test_retries_have_their_attempt_and_error_and_what_is_handled_is_left_to_its_unit() -> None:
    """The run that is committed is offered to the unit, and forgotten afterwards."""
    simulated, journal = await SimulatedEndpoint(failing_twice()).open("bad"), ListedJournal()
    async with recording(journal, endpoint=SHOP) as observer:
        await simulated.work(also=[observer])
    assert journal.story == [("bad", "retried", 1, "ValueError"), ("bad", "retried", 2, "ValueError")]
    assert all(each.duration is not None and each.at for each in journal.entries)
    assert (journal.seen[-1].attempt, journal.runs) == (3, {})


async def test_a_dead_letter_has_its_reason_and_its_key() -> None:
    """The key leads to the letter's page."""
    handlers = failing_twice(Retry(immediate=0, delayed=0))
    simulated, journal = await SimulatedEndpoint(handlers).open("bad"), ListedJournal()
    async with recording(journal, endpoint=SHOP) as observer:
        await simulated.work(also=[observer])
    (entry,) = journal.entries
    assert (entry.outcome, entry.attempt, entry.error) == ("dead_letter", 1, "ValueError")
    (letter,) = await simulated.letters.page(Filter(endpoint=SHOP))
    assert entry.letter == letter.key


async def test_each_duplicate_is_there() -> None:
    """In one batch and in a later one."""
    simulated, journal = await SimulatedEndpoint().open("a", "a"), ListedJournal()
    async with recording(journal, endpoint=SHOP) as observer:
        await simulated.work(also=[observer])
        await simulated.send("a")
        await simulated.work(also=[observer])
    assert journal.story == [("a", "duplicate", 0, "")] * 2
    assert [each.duration for each in journal.entries] == [None, None]


async def test_what_a_relay_sends_is_there_and_what_a_unit_sends_is_not() -> None:
    """A unit has written its own."""
    harness, journal = await RelayHarness().open(), ListedJournal()
    await harness.commit("one", "two")
    async with recording(journal, endpoint=SHOP) as observer:
        await harness.run(observer)
    assert len(journal.entries) == 2
    assert {each.outcome for each in journal.entries} == {"relayed"}


async def test_an_outage_is_logged_once_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Entries wait in order; the handlers do not."""
    simulated, journal = await SimulatedEndpoint(failing_twice()).open("bad"), ListedJournal(failing=2)
    recorder = JournalRecorder(journal, endpoint=SHOP)
    await simulated.work(also=[recorder.observer])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await recorder.write()
    assert [attempt for _, _, attempt, _ in journal.story] == [1, 2]
    assert sum("message journal entries not stored" in each.message for each in caplog.records) == 1


async def test_what_waits_is_bounded_and_losses_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory is worth more than history."""
    monkeypatch.setattr(journal_recorder, "MOST_WAITING", 3)
    simulated, journal = await SimulatedEndpoint().open(*["a"] * 9), ListedJournal()
    recorder = JournalRecorder(journal, endpoint=SHOP)
    await simulated.work(also=[recorder.observer])
    with caplog.at_level(logging.WARNING):
        await recorder.write()
    assert len(journal.entries) == 3
    assert {each.message.body for each in journal.entries} == {b""}
    assert [each.__dict__["count"] for each in caplog.records if "entries lost" in each.message] == [5]


async def test_many_entries_are_written_at_once_and_none_costs_nothing() -> None:
    """A write without entries is not sent."""
    simulated, journal = await SimulatedEndpoint().open(*["a"] * 9), ListedJournal()
    recorder = JournalRecorder(journal, endpoint=SHOP)
    await recorder.write()
    assert journal.writes == 0
    await simulated.work(also=[recorder.observer])
    await recorder.write()
    assert (journal.writes, len(journal.entries)) == (1, 8)
