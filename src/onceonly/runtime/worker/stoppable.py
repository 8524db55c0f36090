"""Running what works turn by turn until it is stopped, such as a relay or a janitor."""

import asyncio
from collections.abc import Coroutine
from typing import Any


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
