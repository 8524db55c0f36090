"""Worker processes of `onceonly run`: supervised until a signal, and with `--reload` restarted when a source file changes."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from onceonly.assembly.document_places import TOLD
from onceonly.assembly.gauges import reading_gauges
from onceonly.cli.child import CLOSE_SECONDS, ChildPlan, check, work
from onceonly.cli.health import HealthSource, address_of, vitals_in
from onceonly.cli.metrics import MetricsPage, can_serve_metrics, metrics_missing
from onceonly.config.endpoint import Settings
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.formats.log_events import EventLogger
from onceonly.runtime.environment import temporary_directory
from onceonly.runtime.metrics.series import SharedSeries
from onceonly.runtime.observe.http import Pages
from onceonly.runtime.processes.child import new_event_loop, stopping_on_signals
from onceonly.runtime.processes.counters import SharedCounters
from onceonly.runtime.processes.early_start import SETUP, EarlyStart
from onceonly.runtime.processes.processes import ChildEvent, ChildEventKind, Supervisor
from onceonly.systems import Family

HANGS = 2
"""A process is reported as hanging when its event loop is blocked for this part of the time after which it is killed."""
POLL_SECONDS = 0.5
"""Seconds between two checks of the source files."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

_log = EventLogger(logging.getLogger("onceonly"))


def run_supervised(plan: ChildPlan, *, processes: int, reload: bool, early: EarlyStart) -> int:
    """Run what a plan names until a signal. Return the exit code. The first worker processes are those of `early`.

    Raises SetupError, and what the command line reports as an error.
    """
    with (
        temporary_directory("onceonly-", "what the processes share") as folder,
        SharedCounters.create(Path(folder) / "board", processes) as counters,
    ):
        return _supervise(plan, counters, reload=reload, early=early)


def _supervise(plan: ChildPlan, counters: SharedCounters, *, reload: bool, early: EarlyStart) -> int:
    loaded = plan.load()
    early.import_modules(_modules_to_import(settings for _, settings in loaded))
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
        on_event=log_event,
        early=early,
    )
    names = [endpoint.name for endpoint, _ in loaded]
    source = HealthSource(
        names, supervisor.pulses, vitals_in(counters.path.parent), patience=watchdog / HANGS, progress=watchdog
    )

    async def serve() -> int:
        async with AsyncExitStack() as stack:
            pages: Pages = {"/metrics": metrics_missing}
            if measures:
                series = stack.enter_context(SharedSeries(counters.path.parent, counters.rows))
                subscribed = [(settings, endpoint.topology().events) for endpoint, settings in loaded]
                gauges = await stack.enter_async_context(reading_gauges(subscribed))
                silent = watchdog / HANGS
                page = MetricsPage(series, [each for _, each in loaded], supervisor.pulses, silent=silent, gauges=gauges)
                pages = {"/metrics": page}
            await stack.enter_async_context(source.open(address, pages))
            return await _until_signal(loaded, supervisor, source, reload=reload)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serve())


def _modules_to_import(all_settings: Iterable[Settings]) -> tuple[str, ...]:
    """Name what takes long to import and is not imported before endpoints are opened."""
    places = [place for each in all_settings for place in (each.places.store, each.places.transport)]
    return ("onceonly.assembly.sql",) if any(place.family is Family.SQL for place in places) else ()


async def _until_signal(
    loaded: Sequence[tuple[Endpoint, Settings]],
    supervisor: Supervisor,
    source: HealthSource,
    *,
    reload: bool,
) -> int:
    """Run until a signal; with `reload` all children stop gracefully and begin anew whenever a file changes."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    with stopping_on_signals(stop, hurry.set):
        source.stopping = stop.is_set
        if not await check(loaded, stop):
            return 0
        if not reload:
            return await supervisor.run(stop, hurry)
        while True:
            code = await _run_until_changed(supervisor, stop, hurry)
            if stop.is_set():
                return code


async def _run_until_changed(supervisor: Supervisor, stop: asyncio.Event, hurry: asyncio.Event) -> int:
    """Run the program as it is now, until a file changes or a signal comes. An unfit program is not started again before."""
    over = asyncio.Event()
    watching = [asyncio.ensure_future(_set_after(over, cause)) for cause in (stop.wait(), _wait_for_change())]
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


async def _wait_for_change() -> None:
    """Return when a file has changed, and say which."""
    _log.info("program reloading", extra={"changed": ", ".join(path.name for path in await until_changed(Path.cwd()))})


def log_event(event: ChildEvent) -> None:
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


def stamps(root: Path) -> dict[Path, int]:
    """Return every `.py` file below `root` with its time of change; hidden folders and virtual environments are left out."""
    found = {}
    for path in _python_files(root):
        try:
            found[path] = path.stat().st_mtime_ns
        except OSError:  # it went away just now
            continue
    return found


def changed(before: Mapping[Path, int], after: Mapping[Path, int]) -> list[Path]:
    return sorted({path for path, _ in before.items() ^ after.items()})


async def until_changed(root: Path, pause: float = POLL_SECONDS) -> list[Path]:
    """Return as soon as files below `root` differ from what they are now. Returns those that do."""
    before = await asyncio.to_thread(stamps, root)
    while True:
        await asyncio.sleep(pause)
        if different := changed(before, await asyncio.to_thread(stamps, root)):
            return different


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if _is_watched(Path(folder, name))]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def _is_watched(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in _SKIPPED and not (folder / "pyvenv.cfg").exists()
