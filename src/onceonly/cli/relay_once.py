"""`onceonly relay --once`: sends what was committed before it started, does the maintenance that is due, and ends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly import open_relay
from onceonly.cli.output import NEGATIVE, say, write
from onceonly.cli.targets import connection_errors
from onceonly.config.endpoint import Settings
from onceonly.formats.undecodable import noting_unreadable
from onceonly.model.errors import OnceOnlyError, RetryableError, SetupError, error_text
from onceonly.model.escaping import escape
from onceonly.model.wording import counted
from onceonly.ports.bundle import RelayPorts
from onceonly.ports.store import PendingRecords
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.runtime.observe.observed_ports import by_relay
from onceonly.runtime.relay.once import RelayReport
from onceonly.runtime.relay.once import relay_once as relay_in_time

MAINTENANCE_SECONDS = 60.0
"""For how long the maintenance of one endpoint may run."""
POLL_SECONDS = 0.25
"""Seconds between two looks at what is too young to be sent."""
MOST_LEFT = 1000
"""What is left is counted up to here."""
SHOWN = 3


class RelayedOnce(Struct, frozen=True):
    """What one round of an endpoint came to. `left` is None if that is not known."""

    endpoint: str
    sent: int = 0
    left: int | None = None
    examples: tuple[str, ...] = ()
    maintained: int = 0
    troubles: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left, of messages and of maintenance."""
        return self.left == 0 and not self.troubles


async def relay_once(found: Sequence[Settings], environment: Environment = LIVE, *, seconds: float = inf) -> int:
    """Do a round for each endpoint, one after the other, and print what is left. Returns the exit code. Raises SetupError.

    After `seconds`, nothing more is sent, and the endpoints whose turn has not come are only counted.
    """
    until = environment.timer.seconds() + seconds
    is_over = True
    for settings in found:
        done = await relay_endpoint_once(settings, environment, seconds=max(0.0, until - environment.timer.seconds()))
        is_over = is_over and done.is_over
        more = "+" if done.left == MOST_LEFT else ""
        left = "unknown" if done.left is None else f"{done.left}{more}"
        write(f"{done.endpoint}: records sent {done.sent}, left {left}; maintained {done.maintained}\n")
        for example in done.examples:
            write(f"  left: {escape(example)}\n")
        for trouble in done.troubles:
            say(f"warning: {done.endpoint}: {trouble}")
    return 0 if is_over else NEGATIVE


async def relay_endpoint_once(settings: Settings, environment: Environment = LIVE, *, seconds: float = inf) -> RelayedOnce:
    """Do one round for an endpoint. Failures of servers are reported in the result. Raises SetupError."""
    done, began = RelayedOnce(settings.name), environment.clock.now() + 1
    try:
        store = connection_errors("store", settings.store, inf)
        async with store, open_relay(settings, connects=False, environment=environment) as ports:
            if (searched := ports.for_relay()) is not None:
                with noting_unreadable() as unreadable:
                    done = await _send_in_time(by_relay(searched), settings, began, seconds=seconds, environment=environment)
                if unreadable:
                    trouble = f"{counted(len(unreadable), 'stored record')} cannot be read, so the messages wait: see the log"
                    done = replace(done, troubles=(*done.troubles, trouble))
            if ports.maintenance.has_tasks:
                janitor = MaintenanceLoop(ports, grace=settings.worker.grace, environment=environment)
                report = await janitor.run_once(MAINTENANCE_SECONDS)
                troubles = (*done.troubles, *report.troubles)
                done = replace(done, maintained=sum(report.tasks.values()), troubles=troubles)
    except SetupError:
        raise
    except OnceOnlyError as error:
        return replace(done, troubles=tuple(dict.fromkeys((*done.troubles, error_text(error)))))
    return done


async def _send_in_time(
    ports: RelayPorts, settings: Settings, began: int, *, seconds: float, environment: Environment
) -> RelayedOnce:
    """Send, unless the broker is away, and not for longer than this. What is left is counted all the same, with the reason."""
    done, reason = RelayedOnce(settings.name), ""
    try:
        async with asyncio.timeout(None if seconds == inf else seconds):
            try:
                await ports.transport.declare(())
            except RetryableError as error:
                trouble = f"cannot reach transport {settings.places.transport}: {error_text(error)}"
                return await _count(ports.pending, replace(done, troubles=(trouble,)), began)
            async for report in _send(ports, settings.relay_after, began, environment):
                done = replace(done, sent=done.sent + report.sent)
                reason = report.reason or reason  # a later look passes over what an earlier one could not send
    except TimeoutError:
        reason = "the time limit was reached"
    done = await _count(ports.pending, done, began)
    return replace(done, troubles=(reason,)) if reason and done.left else done


async def _send(ports: RelayPorts, after: float, began: int, environment: Environment) -> AsyncIterator[RelayReport]:
    """Send what was committed before `began`. What is younger than `after` is left to its process until it is old enough."""
    while True:
        older_than = environment.clock.now() - round(after * 1000)
        yield await relay_in_time(ports, after=after, seconds=inf, environment=environment)
        if older_than >= began or not await ports.pending.undispatched(began, 1):
            return
        await environment.timer.sleep(POLL_SECONDS)


async def _count(pending: PendingRecords, done: RelayedOnce, began: int) -> RelayedOnce:
    left = await pending.undispatched(began, MOST_LEFT)
    sends = [send for record in left[:SHOWN] for send in record.effects[:1]]
    examples = tuple(f"{send.message.type} to {send.to or 'its subscribers'}, {send.message.id}" for send in sends)
    return replace(done, left=len(left), examples=examples)
