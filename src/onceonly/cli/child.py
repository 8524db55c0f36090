"""What runs in each process of `onceonly run`: the endpoints, named by a plan that crosses to the child as plain data."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from onceonly.assembly import shown, wire
from onceonly.assembly.document_places import TOLD
from onceonly.cli.health import health_path
from onceonly.cli.hints import pasteable
from onceonly.cli.output import SETUP, print_error
from onceonly.cli.targets import UrlOverrides, load_all
from onceonly.config.endpoint import Settings
from onceonly.config.location import messaging_system
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError
from onceonly.ports.bundle import Ports
from onceonly.runtime.metrics.catalog import LOOP_LAG, POOL
from onceonly.runtime.metrics.observer import EndpointLabels, MetricsObserver
from onceonly.runtime.metrics.series import Instrument, SeriesFile, pool_connections, record_lag, series_path
from onceonly.runtime.observe.health_state import HealthObserver, keep_written, write_health
from onceonly.runtime.observe.logs import Logs, log_to_stderr
from onceonly.runtime.observe.observer import Observer, Observers
from onceonly.runtime.observe.outcomes import OutcomeObserver
from onceonly.runtime.processes.child import frozen_start, run_child
from onceonly.runtime.processes.counters import CounterRow
from onceonly.runtime.relay.relay import Relay
from onceonly.runtime.worker.startup import StartupWait
from onceonly.runtime.worker.worker import Runner, side_by_side

CLOSE_SECONDS = 5.0
"""Seconds a child gets on top of its workers' grace time, to close what it has open."""

_log = EventLogger(logging.getLogger("onceonly"))


class ChildPlan(Struct, frozen=True, kw_only=True):
    """What to run, and how: the endpoints' names and everything that the command line says instead of them."""

    names: tuple[str, ...]
    concurrency: int | None = None
    store: str | None = None
    transport: str | None = None
    json_logs: bool = False
    log_level: str = "info"
    health: str | None = None
    debug: bool = False
    freeze: bool = True
    """Whether each process exempts what its start has made from garbage collection."""
    tells: bool = False
    """Whether each process leaves word how it finds its endpoints."""
    measures: bool = False
    """Whether each process counts for `/metrics`, in the file of its number."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The endpoints and the places, as the command line has them."""
        return (*self.names, *UrlOverrides(self.store, self.transport).arguments)

    def load(self) -> list[tuple[Endpoint, Settings]]:
        """Import the endpoints, and give each with its settings. Raises SetupError, also for one without a transport."""
        instead = UrlOverrides(self.store, self.transport)
        loaded = [(endpoint, self._settings(instead.settings(endpoint))) for endpoint in load_all(self.names)]
        for _, settings in loaded:
            _ = settings.required_transport
        return loaded

    def _settings(self, settings: Settings) -> Settings:
        own = settings.worker
        # nothing but handlers uses this process's event loop, and a debugger needs the main thread
        place = "loop" if self.debug or own.def_handlers is None else own.def_handlers
        worker = msgspec.structs.replace(own, concurrency=self.concurrency or own.concurrency, def_handlers=place)
        changed = replace(settings, worker=worker)
        return changed.for_debugger() if self.debug else changed


async def check(loaded: Sequence[tuple[Endpoint, Settings]], stop: asyncio.Event) -> bool:
    """Open and close everything once, without running anything of the user's; waits for servers that are away.

    Gives False when `stop` was set meanwhile. Raises SetupError, which names the place.
    """
    for endpoint, settings in loaded:
        opening = partial(wiring_of, endpoint, settings)
        async with AsyncExitStack() as stack:
            if await StartupWait(stop, endpoint=endpoint.name).enter(stack, opening) is None:
                return False
    return True


def wiring_of(endpoint: Endpoint, settings: Settings, observer: Observer | None = None) -> AbstractAsyncContextManager[Ports]:
    """Open what an endpoint talks to, but nothing of the user's: no lifespan, no providers.

    Raises SetupError, RetryableError.
    """
    host = host_of(endpoint)
    handlers = host.handlers(settings=settings)
    topology = endpoint.topology()
    return wire(
        settings,
        lambda _traits, _blobs: handlers,
        events=topology.events,
        commands=topology.commands,
        entities=host.works_on_entities(),
        responders=bool(host.operations()),
        observer=observer,
    )


def work(index: int, counters_path: str, plan: ChildPlan, told: Iterable[tuple[str, str]]) -> None:
    """Run in a child of the Supervisor, until it is stopped; `told` is what its parent has logged about places."""
    log_to_stderr(json_lines=plan.json_logs, level=plan.log_level)
    TOLD.update(told)
    try:
        loaded = plan.load()

        async def main(stop: asyncio.Event, row: CounterRow) -> None:
            collection = frozen_start() if plan.freeze else nullcontext()
            async with _open_observer(plan, loaded, Path(counters_path).parent, index) as observer, collection:
                # each endpoint starts on its own: none waits for a server that another one needs
                runs = [
                    host_of(endpoint).run(stop, settings=settings, observer=observer, counters=row)
                    for endpoint, settings in loaded
                ]
                await side_by_side(runs)

        run_child(index, counters_path, main, grace=max(settings.worker.grace for _, settings in loaded) + CLOSE_SECONDS)
    except SetupError as error:
        print_error(pasteable(str(error), plan.arguments))
        sys.exit(SETUP)
    except Exception:  # noqa: BLE001 - the supervisor replaces this process; what ended it is for the log
        _log.exception("process failed, exiting")
        sys.exit(1)


@asynccontextmanager
async def _open_observer(
    plan: ChildPlan, loaded: Sequence[tuple[Endpoint, Settings]], folder: Path, index: int
) -> AsyncIterator[Observer]:
    """Return the observer of this process: logs, and with `--health` the state of its endpoints and metrics."""
    if not plan.tells:
        yield Logs()
        return
    health_observer, path = HealthObserver(), health_path(folder, index)
    write_health(health_observer, path)  # before the first tick: what the process before it left is of no worth
    async with AsyncExitStack() as stack:
        _run_in_background(stack, keep_written(health_observer, path))
        if not plan.measures:
            yield health_observer
            return
        series = stack.enter_context(SeriesFile(series_path(folder, index)))
        series.reset_gauges()
        metrics = MetricsObserver(series, [labels_of(endpoint, settings) for endpoint, settings in loaded])
        _run_in_background(
            stack, record_lag(series.instrument(LOOP_LAG), index, partial(_record_pools, series.instrument(POOL)))
        )
        yield Observers(health_observer, OutcomeObserver(metrics), metrics)


def _record_pools(instrument: Instrument) -> None:
    for pool in pool_connections():
        instrument.add((pool.system, pool.state), pool.number)


def _run_in_background(stack: AsyncExitStack, coroutine: Coroutine[object, object, None]) -> None:
    """Run a coroutine until the stack is closed."""
    stack.callback(asyncio.ensure_future(coroutine).cancel)


def labels_of(endpoint: Endpoint, settings: Settings) -> EndpointLabels:
    topology = endpoint.topology()
    return EndpointLabels(
        name=endpoint.name,
        system=messaging_system(settings.places.transport),
        types=frozenset((*topology.events, *topology.commands)),
        store=shown(settings.store),
        has_buckets=settings.store_plan.has_tables and settings.plan.history is not None,
    )


class OpenRunners(NamedTuple):
    """What works on open endpoints: workers and what maintains their stores, and relays."""

    workers: Sequence[Runner]
    relays: Sequence[Runner]


@asynccontextmanager
async def open_runners(
    loaded: Sequence[tuple[Endpoint, Settings]], row: CounterRow, observer: Observer, stop: asyncio.Event
) -> AsyncIterator[OpenRunners]:
    """Open endpoints one after the other, and give what works on each; none of those left when `stop` is set."""
    async with AsyncExitStack() as stack:
        runners: list[Runner] = []
        for endpoint, settings in loaded:
            opening = host_of(endpoint).opened_patiently(stop, settings=settings, observer=observer)
            ports = await stack.enter_async_context(opening)
            if ports is not None:
                runners += host_of(endpoint).runners(ports, settings, counters=row)
        relays = [runner for runner in runners if isinstance(runner, Relay)]
        yield OpenRunners([runner for runner in runners if runner not in relays], relays)
