"""A connection that is lost is made again, with growing pauses between attempts."""

import asyncio

import pytest

from onceonly.model.errors import CommitFailed, SetupError
from onceonly.queues.reconnection import LONGEST_PAUSE_SECONDS, Reconnection


class FixedRandom:
    """Always the same fraction."""

    def fraction(self) -> float:
        """Return the middle of the jitter."""
        return 0.5


class Connection:
    """A connection that is open until it is closed."""

    def __init__(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        """Close it."""
        self.is_open = False


class Broker:
    """Opens connections, or fails while it is away."""

    def __init__(self) -> None:
        self.attempts = 0
        self.problem: Exception | None = None
        self.reconnection: Reconnection[Connection] = Reconnection(self.connect, Connection.close, FixedRandom())

    async def connect(self) -> Connection:
        """Connect, or raise the present problem."""
        self.attempts += 1
        await asyncio.sleep(0)
        if self.problem is not None:
            raise self.problem
        return Connection()


async def test_callers_share_one_connection() -> None:
    """Also those that ask for it at the same time. A lost one is replaced."""
    broker = Broker()
    first, second = await asyncio.gather(broker.reconnection.get(), broker.reconnection.get())
    assert first is second
    first.is_open = False
    assert await broker.reconnection.get() is not first
    assert broker.attempts == 2


async def test_a_call_within_a_pause_fails_as_the_last_attempt_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses grow up to the longest. A success ends them."""
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    broker = Broker()
    broker.problem = SetupError("rejected")
    pauses = []
    for number in range(1, 9):
        for _ in range(2):
            with pytest.raises(SetupError, match="rejected"):
                await broker.reconnection.get()
        assert broker.attempts == number
        pauses.append(broker.reconnection._not_before - now)
        now = broker.reconnection._not_before
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_SECONDS * 0.75)
    broker.problem = None
    assert (await broker.reconnection.get()).is_open


async def test_a_connection_that_is_made_while_it_is_closed_is_closed_too() -> None:
    """And no other is made afterwards."""
    broker = Broker()
    getting = asyncio.create_task(broker.reconnection.get())
    await asyncio.sleep(0)
    await broker.reconnection.close()
    for call in (getting, broker.reconnection.get()):
        with pytest.raises(CommitFailed, match="closed by this process"):
            await call
    assert broker.reconnection.current is None
    assert broker.attempts == 1
