"""Requests for messages outlive their callers, and what they bring is given back."""

import asyncio

import pytest

from onceonly.model.errors import CommitFailed
from onceonly.queues.deliveries import BackgroundCalls, DueMover


async def test_a_cancelled_request_ends_and_gives_back_what_it_brings() -> None:
    """Before its caller is told."""
    background, arrived = BackgroundCalls(), asyncio.Event()
    given: list[str] = []

    async def request() -> str:
        await arrived.wait()
        return "m1"

    async def give_back(message: str) -> None:
        given.append(message)

    taking = asyncio.create_task(background.take(request(), give_back))
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.sleep(0)
    assert not taking.done()
    arrived.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert given == ["m1"]


async def test_close_waits_for_calls_without_a_caller() -> None:
    """Their errors are ignored if they are the broker's, or named."""
    background = BackgroundCalls()
    ended: list[str] = []

    async def fail(error: Exception) -> None:
        await asyncio.sleep(0)
        ended.append(str(error))
        raise error

    background.start(fail(CommitFailed("a")))
    background.start(fail(OSError("b")), OSError)
    outcomes = asyncio.create_task(background.finish_all([fail(OSError("c"))]))
    await background.close()
    assert sorted(ended) == ["a", "b", "c"]
    (outcome,) = await outcomes
    assert isinstance(outcome, OSError)


async def test_what_is_due_is_moved_as_long_as_a_receiver_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error costs a pause. Nothing begins unless something is due."""
    monkeypatch.setattr("onceonly.queues.deliveries.PAUSE_SECONDS", 0.0)
    moves, due = 0, False
    enough = asyncio.Event()

    async def move() -> float:
        nonlocal moves
        moves += 1
        if moves == 2:
            raise CommitFailed("away")
        if moves == 3:
            enough.set()
        return 0.0

    mover = DueMover(move, lambda: due)
    mover.begin()
    await asyncio.sleep(0)
    assert not moves
    due = True
    mover.begin()
    await enough.wait()
    for _ in range(2):
        mover.end()
    await asyncio.sleep(0.01)
    before = moves
    await asyncio.sleep(0.01)
    assert moves == before
    await mover.close()
