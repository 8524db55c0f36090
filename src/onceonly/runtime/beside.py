"""Running something beside a block, such as a worker in a web application's lifespan."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

Run = Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, None]]
"""Works until the first event is set, and sets the second one once it is ready."""


@asynccontextmanager
async def beside(run: Run, *, name: str) -> AsyncIterator[None]:
    """Begin the block once `run` is ready; the exit stops it, and waits for its end. Raises what ends it, at either moment."""
    stop, ready = asyncio.Event(), asyncio.Event()
    working = asyncio.create_task(run(stop, ready), name=name)
    try:
        await _first(working, ready)
        yield
    finally:  # stops the task, in whatever way the block ended
        stop.set()
        await working


async def _first(working: asyncio.Task[None], ready: asyncio.Event) -> None:
    """Return once it is ready; raises what kept it from that."""
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        working.result()
