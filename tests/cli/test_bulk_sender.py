"""Sending batch by batch: whatever happens, every message of the input is accounted for."""

from collections.abc import Iterator, Sequence

import pytest

from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.cli import bulk_sender
from onceonly.cli.bulk_sender import SendTally, send_all
from onceonly.cli.events import BadItem
from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology


class ForgetfulTransport(MemoryTransport):
    """Takes messages, but its first answers are lost: as an exception, then as UNKNOWN."""

    def __init__(self) -> None:
        super().__init__(Live(), "shop")
        self.asked: list[int] = []

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send, and answer only at the third time."""
        self.asked.append(len(sends))
        answers = await super().send(sends)
        if len(self.asked) == 1:
            raise OutcomeUnknown("the line went dead")
        return (*answers[:-1], Answer.UNKNOWN) if len(self.asked) == 2 else answers


def numbered(count: int, problem: BadItem | None = None) -> Iterator[Message]:
    """Return messages, then fail if there is a problem."""
    for number in range(count):
        yield Message(id=str(number), source="cli", type="T", body=b"{}")
    if problem is not None:
        raise problem


async def shop() -> MemoryTransport:
    """Return a transport on which only the endpoint `shop` is known."""
    transport = MemoryTransport(Live(), "shop")
    await transport.declare([Topology(endpoint="shop")])
    return transport


async def test_batches_are_sent_and_the_progress_adds_up() -> None:
    """More than one batch arrives completely."""
    transport, tally, ticks = await shop(), SendTally(), []
    await send_all(numbered(1200), transport, to="shop", tally=tally, tick=ticks.append)
    assert (tally.sent, tally.refused, tally.unknown, sum(ticks)) == (1200, [], 0, 1200)
    assert (await transport.depth("shop")).waiting == 1200


async def test_what_came_before_a_bad_item_is_sent_and_counted() -> None:
    """Nothing that was read is dropped silently."""
    transport, tally = await shop(), SendTally()
    with pytest.raises(BadItem, match="line 8"):
        await send_all(numbered(7, BadItem("line 8")), transport, to="shop", tally=tally, tick=lambda _: None)
    assert (tally.sent, (await transport.depth("shop")).waiting) == (7, 7)


async def test_unsure_messages_are_sent_again_and_only_they() -> None:
    """A lost answer is asked for again, with the same ids."""
    transport, tally = ForgetfulTransport(), SendTally()
    await transport.declare([Topology(endpoint="shop")])
    await send_all(numbered(3), transport, to="shop", tally=tally, tick=lambda _: None)
    assert transport.asked == [3, 3, 1]
    assert (tally.sent, tally.unknown) == (3, 0)
    ids = {value for d in await transport.receive(100, 0) for key, value in d.headers if key == "ce-id"}
    assert ids == {"0", "1", "2"}


async def test_what_stays_unsure_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few tries it gives up, and says so."""

    class DeadLine(MemoryTransport):
        async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
            raise OutcomeUnknown("no answer")

    monkeypatch.setattr(bulk_sender, "FIRST_PAUSE_SECONDS", 0)
    tally = SendTally()
    await send_all(numbered(2), DeadLine(Live(), "shop"), to="shop", tally=tally, tick=lambda _: None)
    assert (tally.sent, tally.unknown) == (0, 2)


class OftenAway(MemoryTransport):
    """A broker that is away at the times given; counts how often it was asked."""

    def __init__(self, *away: int) -> None:
        super().__init__(Live(), "shop")
        self.away = away
        self.asked = 0

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Take them, or fail."""
        self.asked += 1
        if self.asked in self.away:
            raise CommitFailed("nobody listens")
        return await super().send(sends)


async def test_a_server_that_never_answered_is_not_waited_for() -> None:
    """Nothing was sent: somebody is looking, and wants to know."""
    transport = OftenAway(1)
    with pytest.raises(CommitFailed, match="nobody listens"):
        await send_all(numbered(2), transport, to="shop", tally=SendTally(), tick=lambda _: None)
    assert transport.asked == 1


@pytest.mark.parametrize("away", [(2, 3), (2, 3, 4, 5, 6)])
async def test_a_server_that_goes_away_in_between_is_waited_for_a_while(
    monkeypatch: pytest.MonkeyPatch, away: tuple[int, ...]
) -> None:
    """Then it is told that it is away, and not that nobody knows."""
    monkeypatch.setattr(bulk_sender, "FIRST_PAUSE_SECONDS", 0)
    transport, tally = OftenAway(*away), SendTally()
    await transport.declare([Topology(endpoint="shop")])
    sent_all = send_all(numbered(501), transport, to="shop", tally=tally, tick=lambda _: None)
    if len(away) < bulk_sender.TRIES:
        await sent_all
    else:
        with pytest.raises(CommitFailed):
            await sent_all
    assert (tally.sent, tally.unknown) == (501 if len(away) < bulk_sender.TRIES else 500, 0)


async def test_refused_messages_are_listed_with_their_reason() -> None:
    """An unknown endpoint and an oversize body are different troubles."""
    transport, tally = await shop(), SendTally()
    await send_all(numbered(1), transport, to="shpo", tally=tally, tick=lambda _: None)
    huge = Message(id="huge", source="cli", type="T", body=bytes(transport.traits.max_body + 1))
    await send_all([huge], transport, to="shop", tally=tally, tick=lambda _: None)
    unknown, oversize = tally.refused
    assert (unknown.id, oversize.id) == ("0", "huge")
    assert "endpoint 'shpo' has no queue" in unknown.reason
    assert "bytes" in oversize.reason
