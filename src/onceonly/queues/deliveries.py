"""The deliveries of one process: their leases, requests that bring them, and those that are not due yet.

Requests outlive their callers: a broker that has handed out a message does not know that nobody waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from onceonly.model.errors import OnceOnlyError, RetryableError, SetupError
from onceonly.ports.environment import Clock

__all__ = ["BackgroundCalls", "DueMover", "HeldLeases", "raise_first"]

PAUSE_SECONDS = 1.0
"""Between two attempts to move messages, after an error."""
MOST_HELD = 20_000
"""Leases that are remembered before those that have ended are forgotten."""
_Result = TypeVar("_Result")


class BackgroundCalls:
    """Calls that end on their own when their caller is cancelled, or that have none."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    def start(self, call: Awaitable[object], *errors: type[Exception]) -> None:
        """Run a call that nobody waits for. Its OnceOnlyErrors, and these, are ignored: leases end on their own."""
        self._run(_without_error(call, *errors))

    async def finish(self, call: Awaitable[_Result]) -> _Result:
        """Await a call. It goes on when this is cancelled."""
        task = self._run(call)
        task.add_done_callback(_read_error)
        return await asyncio.shield(task)

    async def finish_all(self, calls: Iterable[Awaitable[_Result]]) -> list[_Result | BaseException]:
        """Await calls side by side. They go on when this is cancelled. An error of a call is its result."""
        return await self.finish(asyncio.gather(*calls, return_exceptions=True))

    async def take(
        self, call: Coroutine[Any, Any, _Result], give_back: Callable[[_Result], Coroutine[Any, Any, object]]
    ) -> _Result:
        """Await a request for messages. When this is cancelled, `give_back` gets what the request brings, and is awaited."""
        taking = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await self.finish(_without_error(_release_result(taking, give_back)))
            raise

    async def close(self) -> None:
        while self._running:
            await asyncio.wait(list(self._running))

    def _run(self, call: Awaitable[_Result]) -> "asyncio.Future[_Result]":
        task = asyncio.ensure_future(call)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


class DueMover:
    """Moves delayed messages that are due to their queue, as long as a receiver runs."""

    def __init__(self, move: Callable[[], Awaitable[float]], is_due: Callable[[], bool]) -> None:
        """Use `move`, which moves what is due, and returns the seconds until it is called again.

        `is_due` returns whether a receiver must begin to move.
        """
        self._move = move
        self._is_due = is_due
        self._receivers = 0
        self._moving: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._receivers += 1
        if self._moving is None and self._is_due():
            self._moving = asyncio.create_task(self._run())

    def end(self) -> None:
        self._receivers -= 1

    async def close(self) -> None:
        """Stop. What is being moved may be late."""
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait([self._moving])

    async def _run(self) -> None:
        try:
            while self._receivers:
                try:
                    pause = await self._move()
                except (RetryableError, SetupError):
                    pause = PAUSE_SECONDS  # receiving fails as well, and reports it
                await asyncio.sleep(pause)
        finally:
            self._moving = None


def raise_first(outcomes: Iterable[object]) -> None:
    """Raise the first of these outcomes that is an error, when all of its calls have ended."""
    for each in outcomes:
        if isinstance(each, BaseException):
            raise each


async def _release_result(
    taking: "asyncio.Future[_Result]", give_back: Callable[[_Result], Coroutine[Any, Any, object]]
) -> None:
    await give_back(await taking)


async def _without_error(call: Awaitable[object], *errors: type[Exception]) -> None:
    with suppress(OnceOnlyError, *errors):
        await call


def _read_error(task: "asyncio.Future[Any]") -> None:
    """Read the error of a call whose caller was cancelled, so that asyncio does not report it as ignored."""
    if not task.cancelled():
        task.exception()


class HeldLeases:
    """The leases of one process, by the broker's name for each delivery. All of a queue last the same time."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._milliseconds = int(seconds * 1000)
        self._ends: dict[str, int] = {}

    def hold(self, names: Iterable[str]) -> None:
        """Note deliveries that have come, or whose leases begin again."""
        now = self._clock.now()
        if len(self._ends) > MOST_HELD:
            self._ends = {name: end for name, end in self._ends.items() if end > now}
        self._ends |= dict.fromkeys(names, now + self._milliseconds)

    def holds(self, name: str) -> bool:
        """Return whether the lease of a delivery has not ended, as far as is known here."""
        return self._ends.get(name, 0) > self._clock.now()

    def settle(self, names: Iterable[str]) -> None:
        for name in names:
            self._ends.pop(name, None)
