"""`--drain`: work until the queues are empty, then stop."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from onceonly.model.errors import TryAgain
from onceonly.ports.transport import Depth, Transport
from onceonly.runtime.board import Column, Row
from onceonly.wiring import open_transport
from onceonly.wiring.settings import Settings

PAUSE = 0.05
"""Seconds between two looks."""


async def stop_when_drained(found: Sequence[Settings], stop: asyncio.Event, row: Row) -> int:
    """Set `stop` once nothing waits and nothing is held in all these queues; gives how many messages are not due yet.

    Sets it also when it fails itself.
    """
    try:
        return await _until_drained(found, stop, row)
    finally:
        stop.set()


async def _until_drained(found: Sequence[Settings], stop: asyncio.Event, row: Row) -> int:
    async with AsyncExitStack() as stack:
        queues = [
            (settings.name, await stack.enter_async_context(open_transport(settings.transport, settings.name)))
            for settings in found
        ]
        before = -1  # an empty look counts only if nothing was received since the one before it: one queue fills another
        while not stop.is_set():
            received = row.get(Column.RECEIVED)
            depth = await _together(queues)
            if depth is None or depth.waiting or depth.held:
                before = -1
            elif before == received:
                return depth.delayed
            else:
                before = received
            await asyncio.sleep(PAUSE)
    return 0


async def _together(queues: Sequence[tuple[str, Transport]]) -> Depth | None:
    """Add the depths up; None while one cannot be told."""
    try:
        depths = [await transport.depth(name) for name, transport in queues]
    except TryAgain:
        return None
    return Depth(
        waiting=sum(depth.waiting for depth in depths),
        held=sum(depth.held for depth in depths),
        delayed=sum(depth.delayed for depth in depths),
    )
