"""`--drain`: work until the queues are empty, then stop."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from time import monotonic
from typing import NamedTuple

from onceonly.assembly import open_store, open_transport
from onceonly.cli.output import say
from onceonly.config.endpoint import Settings
from onceonly.model.errors import RetryableError
from onceonly.model.wording import counted
from onceonly.ports.transport import Depth, Transport
from onceonly.runtime.environment import LIVE
from onceonly.runtime.processes.counters import Column, CounterRow
from onceonly.runtime.worker.worker import Runner, run_all, side_by_side

COUNTED = 10_000
"""Records are counted up to this number."""
POLL_SECONDS = 0.05
"""Seconds between two looks."""
QUIET_SECONDS = 2.0
"""Seconds to wait without a word for what others hold."""


class HeldElsewhereNotice:
    """Reports once that another process holds all that is left, if that lasts."""

    def __init__(self, patience: float = QUIET_SECONDS) -> None:
        """Be patient for this many seconds."""
        self._patience = patience
        self._since: float | None = None
        self._said = False

    def look(self, depth: Depth | None, own: int) -> None:
        """Take in how the queues stand, and how many deliveries this process holds itself."""
        if depth is None or depth.waiting or own or not depth.held:
            self._since = None
            return
        now = monotonic()
        self._since = now if self._since is None else self._since
        if not self._said and now - self._since >= self._patience:
            self._said = True
            say(f"waiting for {counted(depth.held, 'message')} held by another process")


class DrainedQueue(NamedTuple):
    """An endpoint whose queue is to be empty, with the types of events that it subscribes to."""

    settings: Settings
    events: tuple[str, ...]


async def drain(
    queues: Sequence[DrainedQueue],
    *,
    workers: Sequence[Runner],
    relays: Sequence[Runner],
    stop: asyncio.Event,
    row: CounterRow,
) -> int:
    """Run these until no message waits or is held in any of the queues, then stop them. Return how many are not due yet.

    The relays stop first: what one of them sends last, for a process that died, is still handled. Sets `stop` in any case.
    """
    halt, halted, delayed = asyncio.Event(), asyncio.Event(), 0

    async def relaying() -> None:
        try:
            await run_all(relays, halt)
        finally:
            halted.set()

    async def draining() -> None:
        nonlocal delayed
        try:
            await _until_drained(queues, stop, row)
            halt.set()
            await halted.wait()
            delayed = await _until_drained(queues, stop, row)
        finally:
            halt.set()
            stop.set()

    await side_by_side([run_all(workers, stop), relaying(), draining()])
    return delayed


async def waiting_messages(queues: Sequence[DrainedQueue], *, patience: float = QUIET_SECONDS) -> int | None:
    """Return how many messages wait or are held in these queues. None if it is not known.

    Some brokers count what has just been acknowledged, so a queue that is not empty is looked at for `patience` seconds.
    """
    end = monotonic() + patience
    async with AsyncExitStack() as stack:
        opened = await _opened(stack, queues)
        while True:
            depth = await _together(opened)
            if (depth is not None and not (depth.waiting or depth.held)) or monotonic() >= end:
                return None if depth is None else depth.waiting + depth.held
            await asyncio.sleep(POLL_SECONDS)


async def unsent_records(found: Sequence[Settings]) -> int:
    """Count what is committed in these stores and not sent yet: it is too young for the relay, or refused."""
    count = 0
    for settings in found:
        async with open_store(replace(settings, metadata=None)) as opened:
            if opened.pending is not None:
                count += len(await opened.pending.undispatched(LIVE.clock.now() + 1, COUNTED))
    return count


async def _until_drained(queues: Sequence[DrainedQueue], stop: asyncio.Event, row: CounterRow) -> int:
    async with AsyncExitStack() as stack:
        opened = await _opened(stack, queues)
        elsewhere = HeldElsewhereNotice()
        before = -1  # an empty look counts only if nothing was received since the one before it: one queue fills another
        while not stop.is_set():
            received = row.get(Column.RECEIVED)
            depth = await _together(opened)
            elsewhere.look(depth, row.get(Column.HELD))
            if depth is None or depth.waiting or depth.held:
                before = -1
            elif before == received:
                return depth.delayed
            else:
                before = received
            await asyncio.sleep(POLL_SECONDS)
    return 0


async def _opened(stack: AsyncExitStack, queues: Sequence[DrainedQueue]) -> list[tuple[DrainedQueue, Transport]]:
    return [
        (queue, await stack.enter_async_context(open_transport(queue.settings.transport, queue.settings.name)))
        for queue in queues
    ]


async def _together(opened: Sequence[tuple[DrainedQueue, Transport]]) -> Depth | None:
    """Add the depths up. None if one is not known."""
    try:
        depths = [await transport.depth(queue.settings.name, queue.events) for queue, transport in opened]
    except RetryableError:
        return None
    return Depth(
        waiting=sum(depth.waiting for depth in depths),
        held=sum(depth.held for depth in depths),
        delayed=sum(depth.delayed for depth in depths),
    )
