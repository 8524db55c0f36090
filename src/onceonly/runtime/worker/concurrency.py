"""Units of one batch that have nothing to do with each other, such as different entities, run side by side."""

import asyncio

from onceonly.algorithms.delivery import BatchReport, Work, Works, one_after_another
from onceonly.runtime.worker.pipeline import LoopTurn


class ConcurrencyLimit:
    """Does the works of one loop's batches side by side, at most this many of a worker at once."""

    def __init__(self, room: asyncio.Semaphore, turn: LoopTurn) -> None:
        """Share the room with the worker's other loops."""
        self._room = room
        self._turn = turn

    async def __call__(self, works: Works) -> BatchReport:
        """Do them all, then raise what the first of them raised."""
        if len(works) < 2:  # noqa: PLR2004 - one or none
            return await one_after_another(works)
        with self._turn.shared(len(works)):
            return await self._together(works)

    async def _together(self, works: Works) -> BatchReport:
        tasks = [asyncio.create_task(self._in_turn(work)) for work in works]
        try:
            await asyncio.wait(tasks)
        finally:  # ends tasks; calls no port
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return sum((task.result() for task in tasks), BatchReport())

    async def _in_turn(self, work: Work) -> BatchReport:
        async with self._room:
            self._turn.begin()
            return await work()
