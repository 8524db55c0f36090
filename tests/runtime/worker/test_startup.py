"""Starting while a server is away: said once, tried again with growing delays for ever, ended by a stop or a wrong set-up."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, SetupError
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.worker.backpressure import UNKNOWN_MOST_SECONDS
from onceonly.runtime.worker.startup import StartupWait
from tests.log_events import event_in


class NotingTimer:
    """Waits for nothing, and notes how long it was asked to; sets `stop` when it was asked often enough."""

    def __init__(self, stop: asyncio.Event, enough: int = 10**9) -> None:
        self.asked: list[float] = []
        self._stop = stop
        self._enough = enough

    def seconds(self) -> float:
        """Stand still."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Note it."""
        self.asked.append(seconds)
        if len(self.asked) >= self._enough:
            self._stop.set()
        await asyncio.sleep(0)


class Server:
    """What is opened: fails as told, one error after the other, then opens; counts what is open."""

    def __init__(self, *errors: OnceOnlyError) -> None:
        self.errors = list(errors)
        self.open = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        """Open, or fail."""
        if self.errors:
            raise self.errors.pop(0)
        self.open += 1
        try:
            yield "ports"
        finally:
            self.open -= 1


def patience(stop: asyncio.Event, timer: NotingTimer, away: asyncio.Event | None = None) -> StartupWait:
    """Make the patience of an endpoint's start."""
    environment: Environment = LIVE._replace(timer=timer)
    return StartupWait(stop, endpoint="shop", environment=environment, away=away)


async def test_a_server_that_is_away_is_waited_for_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is said later is that it works now; the delays grow to their cap."""
    stop, away = asyncio.Event(), asyncio.Event()
    timer, server = NotingTimer(stop), Server(*(CommitFailed("nobody listens"), OutcomeUnknown("no answer")) * 6)
    with caplog.at_level(logging.INFO, "onceonly"):
        async with AsyncExitStack() as stack:
            assert await patience(stop, timer, away).enter(stack, server.opened) == "ports"
            assert server.open == 1
    assert server.open == 0
    assert [(record.levelname, event_in(record)) for record in caplog.records] == [
        ("WARNING", "endpoint cannot start yet, retrying with backoff"),
        ("INFO", "endpoint can start now"),
    ]
    assert vars(caplog.records[0])["reason"] == "nobody listens"
    assert away.is_set()
    assert len(timer.asked) == 12
    assert timer.asked[0] <= 0.1
    assert UNKNOWN_MOST_SECONDS / 2 <= timer.asked[-1] <= UNKNOWN_MOST_SECONDS


async def test_a_server_that_is_there_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """And nothing is waited for."""
    stop, away = asyncio.Event(), asyncio.Event()
    timer = NotingTimer(stop)
    async with AsyncExitStack() as stack:
        assert await patience(stop, timer, away).enter(stack, Server().opened) == "ports"
    assert (caplog.records, timer.asked, away.is_set()) == ([], [], False)


async def test_a_stop_ends_the_waiting() -> None:
    """Nothing is open then, and nothing is raised."""
    stop = asyncio.Event()
    timer, server = NotingTimer(stop, enough=3), Server(*[CommitFailed("nobody listens")] * 100)
    async with AsyncExitStack() as stack:
        assert await patience(stop, timer).enter(stack, server.opened) is None
    assert len(server.errors) == 97


async def test_a_stop_ends_an_attempt_that_hangs() -> None:
    """A server that never answers keeps nobody from stopping."""
    stop, knocked = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def silent() -> AsyncIterator[str]:
        knocked.set()
        await asyncio.Event().wait()
        yield "never"

    async with AsyncExitStack() as stack:
        entering = asyncio.create_task(patience(stop, NotingTimer(stop)).enter(stack, silent))
        await knocked.wait()
        stop.set()
        assert await entering is None


async def test_a_time_out_of_the_servers_own_is_raised() -> None:
    """It is not taken for a stop."""
    stop = asyncio.Event()

    @asynccontextmanager
    async def late() -> AsyncIterator[str]:
        raise TimeoutError("its own")
        yield "never"

    async with AsyncExitStack() as stack:
        with pytest.raises(TimeoutError, match="its own"):
            await patience(stop, NotingTimer(stop)).enter(stack, late)


@pytest.mark.parametrize("before", [0, 2])
async def test_a_wrong_set_up_is_raised_at_once(before: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also when it shows only after the server came; then it is logged as well, for nobody may be looking any more."""
    stop = asyncio.Event()
    timer, server = NotingTimer(stop), Server(*[CommitFailed("nobody listens")] * before, SetupError("the password is wrong"))
    async with AsyncExitStack() as stack:
        with pytest.raises(SetupError, match="the password is wrong"):
            await patience(stop, timer).enter(stack, server.opened)
    assert len(timer.asked) == before
    assert [event_in(record) for record in caplog.records if record.levelname == "ERROR"] == ["endpoint start failed"] * bool(
        before
    )
