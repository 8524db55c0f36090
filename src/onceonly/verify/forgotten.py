"""The checks of claims that are forgotten in time: a ring of slots, recycled at every moment by two janitors."""

from onceonly.verify.check import Check
from onceonly.verify.passing import NEXT, OLD
from onceonly.verify.workload import Keeping, Workload, copies
from onceonly.verify.world import Bounds

LATE = copies("a", "a", instant=OLD)
"""Two copies, one of which may come when the slice is forgotten; their sender's clock was behind."""
AHEAD = copies("b", "b", instant=NEXT)
"""Two copies by a sender whose clock is ahead: their slot holds the slice before, until it is recycled."""
REFUSING = ("begin", "commit", "send", "forget", "ack", "dead-letter")

FORGOTTEN: tuple[Check, ...] = (
    Check(
        name="a ring, and copies that come late",
        workload=Workload(arrivals=LATE, keeping=Keeping.RING),
        bounds=Bounds(crashes=1, expiries=1),
        janitors=2,
        reaches=REFUSING,
    ),
    Check(
        name="a ring, copies that come late, and nothing to send",
        workload=Workload(arrivals=LATE, keeping=Keeping.RING, quiet=True),
        bounds=Bounds(crashes=1),
        janitors=2,
        reaches=("begin", "commit", "ack", "dead-letter"),
    ),
    Check(
        name="a ring, and a slot's next slice",
        workload=Workload(arrivals=AHEAD, keeping=Keeping.RING),
        bounds=Bounds(crashes=1),
        janitors=2,
    ),
    Check(
        name="a ring, two slices of one slot",
        workload=Workload(arrivals=(*LATE[:1], *AHEAD[:1]), keeping=Keeping.RING),
        bounds=Bounds(crashes=1),
        janitors=2,
        reaches=REFUSING,
    ),
    Check(
        name="a ring, two slices of one slot, and a failed call",
        workload=Workload(arrivals=(*LATE[:1], *AHEAD[:1]), keeping=Keeping.RING),
        bounds=Bounds(failures=1),
        workers=1,
        janitors=1,
        reaches=REFUSING,
    ),
    Check(
        name="a ring, and copies that come late, optimistic store",
        workload=Workload(arrivals=LATE, keeping=Keeping.RING, blocking=False),
        bounds=Bounds(crashes=1),
        janitors=2,
        reaches=REFUSING,
    ),
)
