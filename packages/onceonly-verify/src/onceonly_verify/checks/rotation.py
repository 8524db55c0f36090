"""The checks of claims that are forgotten in time: a ring of buckets, rotated at every moment by two janitors."""

from onceonly_verify.check import Check
from onceonly_verify.clock import NEXT, OLD, START
from onceonly_verify.workload import Arrival, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

LATE = copies("a", "a", instant=OLD)
"""Two copies, one of which may come when the slice is forgotten; their sender's clock was behind."""
AHEAD = copies("b", "b", instant=NEXT)
"""Two copies by a sender whose clock is ahead: their bucket holds the slice before, until it is rotated."""
OURS = (Arrival("a", "a", instant=OLD, stated=START - 1), Arrival("a", "a", instant=OLD, stated=0))
"""Two copies of one message; their headers name other buckets than its id, or none."""
FOREIGN = (Arrival("a", "a", stated=START - 1), Arrival("a", "a", stated=START + 1))
"""Two copies of a message whose id contains no instant, with different ones in their headers."""
HANDLED = (Arrival("a", "a", stated=OLD), Arrival("a", "a", stated=OLD))
"""Two copies as an older version sent them."""
REFUSING = ("begin", "commit", "send", "forget", "ack", "dead-letter")

ROTATION_CHECKS: tuple[Check, ...] = (
    Check(
        name="a ring, and copies that come late",
        workload=Workload(arrivals=LATE, deduplication=DeduplicationMode.RING),
        bounds=Bounds(crashes=1, expiries=1),
        janitors=2,
        reaches=REFUSING,
    ),
    Check(
        name="a ring, copies that come late, and nothing to send",
        workload=Workload(arrivals=LATE, deduplication=DeduplicationMode.RING, quiet=True),
        bounds=Bounds(crashes=1),
        janitors=2,
        reaches=("begin", "commit", "ack", "dead-letter"),
    ),
    Check(
        name="a ring, and a bucket's next slice",
        workload=Workload(arrivals=AHEAD, deduplication=DeduplicationMode.RING),
        bounds=Bounds(crashes=1),
        janitors=2,
    ),
    Check(
        name="a ring, two slices of one bucket",
        workload=Workload(arrivals=(*LATE[:1], *AHEAD[:1]), deduplication=DeduplicationMode.RING),
        bounds=Bounds(crashes=1),
        janitors=2,
        reaches=REFUSING,
    ),
    Check(
        name="a ring, two slices of one bucket, and a failed call",
        workload=Workload(arrivals=(*LATE[:1], *AHEAD[:1]), deduplication=DeduplicationMode.RING),
        bounds=Bounds(failures=1),
        workers=1,
        janitors=1,
        reaches=REFUSING,
    ),
    Check(
        name="a ring, and copies that come late, optimistic store",
        workload=Workload(arrivals=LATE, deduplication=DeduplicationMode.RING, blocking=False),
        bounds=Bounds(crashes=1),
        janitors=2,
        reaches=REFUSING,
    ),
    Check(
        name="a ring, and one message with two headers",
        workload=Workload(arrivals=OURS, deduplication=DeduplicationMode.RING),
        bounds=Bounds(crashes=1),
        janitors=1,
        reaches=REFUSING,
    ),
    Check(
        name="a ring, and one message of another sender with two headers",
        workload=Workload(arrivals=FOREIGN, deduplication=DeduplicationMode.RING),
        bounds=Bounds(crashes=1),
        janitors=1,
        reaches=("begin", "commit", "send", "forget", "ack"),
    ),
    Check(
        name="a ring, and one message of another sender with two headers, optimistic store",
        workload=Workload(arrivals=FOREIGN, deduplication=DeduplicationMode.RING, blocking=False, quiet=True),
        bounds=Bounds(crashes=1),
        janitors=1,
        reaches=("begin", "commit", "ack"),
    ),
    Check(
        name="a ring, and what an older version has handled",
        workload=Workload(arrivals=HANDLED, deduplication=DeduplicationMode.RING, handled_before=True),
        bounds=Bounds(crashes=1),
        janitors=1,
        reaches=("begin", "send", "forget", "ack", "dead-letter"),
    ),
)
