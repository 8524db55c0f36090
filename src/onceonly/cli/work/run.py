"""What `onceonly run` does: endpoints in supervised processes, until a signal."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec

from onceonly.assembly.documents import TOLD
from onceonly.assembly.gauges import reading_gauges
from onceonly.cli.child import CLOSE_SECONDS, ChildPlan, check, opened, work
from onceonly.cli.debugger import Debugger
from onceonly.cli.drain import DrainedQueue, drain, unsent_records, waiting_messages
from onceonly.cli.health import HealthSource, address_of, vitals_in
from onceonly.cli.metrics import MetricsPage, can_serve_metrics, metrics_missing
from onceonly.cli.output import NEGATIVE, complain, say
from onceonly.cli.reload import until_changed
from onceonly.config.endpoint import Settings
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.formats.log_events import EventLogger
from onceonly.model.wording import counted
from onceonly.runtime.metrics.series import SharedSeries
from onceonly.runtime.observe.blocked import monitored_loop
from onceonly.runtime.observe.http import Pages
from onceonly.runtime.observe.logs import Logs, log_to_stderr
from onceonly.runtime.processes.child import new_event_loop, run_here, stopping_on_signals
from onceonly.runtime.processes.counters import Column, SharedCounters
from onceonly.runtime.processes.processes import ChildEvent, ChildEventKind, Supervisor
from onceonly.runtime.processes.starting import SETUP, EarlyStart, answer_breakpoints
from onceonly.runtime.processes.temporary import temporary_directory
from onceonly.runtime.worker.worker import side_by_side

HANGS = 2
"""A process is reported as hanging when its event loop is blocked for this part of the time after which it is killed."""

STOPPED = "it was stopped before the queues were empty"

_log = EventLogger(logging.getLogger("onceonly"))


def run_plan(plan: ChildPlan, *, processes: int, reload: bool, drains: bool, early: EarlyStart | None = None) -> int:
    """Run what a plan names until a signal, or with `drains` until the queues are empty. Return the exit code.

    The first worker processes are those of `early`. `--drain` and `--debug` use none.

    Raises SetupError, and what the command line reports as an error.
    """
    log_to_stderr(json_lines=plan.json_logs, level=plan.log_level)
    if plan.debug:
        run_here(partial(_debug, plan))
        return 0
    left = [STOPPED]
    with (
        temporary_directory("onceonly-", "what the processes share") as folder,
        SharedCounters.create(Path(folder) / "board", processes) as counters,
    ):
        if not drains:
            return _supervise(plan, counters, reload=reload, early=early or EarlyStart({}))
        run_here(lambda stop: _drain(plan, stop, counters, left))
    if left:
        complain(f"not drained: {'; '.join(left)}")
        return NEGATIVE
    return 0


def _supervise(plan: ChildPlan, counters: SharedCounters, *, reload: bool, early: EarlyStart) -> int:
    loaded = plan.load()
    early.import_modules(_imported_at_open(settings for _, settings in loaded))
    address = address_of(plan.health, loaded)
    measures = address is not None and can_serve_metrics()
    plan = msgspec.structs.replace(plan, tells=address is not None, measures=measures)
    grace = max(settings.worker.grace for _, settings in loaded)
    watchdog = max(host_of(endpoint).handlers(settings=settings).longest_timeout for endpoint, settings in loaded) + grace
    supervisor = Supervisor(
        work,
        (plan, TOLD),  # as it is when a child starts
        processes=counters.rows,
        counters=counters,
        watchdog=watchdog,
        grace=grace + CLOSE_SECONDS,
        on_event=_tell,
        early=early,
    )
    names = [endpoint.name for endpoint, _ in loaded]
    desk = HealthSource(names, supervisor.pulses, vitals_in(counters.path.parent), patience=watchdog / HANGS, progress=watchdog)

    async def answering() -> int:
        async with AsyncExitStack() as stack:
            pages: Pages = {"/metrics": metrics_missing}
            if measures:
                series = stack.enter_context(SharedSeries(counters.path.parent, counters.rows))
                subscribed = [(settings, endpoint.topology().events) for endpoint, settings in loaded]
                gauges = await stack.enter_async_context(reading_gauges(subscribed))
                silent = watchdog / HANGS
                page = MetricsPage(series, [each for _, each in loaded], supervisor.pulses, silent=silent, gauges=gauges)
                pages = {"/metrics": page}
            await stack.enter_async_context(desk.open(address, pages))
            return await _until_signal(loaded, supervisor, desk, reload=reload)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(answering())


def _imported_at_open(all_settings: Iterable[Settings]) -> tuple[str, ...]:
    """Name what takes long to import and is not imported before endpoints are opened."""
    places = [place for each in all_settings for place in (each.places.store, each.places.transport)]
    return ("onceonly.assembly.sql",) if any(place.is_sql for place in places) else ()


async def _until_signal(
    loaded: Sequence[tuple[Endpoint, Settings]],
    supervisor: Supervisor,
    desk: HealthSource,
    *,
    reload: bool,
) -> int:
    """Run until a signal; with `reload` all children stop gracefully and begin anew whenever a file changes."""
    told, hurry = asyncio.Event(), asyncio.Event()
    with stopping_on_signals(told, hurry.set):
        desk.stopping = told.is_set
        if not await check(loaded, told):
            return 0
        if not reload:
            return await supervisor.run(told, hurry)
        while True:
            code = await _until_changed(supervisor, told, hurry)
            if told.is_set():
                return code


async def _until_changed(supervisor: Supervisor, told: asyncio.Event, hurry: asyncio.Event) -> int:
    """Run the program as it is now, until a file changes or a signal comes. An unfit program is not started again before."""
    over = asyncio.Event()
    watching = [asyncio.ensure_future(_set_after(over, cause)) for cause in (told.wait(), _change())]
    try:
        code = await supervisor.run(over, hurry)
        if code == SETUP and not over.is_set():
            _log.error("program cannot start, waiting for a file change")
        await over.wait()
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    return code


async def _set_after(event: asyncio.Event, cause: Awaitable[object]) -> None:
    await cause
    event.set()


async def _change() -> None:
    """Return when a file has changed, and say which."""
    _log.info("program reloading", extra={"changed": ", ".join(path.name for path in await until_changed(Path.cwd()))})


async def _debug(plan: ChildPlan, stop: asyncio.Event) -> None:
    """Run in the main thread of this process, which has the terminal. A breakpoint may block the event loop for any time."""
    answer_breakpoints(Debugger(stop))
    loaded = plan.load()
    if await check(loaded, stop):
        await side_by_side([host_of(each).run(stop, settings=settings, observer=Logs()) for each, settings in loaded])


async def _drain(plan: ChildPlan, stop: asyncio.Event, counters: SharedCounters, left: list[str]) -> None:
    """Work until the queues are empty; `left` becomes what is left all the same, in words."""
    loaded, row = plan.load(), counters.row(0)
    queues = [DrainedQueue(settings, endpoint.topology().events) for endpoint, settings in loaded]
    # checked in the event loop that does the work: an engine of the user's belongs to one loop
    if not await check(loaded, stop):
        return
    async with opened(loaded, row, Logs(), stop) as runners:
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


def _tell(event: ChildEvent) -> None:
    """Log what happens to the processes."""
    fields = {"child": event.index, "pid": event.pid}
    match event.kind:
        case ChildEventKind.UNFIT:
            _log.error("process ended: set-up is wrong", extra=fields)
        case ChildEventKind.DIED:
            _log.warning("process died", extra=fields | {"exitcode": event.exitcode, "replaced_in": event.delay})
        case ChildEventKind.UNRESPONSIVE:
            _log.error("process killed: event loop blocked", extra=fields)
        case ChildEventKind.STUCK:
            _log.error("process killed: handler did not end in time", extra=fields)
        case ChildEventKind.KILLED:
            _log.warning("process killed: did not stop in time", extra=fields)
        case ChildEventKind.HURRIED:
            _log.warning("process killed: second signal", extra=fields)
        case ChildEventKind.STARTED:
            _log.info("process started", extra=fields)
        case ChildEventKind.REPLACED:
            _log.info("process replaced", extra=fields)
        case ChildEventKind.STOPPED:
            _log.info("process stopped", extra=fields)
