"""The janitor's tasks: what is to be done from time to time, and how often. Each is done in portions.

Every one is correct alone or next to itself in any number of processes: who leads saves work, and guards nothing.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from onceonly.algorithms.relay import relay
from onceonly.algorithms.sweeper import sweep
from onceonly.model.action import ACTIONS_KEPT_MS
from onceonly.model.errors import RetryableError
from onceonly.model.health import ROW_KEPT_SECONDS
from onceonly.model.maintenance_journal import LateBucket
from onceonly.model.wording import counted
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import LetterIndex
from onceonly.ports.environment import Clock
from onceonly.ports.maintenance import Maintenance
from onceonly.ports.ring import Ring, Rotation, TimeBucket, TimeBucketState
from onceonly.ports.store import PendingRecords
from onceonly.runtime.relay.relay import LEASE_SECONDS, RelayScan
from onceonly.runtime.relay.relay import PAGE as RECORDS

PAGE = 1000
"""How much is removed at once; where a whole page was, there is more."""
LATE_PARTS = 4
"""A bucket is late when it could have been rotated for a quarter of its slice's width: two whole ones are to spare."""

ROTATION = "recycling slots"
"""The name of the task that rotates time buckets, as journals store it."""

_ROTATABLE = frozenset({TimeBucketState.OLD, TimeBucketState.UNLABELLED})


class MaintenanceTask(NamedTuple):
    """One task: its name, how many seconds lie between two times, and a portion of it, which returns how much it did.

    One that is `urgent` is done at once when messages wait for it.
    """

    name: str
    every: float
    once: Callable[[], Awaitable[int]]
    urgent: bool = False


def tasks_of(ports: Ports, buckets: "BucketRotation | None", clock: Clock) -> Iterator[MaintenanceTask]:
    """List what is to be done for an endpoint, in the order in which it is done: a record may stand in a bucket's way."""
    maintenance = ports.maintenance
    ring, tokens, artifacts, keys = maintenance.ring, maintenance.tokens, maintenance.artifacts, maintenance.keys
    seldom = maintenance.after / 2

    def old() -> int:
        return clock.now() - round(maintenance.after * 1000)

    if ring is not None and buckets is not None:
        if (pending := ports.pending) is not None:
            yield MaintenanceTask(
                "sending old records", maintenance.interval, lambda: send_old(ports, pending, old()), urgent=True
            )
        yield MaintenanceTask(ROTATION, maintenance.interval, buckets.rotate, urgent=True)
        yield MaintenanceTask("removing expired claims", maintenance.interval, lambda: ring.remove_expired(PAGE))
    if maintenance.letters is not None:
        yield from _letter_tasks(maintenance.letters, maintenance.interval, clock=clock)
    yield from _journal_tasks(maintenance)
    if keys is not None:

        async def remove_keys() -> int:
            kept = max(maintenance.retention, await maintenance.journals.longest_retention() if maintenance.journals else 0)
            return await keys.remove_keys(clock.now() - kept, PAGE)

        yield MaintenanceTask("removing expired keys", maintenance.interval, remove_keys)
    if tokens is not None:
        yield MaintenanceTask("sweeping tokens", seldom, lambda: sweep(tokens, old(), PAGE, ports))
    if artifacts is not None:
        yield MaintenanceTask("sweeping attempts", seldom, lambda: artifacts.sweep(old(), PAGE))
    yield from _forgetting_tasks(maintenance, seldom)
    if maintenance.log is not None:
        yield MaintenanceTask("shrinking the log", maintenance.interval, maintenance.log.shrink_log)


def _forgetting_tasks(maintenance: Maintenance, every: float) -> Iterator[MaintenanceTask]:
    if (marks := maintenance.marks) is not None:
        yield MaintenanceTask("removing expired marks", every, lambda: marks.remove_expired(PAGE))
    if (run_markers := maintenance.run_markers) is not None:
        yield MaintenanceTask("removing abandoned run markers", every, lambda: run_markers.remove_expired(PAGE))
    if (presence := maintenance.presence) is not None:
        yield MaintenanceTask("removing ended processes", every, lambda: presence.remove_unseen(ROW_KEPT_SECONDS))


def _journal_tasks(maintenance: Maintenance) -> Iterator[MaintenanceTask]:
    if (journal := maintenance.message_journal) is not None:
        yield MaintenanceTask("emptying the message journal", min(maintenance.interval, journal.every), journal.rotate)


def _letter_tasks(letters: LetterIndex, every: float, *, clock: Clock) -> Iterator[MaintenanceTask]:
    async def remove_actions() -> int:
        now = clock.now()
        return await letters.actions.expire(now, actions_before=now - ACTIONS_KEPT_MS, limit=PAGE)

    yield MaintenanceTask("removing old actions", every, remove_actions)


async def send_old(ports: Ports, pending: PendingRecords, older_than: int) -> int:
    """Send what no relay has sent for so long, as the relay does, in one look at all of it. Returns how many records are gone.

    A record that stays is skipped. The relay reports why, and so does the bucket that cannot be rotated because of it.
    """
    look, finished = RelayScan(), 0
    lease = round(LEASE_SECONDS * 1000)
    while records := await pending.take(older_than, RECORDS, lease=lease, after=look.behind):
        relayed = await relay(records, ports)
        look.add(records, relayed)
        finished += len(relayed.finished)
        if len(records) < RECORDS:
            break
    return finished


class BucketRotation:
    """The buckets of claims: rotates those that may be, and knows which are late."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.late: tuple[LateBucket, ...] = ()

    async def rotate(self) -> int:
        """Rotate every bucket that holds less than it should. Returns how many. What cannot be now is tried again next time.

        A bucket that fails keeps no other from being rotated. Raises CommitFailed, OutcomeUnknown when one did.
        """
        width = (await self._ring.bucketing()).width
        reasons: dict[int, str] = {}
        rotated = 0
        trouble: RetryableError | None = None
        for bucket in await self._ring.buckets():
            if bucket.state not in _ROTATABLE:
                continue
            try:
                became = await self._rotate(bucket, width)
            except RetryableError as error:
                trouble, reasons[bucket.number] = error, str(error)
            else:
                rotated += became is Rotation.ROTATED
                reasons[bucket.number] = became.value
        self.late = await late_buckets(self._ring, reasons)
        if trouble is not None:
            raise trouble
        return rotated

    async def _rotate(self, bucket: TimeBucket, width: int) -> Rotation:
        became = await self._ring.rotate(bucket.number)
        if became is Rotation.BUSY and bucket.late >= width:  # half of the time to spare is used up
            became = await self._ring.rotate(bucket.number, by_rows=True)
        return became


async def late_buckets(ring: Ring, reasons: Mapping[int, str] = MappingProxyType({})) -> tuple[LateBucket, ...]:
    """Return the buckets that are late, each with whether messages need it now. Raises CommitFailed, OutcomeUnknown."""
    width, buckets, now = (await ring.bucketing()).width, await ring.buckets(), await ring.now()
    late = (bucket for bucket in buckets if bucket.state in _ROTATABLE and bucket.late > width / LATE_PARTS)
    return tuple(
        LateBucket(number=bucket.number, late=bucket.late, reason=_reason(bucket, reasons), stops=bucket.wanted <= now)
        for bucket in late
    )


def _reason(bucket: TimeBucket, reasons: Mapping[int, str]) -> str:
    if bucket.pending:
        return f"{counted(bucket.pending, 'record')} with unsent messages: see the warnings of the relay in the log"
    return reasons.get(bucket.number, "no process ran the task")
