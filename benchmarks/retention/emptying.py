"""Emptying while four connections claim: what it takes, and what it takes from them."""

import asyncio
import time
from typing import Any

import asyncpg

from benchmarks.retention.findings import Emptying
from benchmarks.retention.keys import Keys
from benchmarks.retention.postgresql import Ground, Place, Work

CONNECTIONS = 4
BEFORE, AFTER = 2.0, 1.0
"""Seconds for which claiming is undisturbed, and for which it is looked at at least from then on."""


class Claiming:
    """Claims batch after batch until it is told to stop, and notes when each ended, and how long it took."""

    def __init__(self, place: Place, keys: Keys, *, batch: int, ready: int) -> None:
        """Make so many claims ready before; when they are used up, each batch is made when it is its turn."""
        self._place, self._keys, self._batch = place, keys, batch
        self._ready = [place.parameters(each) for each in keys.batches(ready, batch)]
        self.stopped = False
        self.ended: list[tuple[float, float]] = []

    async def run(self, connection: asyncpg.Connection) -> None:
        """Work on one connection."""
        statement = await connection.prepare(self._place.statement)
        while not self.stopped:
            parameters, begun = self._next(), time.perf_counter()
            await statement.fetch(*parameters)
            now = time.perf_counter()
            self.ended.append((now, now - begun))

    def _next(self) -> tuple[list[Any], ...]:
        return self._ready.pop() if self._ready else self._place.parameters(self._keys.batches(self._batch, self._batch)[0])


async def emptying(ground: Ground, place: Place, work: Work, *, batch: int, ready: int) -> Emptying:
    """Claim on four connections, do the work after a while, and compare."""
    keys = Keys(ground.start, ground.slicing.width, seed=time.monotonic_ns())
    claiming = Claiming(place, keys, batch=batch, ready=ready)
    connections = [await ground.connect() for _ in range(CONNECTIONS)]
    try:
        async with asyncio.TaskGroup() as group:
            for each in connections:
                group.create_task(claiming.run(each))
            await asyncio.sleep(BEFORE)
            begin = time.perf_counter()
            await work.do()
            end = time.perf_counter()
            await asyncio.sleep(max(0.0, begin + AFTER - end))
            claiming.stopped = True
    finally:
        for each in connections:
            await each.close()
    until = max(end, begin + AFTER)
    before = [at for at, _ in claiming.ended if begin - BEFORE / 2 <= at < begin]
    beside = [took for at, took in claiming.ended if begin <= at <= until]
    return Emptying(
        seconds=round(end - begin, 4),
        undisturbed=round(len(before) * batch / (BEFORE / 2), 1),
        beside=round(len(beside) * batch / (until - begin), 1),
        longest=round(max(beside, default=until - begin), 4),
        dead_rows=await ground.dead_rows(work.table),
    )
