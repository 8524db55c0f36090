"""Lists that operators look at: pending records, reservations, and claims as a picture of time. Each is limited."""

from msgspec import Struct

from onceonly.assembly.operations import OpenedOperations
from onceonly.model.artifact import Reservation
from onceonly.model.record import Record
from onceonly.ports.ring import TimeBucket
from onceonly.ports.store import PendingRecords
from onceonly.runtime.maintenance.tasks import LATE_PARTS

MOST = 1000
"""Rows of one list."""
COUNTED = 10_000
"""Records are counted up to this number."""


class Listed(Struct, frozen=True):
    """Rows, the oldest first. `searched` is False where the store cannot be searched, `more` if there are more rows."""

    rows: tuple[Record, ...] | tuple[Reservation, ...] = ()
    searched: bool = True
    more: bool = False


class ClaimsPicture(Struct, frozen=True, kw_only=True):
    """The time buckets of a database. Instants and durations are in milliseconds.

    `retention` is for how long claims are kept at least, `width` how much time a bucket covers, `now` the database's clock.
    `late` are the numbers of the buckets that could have been rotated for a quarter of their width.
    """

    retention: int
    width: int
    now: int
    buckets: tuple[TimeBucket, ...]
    late: tuple[int, ...]


async def list_pending(opened: OpenedOperations, older_than: int) -> Listed:
    """List the records with messages to send that were stored before an instant. Raises CommitFailed, OutcomeUnknown."""
    if opened.pending is None:
        return Listed(searched=False)
    rows = await opened.pending.undispatched(older_than, MOST + 1)
    return Listed(rows[:MOST], more=len(rows) > MOST)


async def list_reservations(opened: OpenedOperations, older_than: int) -> Listed:
    """List the open attempts that began before an instant. Raises CommitFailed, OutcomeUnknown."""
    if opened.register is None:
        return Listed(searched=False)
    rows = await opened.register.old(older_than, MOST + 1)
    return Listed(tuple(rows[:MOST]), more=len(rows) > MOST)


async def picture_claims(opened: OpenedOperations) -> ClaimsPicture | None:
    """Describe the time buckets. None where claims are not in time buckets, or the first message has not come yet.

    Raises SetupError, CommitFailed, OutcomeUnknown.
    """
    if opened.ring is None:
        return None
    bucketing, buckets, now = await opened.ring.bucketing(), await opened.ring.buckets(), await opened.ring.now()
    late = tuple(bucket.number for bucket in buckets if bucket.late > bucketing.width / LATE_PARTS)
    ordered = tuple(sorted(buckets, key=lambda bucket: bucket.start))
    return ClaimsPicture(retention=bucketing.retention, width=bucketing.width, now=now, buckets=ordered, late=late)


async def age_of_oldest(pending: PendingRecords, now: int) -> int:
    """Return the age in seconds of the oldest record, found by halving with about 30 short reads.

    A store lists records, not their times. `now` is in milliseconds since 1970.
    """
    youngest, oldest = 0, now // 1000
    while oldest - youngest > 1:
        middle = (youngest + oldest) // 2
        if await pending.undispatched(now - middle * 1000, 1):
            youngest = middle
        else:
            oldest = middle
    return youngest
