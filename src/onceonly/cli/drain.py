"""`onceonly run --drain`: work until the queues are empty, then stop."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from onceonly.assembly import open_store, open_transport
from onceonly.cli.child import ChildPlan, check, open_runners
from onceonly.cli.output import NEGATIVE, print_error, say
from onceonly.config.endpoint import Settings
from onceonly.model.errors import RetryableError
from onceonly.model.wording import counted
from onceonly.operations.overview import COUNTED
from onceonly.ports.transport import Depth, Transport
from onceonly.runtime.environment import LIVE, temporary_directory
from onceonly.runtime.observe.logs import Logs
from onceonly.runtime.observe.loop_monitor import monitored_loop
from onceonly.runtime.processes.child import run_here
from onceonly.runtime.processes.counters import Column, CounterRow, SharedCounters
from onceonly.runtime.worker.worker import Runner, run_all, side_by_side

POLL_SECONDS = 0.05
"""Seconds between two looks."""
QUIET_SECONDS = 2.0
"""Seconds to wait without a word for what others hold."""
STOPPED = "it was stopped before the queues were empty"


class HeldElsewhereNotice:
    """Reports once that another process holds all that is left, if that lasts."""

    def __init__(self, patience: float = QUIET_SECONDS) -> None:
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


def run_drain(plan: ChildPlan) -> int:
    """Run what a plan names until the queues are empty. Return the exit code. Raises SetupError."""
    left = [STOPPED]
    with (
        temporary_directory("onceonly-", "what the processes share") as folder,
        SharedCounters.create(Path(folder) / "board", 1) as counters,
    ):
        run_here(lambda stop: _drain_plan(plan, stop, counters, left))
    if left:
        print_error(f"not drained: {'; '.join(left)}")
        return NEGATIVE
    return 0


async def _drain_plan(plan: ChildPlan, stop: asyncio.Event, counters: SharedCounters, left: list[str]) -> None:
    """Work until the queues are empty; `left` becomes the reasons why they are not."""
    loaded, row = plan.load(), counters.row(0)
    queues = [DrainedQueue(settings, endpoint.topology().events) for endpoint, settings in loaded]
    # checked in the event loop that does the work: an engine of the user's belongs to one loop
    if not await check(loaded, stop):
        return
    async with open_runners(loaded, row, Logs(), stop) as runners:
        with monitored_loop():
            delayed = await drain(queues, workers=runners.workers, relays=runners.relays, stop=stop, row=row)
        # in this order: a record that another process sends in between is in a queue then
        unsent = await unsent_records([settings for _, settings in loaded])
        waiting = await waiting_messages(queues)
    numbers = {column.name.lower(): row.get(column) for column in (Column.HANDLED, Column.KNOWN, Column.RETRIED, Column.DEAD)}
    say("drained: " + ", ".join(f"{number} {name}" for name, number in (numbers | {"not yet due": delayed}).items()))
    left.clear()
    if delayed:
        left.append(f"{delayed} not yet due (retries and delayed messages): drain again when they are due")
    if unsent:
        when = "drain again later, the relay sends records that are older than relay_after"
        left.append(f"{counted(unsent, 'record')} with unsent messages: {when}")
    if waiting is None:
        left.append("the messages that wait cannot be counted: drain again when the broker answers")
    elif waiting:
        left.append(f"{counted(waiting, 'message')} waiting or held by other processes: drain again")


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
        transports = await _open_transports(stack, queues)
        while True:
            depth = await _total_depth(transports)
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
        transports = await _open_transports(stack, queues)
        elsewhere = HeldElsewhereNotice()
        before = -1  # an empty look counts only if nothing was received since the one before it: one queue fills another
        while not stop.is_set():
            received = row.get(Column.RECEIVED)
            depth = await _total_depth(transports)
            elsewhere.look(depth, row.get(Column.HELD))
            if depth is None or depth.waiting or depth.held:
                before = -1
            elif before == received:
                return depth.delayed
            else:
                before = received
            await asyncio.sleep(POLL_SECONDS)
    return 0


async def _open_transports(stack: AsyncExitStack, queues: Sequence[DrainedQueue]) -> list[tuple[DrainedQueue, Transport]]:
    return [
        (queue, await stack.enter_async_context(open_transport(queue.settings.required_transport, queue.settings.name)))
        for queue in queues
    ]


async def _total_depth(transports: Sequence[tuple[DrainedQueue, Transport]]) -> Depth | None:
    """Add the depths up. None if one is not known."""
    try:
        depths = [await transport.depth(queue.settings.name, queue.events) for queue, transport in transports]
    except RetryableError:
        return None
    return Depth(
        waiting=sum(depth.waiting for depth in depths),
        held=sum(depth.held for depth in depths),
        delayed=sum(depth.delayed for depth in depths),
    )
