"""Starting while a server is away: tell it once and try again forever; a wrong set-up ends it at once."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from typing import TypeVar

from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import RetryableError, SetupError
from onceonly.runtime.environment import LIVE, Environment, pause
from onceonly.runtime.processes.notifier import Notifier
from onceonly.runtime.worker.backpressure import Backpressure

_Opened = TypeVar("_Opened")
_log = EventLogger(logging.getLogger("onceonly"))


class StartupWait:
    """How an endpoint's start waits for its servers, until `stop` is set. Sets `away` when it has found one to be away.

    While it is, `notifier` knows that a listener will come.
    """

    def __init__(
        self,
        stop: asyncio.Event,
        *,
        endpoint: str,
        environment: Environment = LIVE,
        away: asyncio.Event | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._stop = stop
        self._endpoint = endpoint
        self._timer = environment.timer
        self._backpressure = Backpressure(1, environment.random)
        self._away = away or asyncio.Event()
        self._notifier = notifier or Notifier()
        self._has_reported = False

    async def enter(self, stack: AsyncExitStack, opening: Callable[[], AbstractAsyncContextManager[_Opened]]) -> _Opened | None:
        """Enter what `opening` makes, as soon as that works. Returns None if `stop` was set before. Raises SetupError.

        An attempt that fails must leave nothing open. One that is under way when `stop` is set is cancelled.
        """
        with ExitStack() as waiting:
            while not self._stop.is_set():
                try:
                    return await self._try_once(stack, opening)
                except RetryableError as error:
                    if not self._has_reported:
                        waiting.enter_context(self._notifier.expected())
                    self._log_away(error)
                except SetupError as error:
                    if self._has_reported:  # long after the start, when the log may no longer be read
                        _log.error("endpoint start failed", extra={"endpoint": self._endpoint, "reason": str(error)})
                    raise
                await pause(self._backpressure.after_outage(), self._timer, self._stop)
        return None

    async def _try_once(
        self, stack: AsyncExitStack, opening: Callable[[], AbstractAsyncContextManager[_Opened]]
    ) -> _Opened | None:
        limit = asyncio.timeout(None)
        watching = asyncio.create_task(self._cut_short(limit))
        try:
            async with limit:  # cancels in this very task: what is entered here must be left here
                entered = await stack.enter_async_context(opening())
        except TimeoutError:
            if not limit.expired():
                raise
            return None
        finally:
            watching.cancel()
        if self._has_reported:
            _log.info("endpoint can start now", extra={"endpoint": self._endpoint})
        return entered

    async def _cut_short(self, limit: asyncio.Timeout) -> None:
        await self._stop.wait()
        limit.reschedule(asyncio.get_running_loop().time())

    def _log_away(self, error: RetryableError) -> None:
        self._away.set()
        if not self._has_reported:
            self._has_reported = True
            extra = {"endpoint": self._endpoint, "reason": str(error)}
            _log.warning("endpoint cannot start yet, retrying with backoff", extra=extra)
