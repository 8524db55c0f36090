"""The checks in which the retention of claims in a ring changes: the ring is closed, and another one is used from then on."""

from functools import partial

from onceonly_verify.check import Check
from onceonly_verify.clock import START, WIDTH
from onceonly_verify.workload import DeduplicationMode, MessageArrival, RingChanges, Workload, copies
from onceonly_verify.world import Bounds

FIRST = copies("a", "a", instant=START)
"""Two copies in a slice that the first ring holds from the beginning."""
HANDLED = ("begin", "commit", "ack")
REFUSED = (*HANDLED, "dead-letter")


def _changed(*arrivals: MessageArrival, changes: RingChanges) -> Workload:
    """Return a workload in which an operator changes the retention, at any moment, while copies are on their way."""
    return Workload(arrivals, deduplication=DeduplicationMode.RING, quiet=True, changes=changes)


_check = partial(Check, workers=1, stale=1, janitors=2)
"""A process that knows all changes, one that was started before them, and two janitors."""
RAISED, LOWERED = RingChanges(before=2, after=(4,), steps=6), RingChanges(before=4, after=(2,), steps=6)
RAISED_EARLY, LOWERED_EARLY = RingChanges(before=2, after=(4,), steps=5), RingChanges(before=4, after=(2,), steps=5)
SHARED = RingChanges(before=4, after=(2,), steps=6, is_shared=True)
RAISED_TWICE, BACK = RingChanges(before=2, after=(3, 4), steps=5), RingChanges(before=2, after=(4, 2), steps=3)
AT_THE_END = copies("b", "b", instant=START + 2 * WIDTH)
"""Two copies in the last slice of the first ring, or in the first one after it, while a retention is raised."""
AT_THE_END_OF_LONG = copies("b", "b", instant=START + 4 * WIDTH)
"""The same while it is lowered."""
CHANGED_RINGS = {
    "rings, the retention is raised, late copies": _check(_changed(*FIRST, changes=RAISED), reaches=REFUSED),
    "rings, the retention is raised, copies at the end of a ring": _check(
        _changed(*AT_THE_END, changes=RAISED_EARLY),
        reaches=REFUSED,
    ),
    "rings, the retention is raised twice, late copies": _check(_changed(*FIRST, changes=RAISED_TWICE), reaches=REFUSED),
    "rings, the retention is lowered, late copies": _check(_changed(*FIRST, changes=LOWERED), reaches=REFUSED),
    "rings, the retention is lowered, copies at the end of a ring": _check(
        _changed(*AT_THE_END_OF_LONG, changes=LOWERED_EARLY),
        reaches=HANDLED,
    ),
    "rings, the retention is lowered where the ring is shared, late copies": _check(
        _changed(*FIRST, changes=SHARED), reaches=REFUSED
    ),
    "rings, the retention is raised and lowered again": _check(_changed(*AT_THE_END, changes=BACK), reaches=HANDLED),
    "rings, the retention is lowered, and a crash": _check(
        _changed(*AT_THE_END_OF_LONG[:1], changes=LOWERED_EARLY),
        Bounds(crashes=1),
        reaches=HANDLED,
    ),
    "rings, the retention is lowered, a message to send, and a crash": _check(
        Workload(FIRST[:1], deduplication=DeduplicationMode.RING, changes=LOWERED_EARLY),
        Bounds(crashes=1),
        reaches=(*REFUSED, "send", "forget"),
    ),
    "rings, the retention is lowered, labels behind their truncation": _check(
        _changed(*AT_THE_END_OF_LONG, changes=RingChanges(before=4, after=(2,), steps=4, labels_later=True)),
        reaches=HANDLED,
    ),
    "rings, the retention is raised, labels behind their truncation": _check(
        _changed(*FIRST, changes=RingChanges(before=2, after=(4,), steps=4, labels_later=True)),
        reaches=REFUSED,
    ),
    "rings, the retention is raised, two rings in one batch": _check(
        _changed(*FIRST[:1], *AT_THE_END, changes=RingChanges(before=2, after=(4,), steps=2)),
        batch=2,
        reaches=HANDLED,
    ),
}
