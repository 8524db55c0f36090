"""The story of messages in the journal of an endpoint that runs: what units write, and what is recorded beside them."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from onceonly import Context, Endpoint, Journal, Retry
from onceonly.assembly.operations import open_operations
from onceonly.endpoint.host import host_of
from onceonly.model.conversation import RELAYED, JournalEvent
from onceonly.model.identity import Identity
from onceonly.runtime.observe.observed_ports import ObservedPort

RETRIES = 2


@dataclass
class Place:
    """A command, whose handler fails so often."""

    order: str
    failures: int = 0


@dataclass
class Charge:
    """A command that follows."""

    order: str


class Shop:
    """An endpoint on a file, with handlers that fail as often as they are told."""

    def __init__(self, folder: Path, journal: Journal | None = None) -> None:
        url = f"sqlite:///{folder}/shop.db"
        self.endpoint = Endpoint("shop", store=url, transport=url, journal=journal, retry=Retry(immediate=RETRIES, delayed=0))
        self.messages: dict[str, Identity] = {}
        self.wanted: set[str] = set()
        self.settled = asyncio.Event()
        """Set when each wanted order is charged, or fails for the last time."""
        self.endpoint.handler(self._place)
        self.endpoint.handler(self._charge)

    async def _place(self, command: Place, context: Context) -> None:
        self.messages[command.order] = Identity(context.message.source, context.message.id)
        if context.attempts < command.failures:
            if context.attempts == RETRIES:
                self._settle(command.order)
            raise ValueError(f"secret of {command.order}")
        context.send(Charge(command.order), to="shop")

    async def _charge(self, command: Charge) -> None:
        self._settle(command.order)

    def _settle(self, order: str) -> None:
        self.wanted.discard(order)
        if not self.wanted:
            self.settled.set()

    async def work(self, *commands: Place) -> None:
        """Send these, and run until each is settled."""
        stop, ready, self.wanted = asyncio.Event(), asyncio.Event(), {command.order for command in commands}
        running = asyncio.create_task(self.endpoint.run(stop, ready=ready))
        await ready.wait()
        async with self.endpoint.transaction() as transaction:
            for command in commands:
                transaction.send(command, to="shop")
        await self.settled.wait()
        stop.set()  # what is in progress is settled first
        await running

    async def story(self, order: str) -> list[JournalEvent]:
        """Read the events of an order's first message, without the one of the relay that has sent it."""
        async with open_operations(self.endpoint.settings) as opened:
            assert opened.message_journal is not None
            events = (await opened.message_journal.of_message(self.messages[order])).events
        told = [each for each in events if each.outcome != RELAYED]
        assert len(told) == len(events) - 1
        return told


async def test_the_story_of_a_message_has_its_attempts_and_their_end(tmp_path: Path) -> None:
    """Two failures and a success; three failures and a dead letter. Texts of errors are not in it."""
    shop = Shop(tmp_path, Journal())
    await shop.work(Place("A-1"), Place("A-2", failures=2), Place("A-3", failures=99))
    assert [(each.outcome, each.attempt) for each in await shop.story("A-1")] == [("handled", 1)]
    told = await shop.story("A-2")
    assert [(each.outcome, each.attempt, each.error) for each in told] == [
        ("retried", 1, "ValueError"),
        ("retried", 2, "ValueError"),
        ("handled", 3, ""),
    ]
    assert all(each.duration is not None and each.duration < 60_000_000 for each in told)
    *_, last = told = await shop.story("A-3")
    assert [(each.outcome, each.attempt) for each in told] == [("retried", 1), ("retried", 2), ("dead_letter", 3)]
    async with open_operations(shop.endpoint.settings) as opened:
        letter = await opened.letters.get(last.letter)
    assert letter is not None
    assert letter.reason.endswith("secret of A-3")
    assert "secret" not in repr(told)


async def test_ports_are_not_observed_without_a_journal(tmp_path: Path) -> None:
    """It costs nothing when it is off."""
    for journal, is_observed in ((None, False), (Journal(), True)):
        async with host_of(Shop(tmp_path, journal).endpoint).opened() as ports:
            assert isinstance(ports.transport, ObservedPort) is is_observed
