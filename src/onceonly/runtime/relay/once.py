"""One look of a relay, within a limit of time: sends what waits, and returns what is left. For timers and schedules."""

from msgspec import Struct

from onceonly.algorithms.relay import relay
from onceonly.model.errors import OnceOnlyError, WrongEventLoop
from onceonly.ports.bundle import RelayPorts
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.relay.relay import LEASE_SECONDS, PAGE, RelayScan

MOST_COUNTED = 1000
"""Records that are left are counted up to here."""


class RelayReport(Struct, frozen=True, kw_only=True):
    """What one look did: `sent` records are gone, and `left` are still there, counted up to 1000.

    `reason` is why some are left. It is empty if none is, or if they are only too young.
    """

    sent: int = 0
    left: int = 0
    reason: str = ""


async def relay_once(ports: RelayPorts, *, after: float, seconds: float, environment: Environment = LIVE) -> RelayReport:
    """Send the records that are older than `after` seconds, for this many seconds. What is begun then is finished.

    Other relays leave what it has taken alone, and it leaves theirs. Raises CommitFailed, OutcomeUnknown if the store does not
    answer at the end; an outage before is the reason in the report.
    """
    timer = environment.timer
    until, look, sent, reason = timer.seconds() + seconds, RelayScan(), 0, ""
    older_than = environment.clock.now() - round(after * 1000)
    try:
        while not reason:
            if timer.seconds() >= until:
                reason = "its time was over"
                break
            most = look.portion
            records = await ports.pending.take(older_than, most, lease=round(LEASE_SECONDS * 1000), after=look.behind)
            relayed = await relay(records, ports)
            look.add(records, relayed)
            look.portion = min(PAGE, 2 * most)
            sent += len(relayed.finished)
            if relayed.unknown or relayed.away:
                reason = "an effect was not confirmed"
            if len(records) < most:
                break
    except WrongEventLoop:
        raise
    except OnceOnlyError as error:
        reason = str(error)
    left = len(await ports.pending.undispatched(environment.clock.now(), MOST_COUNTED))
    if look.refused and not reason:
        reason = f"rejected by the broker: {', '.join(sorted(look.words)[:3])}"
    return RelayReport(sent=sent, left=left, reason=reason if left else "")
