"""An endpoint that the first invocation of a function opens, and that stays open until the process ends.

A process of a function runtime ends without notice. Nothing is opened at import. The endpoint is opened by a task of its own,
so that an invocation that is cancelled does not close it for the others.
"""

import asyncio
import os
from contextvars import Context
from weakref import WeakKeyDictionary

from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.endpoint.hosted import Hosted
from onceonly.model.errors import SetupError, WrongEventLoop


class KeptEndpoint:
    """One endpoint of this process, in the event loop of the first invocation."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._holding: _Holding | None = None

    async def hosted(self) -> Hosted:
        """Return what handles messages. Otherwise as `opened`. Raises InvalidHandler for an endpoint without handlers."""
        if (hosted := await self.opened()) is None:
            async with self._endpoint.hosted() as hosted:  # raises, and says why
                pass
        return hosted

    async def opened(self) -> Hosted | None:
        """Open it for transactions, and for messages if it has handlers. Calls at the same time wait for the first one.

        If opening fails, the next call tries again. Raises SetupError, WrongEventLoop in another event loop, and RetryableError
        if a server does not answer.
        """
        if self._holding is None or self._holding.is_over:
            self._holding = _Holding(self._endpoint)
        self._holding.check()
        return await asyncio.shield(self._holding.hosted)

    async def close(self) -> None:
        """Close it, if it is open. The next call opens it again."""
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.check()
            await holding.close()


class _Holding:
    """A task that holds an endpoint open."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._stop = asyncio.Event()
        self.hosted: asyncio.Future[Hosted | None] = self._loop.create_future()
        name = f"onceonly {endpoint.name} kept open"
        self._task = self._loop.create_task(self._hold(), name=name, context=Context())  # not that of the first invocation

    @property
    def is_over(self) -> bool:
        """Whether it could not be opened, or is closed."""
        return self._pid == os.getpid() and self._task.done()

    def check(self) -> None:
        """Raise SetupError in a process that was forked since, and WrongEventLoop in another event loop."""
        name = self._endpoint.name
        if self._pid != os.getpid():
            raise SetupError(f"endpoint {name!r} was opened before this process was forked: invoke functions after the fork")
        if asyncio.get_running_loop() is not self._loop:
            raise WrongEventLoop(
                f"endpoint {name!r} was opened in another event loop: functions of one process run in one loop. In tests, call "
                "`await close(endpoint)` at the end of each loop"
            )

    async def close(self) -> None:
        self._stop.set()
        await asyncio.wait({self._task})

    async def _hold(self) -> None:
        try:
            sends_only = host_of(self._endpoint).only_sends
            async with self._endpoint.opened() if sends_only else self._endpoint.hosted() as hosted:
                self.hosted.set_result(hosted)
                await self._stop.wait()
        except BaseException as error:
            if self.hosted.done():
                raise
            self.hosted.set_exception(error)
            self.hosted.exception()  # an invocation that was cancelled does not read it


_KEPT: WeakKeyDictionary[Endpoint, KeptEndpoint] = WeakKeyDictionary()


def kept(endpoint: Endpoint) -> KeptEndpoint:
    """Return the one of this endpoint. All functions of a process share it."""
    return _KEPT.setdefault(endpoint, KeptEndpoint(endpoint))
