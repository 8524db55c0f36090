"""A worker in this process that gets its messages in batches of a given size, one at a time, so that what they cost is exact.

Otherwise the size of a batch depends on how fast the broker is, and what two batches share on how they overlap.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from onceonly.adapters.rabbitmq import inbox
from onceonly.algorithms.settlement import BatchReport
from onceonly.model.message import Delivery
from onceonly.ports.transport import Transport
from onceonly.runtime.worker import worker
from onceonly.runtime.worker.transports import PatientTransport

NEVER = 3600.0
"""What depends on time costs more on a slow machine, so it does not happen.

A consumer of RabbitMQ ends soon after the last receive, and what comes meanwhile is a suspect. Acknowledgements above a
delivery in work wait for it, and after a moment are sent one by one. A unit that has used its time leaves messages out.
"""


class ExactBatches:
    """Stands between the workers of this process and their transports."""

    def __init__(self, patch: pytest.MonkeyPatch, size: int) -> None:
        self._size = size
        self._begin, self._settled, self._is_over = asyncio.Event(), asyncio.Event(), False
        self.reports: list[BatchReport] = []
        batches, inner = self, worker.deliver

        class GatheringTransport(PatientTransport):
            """Receives nothing before it is told to, and then a whole batch."""

            def __init__(self, transport: Transport) -> None:
                super().__init__(transport)
                self.receive = partial(batches._gather, transport)

        class UnhurriedHandlers(worker.LoopHandlers):
            """Handle a whole unit, however long it takes."""

            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self._budget = NEVER

        async def deliver(*arguments: Any, **options: Any) -> BatchReport:
            report = await inner(*arguments, **options)
            batches.reports.append(report)
            batches._settled.set()
            return report

        patch.setattr(inbox, "LINGER_SECONDS", NEVER)
        patch.setattr(inbox, "ACK_SECONDS", NEVER)
        patch.setattr(worker, "PatientTransport", GatheringTransport)
        patch.setattr(worker, "LoopHandlers", UnhurriedHandlers)
        patch.setattr(worker, "deliver", deliver)

    async def _gather(self, transport: Transport, most: int, wait: float) -> tuple[Delivery, ...]:
        await self._begin.wait()
        if self._is_over:
            return ()
        self._begin.clear()
        assert most >= self._size, "the worker takes smaller batches"
        found: tuple[Delivery, ...] = ()
        while len(found) < self._size:
            found += await transport.receive(self._size - len(found), wait)
        return found

    async def take(self) -> BatchReport:
        """Have the worker take a batch, and return when it is settled: sent, forgotten and acknowledged."""
        self._settled.clear()
        self._begin.set()
        await self._settled.wait()
        return self.reports[-1]

    def end(self) -> None:
        """Let the worker stop."""
        self._is_over = True
        self._begin.set()


class Turn:
    """What a row of the benchmark is given instead of a JobControl: it begins at once, and stops when told."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self._receiving: asyncio.Future[asyncio.Event] = asyncio.get_running_loop().create_future()

    async def begin(self, receiving: asyncio.Event) -> None:
        """Keep what says that the worker receives."""
        self._receiving.set_result(receiving)

    @asynccontextmanager
    async def running(self, work: Coroutine[Any, Any, None], batches: ExactBatches) -> AsyncIterator[None]:
        """Run it beside the test."""
        task, started = asyncio.create_task(work), asyncio.create_task(self._started())
        try:
            await asyncio.wait([started, task], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            yield
        finally:
            started.cancel()
            self.stop.set()
            batches.end()
            await task

    async def _started(self) -> None:
        await (await self._receiving).wait()


def least(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the smallest count of each kind: what runs beside the batches, such as clean-up, only adds to them."""
    return {name: min(each[name] for each in counts) for name in counts[0]}
