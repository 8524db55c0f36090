"""Emptying while four connections claim: what it takes, and what it takes from them."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import asyncpg

from benchmarks.retention.findings import Emptying
from benchmarks.retention.keys import Keys
from benchmarks.retention.postgresql import BackgroundWork, ClaimTarget, RetentionDatabase

CONNECTIONS = 4
BEFORE, DURING, LOOKED_AT = 2.0, 1.0, 1.0
"""Seconds for which claiming is undisturbed at first, for which it is looked at at least from when the work begins, and for
which undisturbed claiming is looked at on either side: tables and caches grow, so that one side alone is faster or slower."""


class Claiming:
    """Claims batch after batch until it is told to stop, and notes when each ended, and how long it took."""

    def __init__(self, place: ClaimTarget, keys: Keys, *, batch: int, ready: int) -> None:
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


async def emptying(ground: RetentionDatabase, place: ClaimTarget, work: BackgroundWork, *, batch: int, ready: int) -> Emptying:
    """Claim on four connections, do the work after a while, and compare."""
    claiming = Claiming(place, ground.keys(seed=time.monotonic_ns()), batch=batch, ready=ready)
    connections = [await ground.connect() for _ in range(CONNECTIONS)]
    try:
        async with asyncio.TaskGroup() as group:
            for each in connections:
                group.create_task(claiming.run(each))
            await asyncio.sleep(BEFORE)
            begin = time.perf_counter()
            await work.do()
            end = time.perf_counter()
            until = max(end, begin + DURING)
            await asyncio.sleep(until + LOOKED_AT - time.perf_counter())
            claiming.stopped = True
    finally:
        for each in connections:
            await each.close()
    undisturbed, beside, longest = compared(claiming.ended, begin, until)
    return Emptying(
        seconds=round(end - begin, 4),
        undisturbed=round(undisturbed * batch, 1),
        beside=round(beside * batch, 1),
        longest=round(longest, 4),
        dead_rows=await ground.dead_rows(work.table),
    )


def compared(ended: Sequence[tuple[float, float]], begin: float, until: float) -> tuple[float, float, float]:
    """Return the batches a second on both sides of a time, those within it, and the seconds that the slowest of these took."""
    around = [at for at, _ in ended if begin - LOOKED_AT <= at < begin or until <= at < until + LOOKED_AT]
    beside = [took for at, took in ended if begin <= at < until]
    return len(around) / (2 * LOOKED_AT), len(beside) / (until - begin), max(beside, default=until - begin)
