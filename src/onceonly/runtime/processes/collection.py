"""Garbage collection in a worker process: what its start has made is not traversed again for each few hundred messages."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AGAIN_SECONDS = 0.5
"""Seconds until the second freeze, when connections are open and the first messages have filled the caches."""
THRESHOLDS = (2_000, 10, 100)
"""How many new objects start a collection of the youngest generation, and how many collections one of the next."""


@asynccontextmanager
async def frozen_start(*, again_seconds: float = AGAIN_SECONDS) -> AsyncIterator[None]:
    """Exempt all objects that exist now, and those that exist `again_seconds` later, from garbage collection.

    Collections then traverse only what messages make, and they are rarer: thresholds are raised to `THRESHOLDS`. Greater ones
    of the program stay, and so does a collector that it has turned off. Reference counting frees frozen objects as before.
    A frozen reference cycle stays in memory, so both freezes collect first.

    This is a setting of the whole process. It is undone at the end, also for objects that the program has frozen itself.
    """
    before = gc.get_threshold()
    _freeze()
    gc.set_threshold(*(own and max(own, ours) for own, ours in zip(before, THRESHOLDS, strict=True)))
    again = asyncio.get_running_loop().call_later(again_seconds, _freeze)
    try:
        yield
    finally:
        again.cancel()
        gc.set_threshold(*before)
        gc.unfreeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()
