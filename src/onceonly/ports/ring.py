"""Ring: what maintenance sees of the claims of a database. Endpoints and processes share one; each may keep it in order.

Nothing here is needed for safety: a bucket that is not rotated makes its messages wait, and nothing else. A bucket is rotated
by one call, at any moment, next to units that claim and next to other calls. A call that cannot rotate changes nothing, and
returns why.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

from msgspec import Struct

from onceonly.model.ring import Bucketing


class TimeBucketState(Enum):
    """What a bucket holds."""

    CURRENT = "the slice that it should"
    OLD = "an older slice, all of which may be forgotten"
    UNLABELLED = "no slice: it was never used, or its rotation was interrupted"
    AHEAD = "a newer slice than it should: the database's clock was set back"


class TimeBucket(Struct, frozen=True, kw_only=True):
    """One bucket as it was when it was looked at. Instants are milliseconds since 1970.

    `start` and `end` bound the slice that it holds, 0 without one. `wanted` is where the slice begins that it should hold now.
    `pending` counts the records of its slice whose effects are not dispatched, at most `PENDING_COUNTED`. While there are any,
    the bucket cannot be rotated. `late` is the number of milliseconds for which it could have been rotated, 0 when it need not
    be. Compare it with the width of a slice.
    """

    number: int
    start: int
    end: int
    wanted: int
    state: TimeBucketState
    pending: int = 0
    late: int = 0


PENDING_COUNTED = 1000


def bucket_as_found(number: int, held: int | None, *, pending: int, bucketing: Bucketing, now: int) -> TimeBucket:
    """Describe a bucket that holds the slice which begins at `held`, None for none, by what the clock says."""
    wanted = bucketing.to_hold(number, held, now)
    if held is None:
        state = TimeBucketState.UNLABELLED
    elif held == wanted:
        state = TimeBucketState.CURRENT
    else:
        state = TimeBucketState.OLD if held < wanted else TimeBucketState.AHEAD
    ripe = bucketing.opens(wanted)  # when it began to be wanted
    return TimeBucket(
        number=number,
        start=held or 0,
        end=held + bucketing.width if held is not None else 0,
        wanted=wanted,
        state=state,
        pending=pending,
        late=max(now - ripe, 0) if state in (TimeBucketState.OLD, TimeBucketState.UNLABELLED) else 0,
    )


class Rotation(Enum):
    """What became of a bucket, for sure."""

    ROTATED = "its claims were deleted, and it has its new slice"
    CURRENT = "it already had this slice"
    HELD = "another process is rotating it"
    EARLY = "by the database clock, its claims must be kept for longer"
    PENDING = "a record of its slice has unsent messages: send them, then retry"
    BUSY = "another transaction uses it"


class Ring(Protocol):
    """The claims of one database. Every call is one atomic effect.

    Raises CommitFailed, OutcomeUnknown; after OutcomeUnknown just call again.
    """

    async def bucketing(self) -> Bucketing:
        """Return how time is cut where the endpoint claims now. It changes with the endpoint's retention alone."""

    async def now(self) -> int:
        """Read the database's clock, milliseconds since 1970: the one that decides what may be forgotten."""

    async def buckets(self) -> Sequence[TimeBucket]:
        """Look at all buckets, in the order of their numbers; locks nothing."""

    async def rotate(self, number: int, *, by_rows: bool = False) -> Rotation:
        """Forget what a bucket holds and label it with the slice that it should hold, both at once; or say why not.

        It waits a tenth of a second for those who use the bucket (a second in MariaDB), and units that want to use it wait
        behind it. With `by_rows` it does not wait for those who only read, such as a backup, and leaves dead rows behind: for
        a bucket that stays BUSY. Some databases ignore it.
        """

    async def remove_expired(self, limit: int = 1000) -> int:
        """Remove some of the claims without an instant that were made longer ago than claims are kept; returns how many.

        `limit` means that there may be more. It does not wait: rows that another process is removing are skipped. A claim
        whose record is not dispatched stays.
        """

    def leading(self) -> AbstractAsyncContextManager[bool]:
        """Enclose the work of the one leader among all processes. Returns whether this is the one, at once.

        It lasts until the end or the loss of a connection of its own, so two may think for a while that they are: that is
        harmless, and only costs time.
        """
