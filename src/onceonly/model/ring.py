"""The ring: claims of messages that know their instant, put into buckets by it, and forgotten a whole bucket at a time.

Time is cut into slices of one width. A bucket holds one slice, and its *label* says which: a key of its own, the lowest there.
Buckets are used in turn, so the next slice of a bucket comes when its old one is long over. Arithmetic only.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

from onceonly.model.identity import Identity, claim_key
from onceonly.model.wording import FOREVER_MS

ANYWAY = "onceonlyanyway"
"""The extension attribute of a message that a person retried although its store could not determine whether it was handled.

It changes where a message is claimed only when its store would refuse it.
"""
TIME_BUCKETS = 12
"""Into how many time buckets (slices) a retention is divided: the only constant for it."""
BUCKETS = TIME_BUCKETS + 4
"""The buckets of the retention in full, one that is under way, one for clocks that differ, and two to spare."""

LATEST = (1 << 48) - 1
"""The latest instant that a key can have."""
WIDEST = (LATEST + 1) // BUCKETS
"""The width with which the buckets together hold all instants that a key can have. So none is ever rotated."""

_INSTANT_BYTES, _HASH_BYTES = 6, 10


class Undecidable(Enum):
    """Why a store cannot decide whether a message was handled before, and so does not have it handled now."""

    TOO_OLD = "behind the horizon: it is older than the stored history, so it may have been handled already"
    TOO_NEW = "from the future: its time is too far ahead of the database clock to store that it was handled"
    SLOT_NOT_READY = "its time bucket has not been rotated yet"


class Bucketing(NamedTuple):
    """How time is cut: the width of a slice in milliseconds, how many buckets there are, and how many of them are kept full.

    A ring is closed when its endpoints get another retention. Then `closes` is the end of its last slice, 0 before: messages
    with a later instant are claimed in another ring. `keep` is for how many milliseconds its last slices are kept, 0 for as
    long as the width says.
    """

    width: int
    buckets: int = BUCKETS
    full: int = TIME_BUCKETS
    keep: int = 0
    closes: int = 0

    @property
    def retention(self) -> int:
        """For how many milliseconds a claim is kept at least, after its slice has ended."""
        return self.keep or (FOREVER_MS if self.width >= WIDEST else self.width * self.full)

    def start(self, instant: int) -> int:
        """Return the beginning of the slice that an instant is in; it ends one width later."""
        return instant - instant % self.width

    def bucket(self, instant: int) -> int:
        """Return the number of the bucket for an instant."""
        return instant // self.width % self.buckets

    def wanted(self, number: int, now: int) -> int:
        """Return the beginning of the slice that a bucket should hold now: the latest one whose predecessor has expired."""
        last = now // self.width + self.buckets - self.full - 1
        wanted = last - (last - number) % self.buckets
        if wanted < 0 and self.width >= WIDEST:  # all time is in these buckets
            wanted += self.buckets
        return wanted * self.width

    def to_hold(self, number: int, held: int | None, now: int) -> int:
        """Return the label that a bucket shall have now, whose label is `held`, None for nothing.

        In a ring that is closed, a bucket keeps its last slice for as long as `keep` says. Then it gets the label of a later
        slice that belongs to another bucket, so that a message of its last one is behind the horizon. It must not get the label
        of its own next slice: a process that has not read the change would claim in it.
        """
        wanted = self.wanted(number, now)
        if not self.closes:
            return wanted
        last = self._last(number)
        if held is not None and held > last:
            return held
        if held != last and wanted < last:
            return wanted
        return last + (self.buckets + 1) * self.width if self.may_forget(last, now) else last

    def closed(self, held: Iterable[int], since: int, now: int, keep: int) -> "Bucketing":
        """Return what becomes of this ring when it is closed, whose buckets have these labels and which is used from `since`.

        It ends with the last slice that a bucket holds, or that a message may be in which is sent now.
        """
        end = max(*held, self.start(now), self.start(since)) + self.width
        return self._replace(closes=end, keep=keep)

    def kept_for(self, keep: int) -> "Bucketing":
        """Return what becomes of a ring that was closed before, when the retention of its endpoint is raised to `keep`."""
        return self if self.retention >= keep else self._replace(keep=keep)

    def _last(self, number: int) -> int:
        """Return the beginning of the last slice of a bucket, in a ring that is closed."""
        last = self.closes // self.width - 1
        return (last - (last - number) % self.buckets) * self.width

    def _is_last(self, start: int) -> bool:
        return 0 < self.closes <= start + self.buckets * self.width

    def opens(self, instant: int) -> int:
        """Return from when on a bucket may hold the slice of an instant; what comes before that is from the future."""
        return self.start(instant) - (self.buckets - self.full - 1) * self.width

    def may_forget(self, start: int, now: int) -> bool:
        """Return whether the slice that begins at `start` ended as long ago as claims are kept."""
        kept = self.keep if self.keep and self._is_last(start) else self._replace(keep=0).retention
        return start + self.width + kept <= now

    def undecidable_reason(self, instant: int, held: int | None, now: int) -> Undecidable | None:
        """Return what is the matter with an instant whose bucket holds the slice that begins at `held`, None for nothing yet.

        None: the bucket holds its slice.
        """
        start = self.start(instant)
        if held == start:
            return None
        if held is not None and held > start:
            return Undecidable.TOO_OLD
        return Undecidable.SLOT_NOT_READY if start <= self.wanted(self.bucket(instant), now) else Undecidable.TOO_NEW


class Begins(Protocol):
    """What holds for messages from an instant on."""

    @property
    def since(self) -> int:
        """Return that instant, in milliseconds since 1970."""


_Route = TypeVar("_Route", bound=Begins)


def route_at(routes: Sequence[_Route], instant: int) -> _Route:
    """Return which of these routes, in the order of their instants, holds for a message; the first one is for all before."""
    return next((route for route in reversed(routes) if route.since <= instant), routes[0])


def bucketing_for(retention: int) -> Bucketing:
    """Cut time so that claims are kept for `retention` milliseconds at least."""
    return Bucketing(min(-(-retention // TIME_BUCKETS), WIDEST))


def width_of(held: Sequence[int | None]) -> int | None:
    """Return the width of slices that buckets with these labels hold, by bucket. None if they do not show exactly one.

    Buckets that follow each other hold slices that follow each other, except where the ring begins anew or one is late.
    """
    starts = sorted(start for start in held if start is not None)
    widths = {later - sooner for sooner, later in pairwise(starts)}
    fitting = [
        width
        for width in widths
        if width > 0
        and all(
            start % width == 0 and Bucketing(width).bucket(start) == number
            for number, start in enumerate(held)
            if start is not None
        )
    ]
    return fitting[0] if len(fitting) == 1 else None


def label(start: int) -> bytes:
    """Return the key that says which slice a bucket holds: no message's key is equal, none in the slice is lower."""
    return start.to_bytes(_INSTANT_BYTES, "big") + bytes(_HASH_BYTES)


def ring_key(endpoint: str, identity: Identity, instant: int) -> bytes:
    """Return the 16 bytes under which `endpoint` claims a message of this instant: in the order of the instants."""
    digest = blake2b(claim_key(endpoint, identity), digest_size=_HASH_BYTES).digest()
    return instant.to_bytes(_INSTANT_BYTES, "big") + (digest if any(digest) else b"\1" * _HASH_BYTES)


def instant_of(key: bytes) -> int:
    """Return the instant in a claim's key, or the beginning of the slice in a label."""
    return int.from_bytes(key[:_INSTANT_BYTES], "big")
