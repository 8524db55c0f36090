"""Units of one batch that have nothing to do with each other, such as different entities, run side by side."""

import asyncio

from onceonly.algorithms.delivery import Report, Work, Works, one_after_another
from onceonly.runtime.turns import Turn


class SideBySide:
    """Does the works of one loop's batch side by side, as many at once as there is room in the worker."""

    def __init__(self, room: asyncio.Semaphore, turn: Turn) -> None:
        """Share the room with the worker's other loops; the turn is this loop's."""
        self._room = room
        self._turn = turn

    async def __call__(self, works: Works) -> Report:
        """Do them all, then raise what the first of them raised."""
        if len(works) < 2:  # noqa: PLR2004 - one or none
            return await one_after_another(works)
        await self._turn.take()  # before there is any room: a unit that ran alone may have given it up
        tasks = [asyncio.create_task(self._in_turn(work)) for work in works]
        self._turn.share(tasks)
        try:
            await asyncio.wait(tasks)
        finally:  # ends tasks; calls no port
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._turn.share(())
        return sum((task.result() for task in tasks), Report())

    async def _in_turn(self, work: Work) -> Report:
        async with self._room:
            try:
                return await work()
            finally:
                self._turn.done()
