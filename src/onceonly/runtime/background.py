"""Runs something next to a block, such as a worker in a web application's lifespan, or until it is stopped."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

Run = Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, None]]
"""Works until the first event is set, and sets the second one once it is ready."""


class Background:
    """A worker that runs in the background of a block; see `Endpoint.running`."""

    def __init__(self, working: asyncio.Task[None]) -> None:
        self._working = working

    @property
    def failure(self) -> str:
        """Why the worker has ended. Empty while it runs."""
        if not self._working.done():
            return ""
        error = None if self._working.cancelled() else self._working.exception()
        return "it ended unexpectedly" if error is None else f"{type(error).__name__}: {error}"


@asynccontextmanager
async def in_background(run: Run, *, name: str) -> AsyncIterator[Background]:
    """Begin the block once `run` is ready; the exit stops it, and waits for its end. Raises what ends it, at either moment."""
    stop, ready = asyncio.Event(), asyncio.Event()
    working = asyncio.create_task(run(stop, ready), name=name)
    try:
        await _first(working, ready)
        yield Background(working)
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


async def run_until_stopped(
    turning: Coroutine[Any, Any, None], stop: asyncio.Event, *, rung: asyncio.Event, grace: float
) -> None:
    """Run it until `stop` is set; then end its rest by `rung`, and wait `grace` seconds for what is in work.

    Raises what it raises.
    """
    working = asyncio.create_task(turning)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        rung.set()
        await asyncio.wait({working}, timeout=grace)
    finally:  # ends tasks; calls no port
        for task in (working, stopped):
            task.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)
    if not working.cancelled():
        working.result()
