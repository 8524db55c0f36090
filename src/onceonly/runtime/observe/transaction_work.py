"""What the transactions of a process did, for the report of a process that handles no messages of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from onceonly.algorithms.settlement import BatchReport
from onceonly.model.message import Delivery
from onceonly.model.transaction import IdempotencyEntry
from onceonly.ports.maintenance import Backlog
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly.runtime.worker.run_times import RunTimes

_NOTHING = nullcontext()


class TransactionWork:
    """Counts committed transactions as handled, and known keys as known. An observer, and what is reported."""

    held: tuple[Delivery, ...] = ()
    troubles: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.report = BatchReport()
        self.run_times = RunTimes(LIVE.clock)

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        return self._counting(call) if call.point in (Point.OPEN, Point.COMMIT) else _NOTHING

    async def backlog(self) -> Backlog | None:
        """Return None: such a process receives nothing."""
        return None

    async def run(self, stop: asyncio.Event) -> None:
        """Wait for the stop: what reports the process runs next to it."""
        await stop.wait()

    @asynccontextmanager
    async def _counting(self, call: PortCall) -> AsyncIterator[None]:
        yield
        if call.point is Point.COMMIT:
            self.report += BatchReport(handled=1)
        elif isinstance(call.result, IdempotencyEntry):
            self.report += BatchReport(known=1)
