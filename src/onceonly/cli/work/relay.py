"""What `onceonly relay` does."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from onceonly.assembly import open_finishing, require_records
from onceonly.cli.health import HealthSource, address_of
from onceonly.cli.loading import load_all
from onceonly.cli.options import LogFormat, LogLevel
from onceonly.cli.places import UrlOverrides
from onceonly.config.endpoint import Settings
from onceonly.endpoint.host import instruments_of
from onceonly.formats.log_events import EventLogger
from onceonly.model.address import Address
from onceonly.model.health import Pulse
from onceonly.ports.transport import Transport
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.health_state import HealthObserver, NoLogs
from onceonly.runtime.observe.logs import log_to_stderr
from onceonly.runtime.observe.observer import Point
from onceonly.runtime.observe.telemetry import NO_TASK_SPANS, with_telemetry
from onceonly.runtime.processes.child import run_here
from onceonly.runtime.processes.notifier import Notifier
from onceonly.runtime.relay.relay import Relay
from onceonly.runtime.worker.startup import StartupWait
from onceonly.runtime.worker.worker import side_by_side

POLL_SECONDS = 5.0
"""Seconds between two looks whether the broker is there."""

_log = EventLogger(logging.getLogger("onceonly.relay"))


def relay(
    endpoints: list[str],
    *,
    log_format: LogFormat,
    log_level: LogLevel,
    health: str | None,
    store: str | None,
    transport: str | None,
) -> None:
    """Send messages that were committed and not sent, until SIGTERM or Ctrl-C. Runs no handlers."""
    log_to_stderr(json_lines=log_format is LogFormat.JSON, level=log_level)
    instead = UrlOverrides(store, transport)
    found = [instead.settings(endpoint) for endpoint in load_all(endpoints)]
    for settings in found:
        require_records(settings)
    address = address_of(health, ())
    run_here(lambda stop: _relay_all(found, stop, address))


async def _relay_all(found: Sequence[Settings], stop: asyncio.Event, address: Address | None) -> None:
    """Relay for all of them; none waits for a server that another one needs."""
    health_observer = HealthObserver(NoLogs(), first=Point.TAKE) if address is not None else None
    pulse = Pulse(process=0, pid=os.getpid(), runs=True)  # whoever is answered sees that its event loop turns
    told = health_observer.endpoints if health_observer is not None else tuple
    desk = HealthSource([settings.name for settings in found], lambda: (pulse,), lambda _process: told())
    desk.stopping = stop.is_set
    async with desk.open(address):
        await side_by_side([_relay(settings, stop, health_observer) for settings in found])


async def _relay(settings: Settings, stop: asyncio.Event, health_observer: HealthObserver | None) -> None:
    async with AsyncExitStack() as stack:
        patience = StartupWait(stop, endpoint=settings.name)
        instruments = None if settings.telemetry is None else instruments_of(settings)
        observer = with_telemetry(instruments, health_observer)
        ports = await patience.enter(stack, partial(open_finishing, settings, observer=observer))
        if ports is None:
            return
        if health_observer is not None:
            await stack.enter_async_context(_looked_at(ports.transport))
        spans = instruments or NO_TASK_SPANS
        relay = Relay(ports, after=settings.relay_after, grace=settings.worker.grace, notifier=Notifier(), spans=spans)
        _log.info("relay started", extra={"endpoint": settings.name})
        await relay.run(stop)
    _log.info("relay stopped", extra={"endpoint": settings.name})


@asynccontextmanager
async def _looked_at(transport: Transport) -> AsyncIterator[None]:
    """Check now and then whether the broker answers, for probes: a relay with nothing to send would not notice."""

    async def look() -> None:
        while True:
            await LIVE.timer.sleep(POLL_SECONDS)
            with suppress(Exception):  # whoever observes it knows
                await transport.declare(())

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
