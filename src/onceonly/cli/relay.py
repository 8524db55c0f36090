"""`onceonly relay`: sends what was committed and not sent, without running any handler, until somebody says stop."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated

import typer

from onceonly.cli.loading import load_all
from onceonly.cli.places import Instead, StoreOption, TransportOption
from onceonly.cli.run import LogFormat
from onceonly.runtime.child import run_here
from onceonly.runtime.doorbell import Doorbell
from onceonly.runtime.logs import log_to_stderr
from onceonly.runtime.relay import Relay
from onceonly.runtime.start import Patience
from onceonly.runtime.worker import side_by_side
from onceonly.wiring import open_finishing, require_records
from onceonly.wiring.settings import Settings

_log = logging.getLogger("onceonly.relay")


def relay(
    endpoints: Annotated[
        list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Whose messages to send, such as shop:shop.")
    ],
    *,
    log_format: Annotated[LogFormat, typer.Option(help="Log lines for people, or for programs.")] = LogFormat.TEXT,
    store: StoreOption = None,
    transport: TransportOption = None,
) -> None:
    """Send what was committed and not sent, until SIGTERM or Ctrl-C: then what is in work is finished. Runs no handler.

    For what is committed by processes in which the endpoint does not run; `onceonly run` has it inside. Any number of relays
    share the work, so for more of them give this command more often. A server that is away is waited for, at start and later;
    messages wait in the store meanwhile. Exit code 2 when the set-up is wrong.
    """
    log_to_stderr(json_lines=log_format is LogFormat.JSON)
    instead = Instead(store, transport)
    found = [instead.settings(endpoint) for endpoint in load_all(endpoints)]
    for settings in found:
        require_records(settings)
    run_here(lambda stop: _relay_all(found, stop))


async def _relay_all(found: Sequence[Settings], stop: asyncio.Event) -> None:
    """Relay for all of them; none waits for a server that another one needs."""
    await side_by_side([_relay(settings, stop) for settings in found])


async def _relay(settings: Settings, stop: asyncio.Event) -> None:
    async with AsyncExitStack() as stack:
        patience = Patience(stop, endpoint=settings.name)
        ports = await patience.enter(stack, partial(open_finishing, settings))
        if ports is None:
            return
        relay = Relay(ports, after=settings.relay_after, grace=settings.worker.grace, doorbell=Doorbell())
        _log.info("relay started", extra={"endpoint": settings.name})
        await relay.run(stop)
    _log.info("relay stopped", extra={"endpoint": settings.name})
