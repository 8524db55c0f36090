"""`onceonly relay`: sends committed messages and maintains the store without running handlers, until it is stopped."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from onceonly.cli.commands import HealthOption, LogFormat, LogLevel, LogLevelOption, StoreOption, TransportOption
from onceonly.cli.output import SETUP, refuse

if TYPE_CHECKING:
    import asyncio

    from onceonly.config.endpoint import Settings
    from onceonly.ports.transport import Transport
    from onceonly.runtime.environment import Environment
    from onceonly.runtime.observe.health_state import HealthObserver
    from onceonly.systems.urls import Address

POLL_SECONDS = 5.0
"""Seconds between two checks whether the broker answers."""


def relay(  # noqa: PLR0913 - one parameter for each option
    endpoints: Annotated[
        list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints whose messages to send, such as shop:shop.")
    ],
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Send what waits, do the maintenance that is due, and exit: for a schedule.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(min=0, help="With --once, seconds after which nothing more is sent [default: none].")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Log as text, or as one JSON object for each line.")] = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    health: HealthOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
) -> None:
    """Send messages that were committed and not sent, until SIGTERM or Ctrl-C. Runs no handlers.

    Use it if messages are committed by processes in which the endpoint does not run. `onceonly run` includes it. Several relays
    share the work: to add one, start this command again. It does the maintenance of `onceonly janitor` as well, unless an
    endpoint has `janitor=False`.

    If a server is unreachable, the relay retries until it answers. With --health, GET /live and /ready report its state. The
    `health=` of endpoints is ignored. Exits with code 2 if the configuration is wrong.

    With --once, it sends what was committed before it started, and waits for records younger than `relay_after` until they are
    sent or old enough. Then it exits with code 0, or with code 1 if something is left or a server does not answer. It prints
    what is left and why. If only the broker is unreachable, it counts what waits in the store.
    """
    from onceonly.assembly import require_records
    from onceonly.cli.health import address_of
    from onceonly.cli.targets import UrlOverrides, load_all
    from onceonly.runtime.observe.logs import log_to_stderr
    from onceonly.runtime.processes.child import run_here

    if time_limit is not None and not once:
        refuse("--time-limit needs --once", SETUP)
    log_to_stderr(json_lines=log_format is LogFormat.JSON, level=log_level)
    instead = UrlOverrides(store, transport)
    found = [instead.settings(endpoint) for endpoint in load_all(endpoints)]
    for settings in found:
        require_records(settings)
    if once:
        import asyncio

        from onceonly.cli.relay_once import relay_once

        raise typer.Exit(asyncio.run(relay_once(found, seconds=float("inf") if time_limit is None else time_limit)))
    address = address_of(health, ())
    run_here(lambda stop: _relay_all(found, stop, address))


async def _relay_all(found: "Sequence[Settings]", stop: "asyncio.Event", address: "Address | None") -> None:
    """Relay for all of them. None of them waits for a server that another one needs."""
    from onceonly.cli.health import HealthSource
    from onceonly.model.health import Pulse
    from onceonly.runtime.observe.health_state import HealthObserver, NoLogs
    from onceonly.runtime.observe.observer import Point
    from onceonly.runtime.worker.worker import side_by_side

    health_observer = HealthObserver(NoLogs(), first=Point.TAKE) if address is not None else None
    pulse = Pulse(process=0, pid=os.getpid(), runs=True)  # an answer shows that its event loop runs
    health_of = health_observer.endpoints if health_observer is not None else tuple
    source = HealthSource([settings.name for settings in found], lambda: (pulse,), lambda _process: health_of())
    source.stopping = stop.is_set
    async with source.open(address):
        await side_by_side([_relay(settings, stop, health_observer) for settings in found])


async def _relay(
    settings: "Settings",
    stop: "asyncio.Event",
    health_observer: "HealthObserver | None",
    environment: "Environment | None" = None,
) -> None:
    """Relay for one endpoint, and maintain it, or notice that no process does."""
    import logging

    from onceonly.assembly import open_relay
    from onceonly.endpoint.host import instruments_of
    from onceonly.formats.log_events import EventLogger
    from onceonly.runtime.environment import LIVE
    from onceonly.runtime.maintenance.loop import MaintenanceLoop
    from onceonly.runtime.observe.observed_ports import by_relay
    from onceonly.runtime.observe.telemetry import NO_TASK_SPANS, with_telemetry
    from onceonly.runtime.processes.notifier import Notifier
    from onceonly.runtime.relay.relay import Relay
    from onceonly.runtime.worker.startup import StartupWait
    from onceonly.runtime.worker.worker import Runner, run_all

    log = EventLogger(logging.getLogger("onceonly.relay"))
    environment = environment or LIVE
    grace = settings.worker.grace
    async with AsyncExitStack() as stack:
        wait = StartupWait(stop, endpoint=settings.name, environment=environment)
        instruments = None if settings.telemetry is None else instruments_of(settings)
        observer = with_telemetry(instruments, health_observer)
        ports = await wait.enter(stack, partial(open_relay, settings, environment=environment, observer=observer))
        if ports is None or (searched := ports.for_relay()) is None:
            return
        if health_observer is not None:
            await stack.enter_async_context(_poll_broker(ports.transport))
        spans = instruments or NO_TASK_SPANS
        after, notifier = settings.relay_after, Notifier()
        relay = Relay(by_relay(searched), after=after, grace=grace, notifier=notifier, environment=environment, spans=spans)
        runners: list[Runner] = [relay]
        if ports.maintenance.has_tasks:
            runners.append(MaintenanceLoop(ports, grace=grace, environment=environment, spans=spans))
        log.info("relay started", extra={"endpoint": settings.name})
        await run_all(runners, stop)
    log.info("relay stopped", extra={"endpoint": settings.name})


@asynccontextmanager
async def _poll_broker(transport: "Transport") -> AsyncIterator[None]:
    """Check every 5 seconds whether the broker answers, for probes: a relay with nothing to send would not notice."""
    import asyncio

    from onceonly.runtime.environment import LIVE

    async def poll() -> None:
        while True:
            await LIVE.timer.sleep(POLL_SECONDS)
            with suppress(Exception):  # the transport is observed
                await transport.declare(())

    polling = asyncio.create_task(poll())
    try:
        yield
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
