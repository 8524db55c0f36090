"""The process of a function in AWS Lambda: one event loop, and the endpoints that are open in it.

Lambda runs one invocation at a time in a process, and freezes the process as soon as the invocation has answered. What is open
stays open for the next invocation. Tasks in the background, such as those that store counts, only begin a piece of work during
an invocation, and the invocation waits for its end. So a frozen process holds no transaction open.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from dataclasses import replace
from math import inf
from typing import Any, Protocol, TypeVar

from onceonly.endpoint import Endpoint, Hosted
from onceonly.endpoint.host import host_of
from onceonly.model.errors import RetryableError, SetupError
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.logs import Logs

QUIET_SECONDS = 1.0
"""Seconds that an invocation waits for tasks in the background, at most."""
_IN_BACKGROUND: ContextVar[bool] = ContextVar("onceonly_lambda_background", default=False)
_Result = TypeVar("_Result")


class LambdaContext(Protocol):
    """The context of an invocation, as far as it is used."""

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until Lambda ends the process."""


class Deadline:
    """The end of an invocation, as seen by what may take its time."""

    def __init__(self, context: object, margin: float) -> None:
        """Read the time that is left. `margin` is the seconds of it for the answer. Without a context it never ends."""
        left: Callable[[], int] | None = getattr(context, "get_remaining_time_in_millis", None)
        self.whole = None if left is None else left() / 1000
        """Seconds that were left at the beginning: about the time-out of the function. None if unknown."""
        self._until = inf if self.whole is None else time.monotonic() + self.whole
        self._margin = margin

    @property
    def remaining(self) -> float | None:
        """Seconds for work. None if there is no limit."""
        return None if self._until == inf else self._until - self._margin - time.monotonic()

    @property
    def rest(self) -> float:
        """Seconds until Lambda ends the process, at most a minute."""
        return min(60.0, self._until - time.monotonic())


class InvocationTimer:
    """A timer whose sleepers in the background only wake up during an invocation."""

    def __init__(self) -> None:
        self._is_invoked, self._changed = asyncio.Event(), asyncio.Event()
        self._asleep = self._most = 0

    def seconds(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        if not _IN_BACKGROUND.get():
            await asyncio.sleep(seconds)
            return
        self._asleep += 1
        self._most = max(self._most, self._asleep)
        self._changed.set()
        try:
            await asyncio.sleep(seconds)
            await self._is_invoked.wait()
        finally:
            self._asleep -= 1

    def begin(self) -> None:
        """Let sleepers wake up."""
        self._is_invoked.set()

    async def end(self, seconds: float) -> None:
        """Let no sleeper wake up, and wait until all of them sleep, for this long at most."""
        self._is_invoked.clear()
        await asyncio.sleep(0)  # one that was woken up leaves its sleep
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                while self._asleep < self._most:
                    self._changed.clear()
                    await self._changed.wait()


class FunctionProcess:
    """The event loop of this process, and the endpoints that its invocations have opened."""

    def __init__(self) -> None:
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: InvocationTimer | None = None
        self._hosted: dict[int, Hosted] = {}
        self._stack = AsyncExitStack()

    def run(self, work: Callable[[], Awaitable[_Result]], deadline: Deadline) -> _Result:
        """Run an invocation to its end. Raises SetupError if another one runs, also for another event loop of this thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise SetupError("a Lambda handler runs an event loop of its own: call it from a function that is not async")
        if self._pid != os.getpid():
            self._begin()
        assert self._loop is not None  # noqa: S101 - made above
        if self._loop.is_running():
            raise SetupError("a Lambda handler runs one invocation at a time in a process: call it from one thread")
        return self._loop.run_until_complete(self._invocation(work, deadline))

    async def hosted(self, endpoint: Endpoint, deadline: Deadline) -> Hosted:
        """Return an endpoint that is open in this loop. The first call opens it. Raises SetupError, RetryableError."""
        found = self._hosted.get(id(endpoint))
        if found is None:
            environment = LIVE if self._timer is None else LIVE._replace(timer=self._timer)
            host = host_of(endpoint)
            # A process that is frozen reports nothing, and nothing removes the rows of those that Lambda has ended.
            settings = replace(host.settings, presence=False)
            opening = host.hosted(settings=settings, environment=environment, observer=Logs())
            token = _IN_BACKGROUND.set(True)
            try:
                async with asyncio.timeout(deadline.remaining):
                    found = await self._stack.enter_async_context(opening)
            except TimeoutError as error:
                text = f"endpoint {endpoint.name!r} was not open before the time of the invocation was over"
                raise RetryableError(f"{text}: check that store and transport can be reached from the function") from error
            finally:
                _IN_BACKGROUND.reset(token)
            self._hosted[id(endpoint)] = found
            self._stack.callback(self._hosted.pop, id(endpoint))
        return found

    async def keep(self, opening: Any) -> Any:
        """Enter an asynchronous context manager, and leave it at the end of the process."""
        return await self._stack.enter_async_context(opening)

    def close(self) -> None:
        """Close what is open. Lambda never does: it ends the process. For tests."""
        if self._loop is not None and self._pid == os.getpid():
            self._loop.run_until_complete(self._stack.aclose())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        self._pid, self._loop = 0, None

    def _begin(self) -> None:
        """Begin with nothing open: connections of a parent process are not for its children."""
        self._pid, self._loop = os.getpid(), asyncio.new_event_loop()
        self._timer, self._hosted, self._stack = InvocationTimer(), {}, AsyncExitStack()

    async def _invocation(self, work: Callable[[], Awaitable[_Result]], deadline: Deadline) -> _Result:
        timer = self._timer
        assert timer is not None  # noqa: S101 - made with the loop
        timer.begin()
        try:
            return await work()
        finally:
            await timer.end(min(QUIET_SECONDS, deadline.rest / 2))


PROCESS = FunctionProcess()
"""That of this process, which all handlers share."""
