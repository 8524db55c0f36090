"""Measurements several times a second: the lag of the event loop, and a callback for other gauges."""

import asyncio
from collections.abc import Callable

from onceonly.runtime.metrics.series import Instrument

EVERY_SECONDS = 0.25


async def record_lag(instrument: Instrument, process: int, look: Callable[[], None], *, every: float = EVERY_SECONDS) -> None:
    """Record by how much a timer is late, several times a second, until cancelled; then call `look`, which must not raise."""
    loop, attributes = asyncio.get_running_loop(), (str(process),)
    while True:
        due = loop.time() + every
        await asyncio.sleep(every)
        instrument.add(attributes, max(0.0, loop.time() - due))
        look()
