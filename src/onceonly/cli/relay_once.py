"""`onceonly relay --once`: sends what was committed before it started, does the maintenance that is due, and ends."""

from collections.abc import Sequence

from msgspec import Struct

from onceonly.assembly import open_relay
from onceonly.cli.output import NEGATIVE, say, write
from onceonly.cli.targets import connection_errors
from onceonly.config.endpoint import Settings
from onceonly.model.errors import OnceOnlyError, SetupError, error_text
from onceonly.model.escaping import escape
from onceonly.ports.bundle import Ports
from onceonly.ports.store import PendingRecords
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.runtime.maintenance.tasks import send_old

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


async def relay_once(found: Sequence[Settings], environment: Environment = LIVE) -> int:
    """Do a round for each endpoint, one after the other, and print what is left. Returns the exit code. Raises SetupError."""
    rounds = [await relay_endpoint_once(settings, environment) for settings in found]
    for each in rounds:
        more = "+" if each.left == MOST_LEFT else ""
        left = "unknown" if each.left is None else f"{each.left}{more}"
        write(f"{each.endpoint}: records sent {each.sent}, left {left}; maintained {each.maintained}\n")
        for example in each.examples:
            write(f"  left: {escape(example)}\n")
        for trouble in each.troubles:
            say(f"warning: {each.endpoint}: {trouble}")
    return 0 if all(each.is_over for each in rounds) else NEGATIVE


async def relay_endpoint_once(settings: Settings, environment: Environment = LIVE) -> RelayedOnce:
    """Do one round for an endpoint. Failures of servers are reported in the result. Raises SetupError."""
    done = RelayedOnce(settings.name)
    try:
        async with connection_errors("store", settings.store, float("inf")), open_relay(settings) as ports:
            if (pending := ports.pending) is not None:
                done = await _send(ports, pending, settings.relay_after, environment)
            if ports.maintenance.has_tasks:
                janitor = MaintenanceLoop(ports, grace=settings.worker.grace, environment=environment)
                report = await janitor.run_once(MAINTENANCE_SECONDS)
                done = _with(done, maintained=sum(report.tasks.values()), troubles=tuple(report.troubles))
    except SetupError:
        raise
    except OnceOnlyError as error:
        return _with(done, maintained=0, troubles=(error_text(error),))
    return done


async def _send(ports: Ports, pending: PendingRecords, after: float, environment: Environment) -> RelayedOnce:
    """Send what was committed before now. What is younger than `relay_after` is left to its process until it is old enough."""
    clock, timer = environment.clock, environment.timer
    began, sent = clock.now() + 1, 0
    while True:
        older_than = min(began, clock.now() - round(after * 1000))
        sent += await send_old(ports, pending, older_than)
        left = await pending.undispatched(began, MOST_LEFT)
        if not left or older_than == began:
            sends = [send for record in left[:SHOWN] for send in record.effects[:1]]
            examples = tuple(f"{send.message.type} to {send.to or 'its subscribers'}, {send.message.id}" for send in sends)
            return RelayedOnce(ports.endpoint, sent, len(left), examples)
        await timer.sleep(POLL_SECONDS)


def _with(done: RelayedOnce, *, maintained: int, troubles: tuple[str, ...]) -> RelayedOnce:
    return RelayedOnce(done.endpoint, done.sent, done.left, done.examples, maintained, troubles)
