"""The checks in which time passes.

In those of a ring, slices are forgotten: two janitors rotate buckets at every moment. In the others, time passes by steps:
retention, deadlines, delays and tombstones, by clocks that differ.
"""

from onceonly.model.retry import Retry
from onceonly_verify.check import TWICE, Check
from onceonly_verify.clock import FULL, NEXT, OLD
from onceonly_verify.time_steps import START, STEP, Timing
from onceonly_verify.workload import Behaviour, Client, DeduplicationMode, MessageArrival, Workload, copies
from onceonly_verify.world import Bounds

LATE = copies("a", "a", instant=OLD)
"""Two copies, one of which may come when the slice is forgotten; their sender's clock was behind."""
TWO_AHEAD = copies("b", "b", instant=NEXT)
"""Two copies by a sender whose clock is ahead: their bucket holds the slice before, until it is rotated."""
REFUSING = ("begin", "commit", "send", "forget", "ack", "dead-letter")

ROTATION_CHECKS = {
    "a ring, and copies that come late": Check(
        Workload(LATE, deduplication=DeduplicationMode.RING), Bounds(crashes=1, expiries=1), janitors=2, reaches=REFUSING
    ),
    "a ring, copies that come late, and nothing to send": Check(
        Workload(LATE, deduplication=DeduplicationMode.RING, quiet=True),
        Bounds(crashes=1),
        janitors=2,
        reaches=("begin", "commit", "ack", "dead-letter"),
    ),
    "a ring, and a bucket's next slice": Check(
        Workload(TWO_AHEAD, deduplication=DeduplicationMode.RING), Bounds(crashes=1), janitors=2
    ),
    "a ring, two slices of one bucket": Check(
        Workload((*LATE[:1], *TWO_AHEAD[:1]), deduplication=DeduplicationMode.RING),
        Bounds(crashes=1),
        janitors=2,
        reaches=REFUSING,
    ),
    "a ring, two slices of one bucket, and a failed call": Check(
        Workload((*LATE[:1], *TWO_AHEAD[:1]), deduplication=DeduplicationMode.RING),
        Bounds(failures=1),
        workers=1,
        janitors=1,
        reaches=REFUSING,
    ),
    "a ring, and copies that come late, optimistic store": Check(
        Workload(LATE, deduplication=DeduplicationMode.RING, blocking=False), Bounds(crashes=1), janitors=2, reaches=REFUSING
    ),
    "a ring, and one message of another sender": Check(
        Workload(copies("a", "a"), deduplication=DeduplicationMode.RING), Bounds(crashes=1), janitors=1
    ),
    "a ring, and one message of another sender, optimistic store": Check(
        Workload(copies("a", "a"), deduplication=DeduplicationMode.RING, blocking=False, quiet=True),
        Bounds(crashes=1),
        janitors=1,
        reaches=("begin", "commit", "ack"),
    ),
}


AHEAD = (0, 1)
"""Each run has a clock that is right, or a step ahead: so two clocks differ by a step at most."""
KEYED, OTHER = Client("t", key="k"), Client("u")
WITHOUT_ENTITY = Client("t", key="k", entity="")
ON_ANOTHER = Client("t", key="k", entity="another")
MADE = ("load", "save", "artifact-create", "ack")
FAILING = ("begin", "send", "dead-letter", "ack")
BEHIND = copies("a", "a", instant=START - 1)
"""Two copies; the clock of their sender was behind, so they are in the slice before the first one."""
NEXT_SLICE, AFTER = copies("b", instant=START + 3 * STEP), copies("c", instant=START + 7 * STEP)
"""Messages in the next slices of the same bucket, whose sender's clock may be ahead by a step."""
KEPT_LONG = 9
"""Steps of a retention that does not end in a check."""
BEYOND_MARGIN = 4
"""Steps of a retention that is longer than the clock margin and the difference of two clocks.

What is stored without its retention, and with the margin alone, is deleted before this retention ends.
"""


def _artifact(steps: int) -> Workload:
    """Return a workload of one artifact; the clock of the sweeper is a step ahead of that of the workers."""
    timing = Timing(steps=steps, rest=4, sweeper_skews=(1,), retention=KEPT_LONG)
    return Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, quiet=True, timing=timing)


def _control(client: Client) -> Workload:
    timing = Timing(steps=3, rest=6, skews=AHEAD)
    return Workload(clients=(client,), deduplication=DeduplicationMode.HISTORY, timing=timing)


def _unacknowledged(deduplication: DeduplicationMode, *names: str) -> Workload:
    """Return a workload whose messages come again at any time, also after their retention."""
    timing = Timing(steps=4, forgets=True)
    return Workload(copies(*names), deduplication=deduplication, quiet=True, patient=True, timing=timing)


def _delays(*skews: int) -> Workload:
    """Return a workload whose handler fails until the message is given up: one retry follows at once, two are delayed."""
    retry = Retry(immediate=1, delayed=2, first_delay=STEP / 1000, factor=2, max_delay=7200, jitter=0)
    timing = Timing(steps=1, rest=8, skews=skews, retry_after=(0, 1, 2))
    return Workload(copies("a"), behaviours=(("a", Behaviour.FAILS),), retry=retry, timing=timing)


def _beyond(
    deduplication: DeduplicationMode, *, arrivals: tuple[MessageArrival, ...] = (), clients: tuple[Client, ...] = ()
) -> Workload:
    """Return a workload in which nothing may be forgotten: the clock stops when the retention ends."""
    timing = Timing(steps=BEYOND_MARGIN, per_call=bool(arrivals), skews=AHEAD if arrivals else (0,), retention=BEYOND_MARGIN)
    return Workload(arrivals, clients=clients, deduplication=deduplication, quiet=True, timing=timing)


def _swept(deduplication: DeduplicationMode) -> Workload:
    """Return a workload of tokens; the clock of the sweeper is a step ahead of that of the workers."""
    timing = Timing(steps=1, rest=5, sweeper_skews=(1,), sweep_after=3)
    return Workload(copies("a"), deduplication=deduplication, timing=timing)


def _rotated(*arrivals: MessageArrival, steps: int, forgets: bool = False) -> Workload:
    timing = Timing(steps=steps, rest=4, retention=FULL, forgets=forgets)
    return Workload(arrivals, deduplication=DeduplicationMode.RING, timing=timing)


def _late(deduplication: DeduplicationMode, *names: str) -> Workload:
    """Return a workload whose messages contain their instant, and come again at any time, also after their retention."""
    timing = Timing(steps=4, per_call=True, skews=AHEAD)
    return Workload(copies(*names, instant=START), deduplication=deduplication, quiet=True, timing=timing)


def _changed(
    deduplication: DeduplicationMode,
    *names: str,
    before: int,
    after: int,
    steps: int,
    others: tuple[MessageArrival, ...] = (),
) -> Workload:
    """Return a workload in which an operator changes the retention, at any moment, while copies are on their way.

    `others` have no instant, so they are never too old: history is trimmed when one of them is committed.
    """
    timing = Timing(steps=steps, retention=before, changes=(after,))
    return Workload((*copies(*names, instant=START), *others), deduplication=deduplication, quiet=True, timing=timing)


REFUSED = ("load", "save", "dead-letter", "ack")
TWO_SLICES = _rotated(*BEHIND, *NEXT_SLICE, steps=3)

TIMED_CHECKS = {
    "time, history, two copies and another message": Check(
        Workload(
            copies("a", "a", "b"),
            deduplication=DeduplicationMode.HISTORY,
            timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD),
        ),
        workers=1,
        reaches=("load", "save", "send", "ack"),
    ),
    "time, history, two copies and another message, nothing to send": Check(
        Workload(
            copies("a", "a", "b"),
            deduplication=DeduplicationMode.HISTORY,
            quiet=True,
            timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD),
        ),
        workers=1,
        reaches=("load", "save", "ack"),
    ),
    "time, a dedup store, two copies": Check(
        Workload(
            TWICE,
            deduplication=DeduplicationMode.DEDUP,
            quiet=True,
            timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD),
        ),
        workers=1,
        reaches=("load", "save", "ack"),
    ),
    "time, history, a message that could not be acknowledged and comes again": Check(
        _unacknowledged(DeduplicationMode.HISTORY, "a", "b"),
        Bounds(failures=1),
        workers=1,
        reaches=("load", "save", "ack", "release"),
    ),
    "time, a dedup store, a message that could not be acknowledged and comes again": Check(
        _unacknowledged(DeduplicationMode.DEDUP, "a"), Bounds(failures=1), workers=1, reaches=("load", "save", "ack", "release")
    ),
    "time, history, copies that come late": Check(_late(DeduplicationMode.HISTORY, "a", "a", "b"), workers=1, reaches=REFUSED),
    "time, a dedup store, copies that come late": Check(_late(DeduplicationMode.DEDUP, "a", "a"), workers=1, reaches=REFUSED),
    "time, a dedup store, a late copy of what is pending": Check(
        Workload(copies("a", instant=START), deduplication=DeduplicationMode.DEDUP, timing=Timing(steps=4)),
        Bounds(crashes=1),
        workers=1,
        reaches=("load", "save", "send", "dead-letter", "ack"),
    ),
    "time, a dedup store, two late copies in one batch": Check(
        Workload(
            copies("a", "b", "a", "b", instant=START), deduplication=DeduplicationMode.DEDUP, quiet=True, timing=Timing(steps=4)
        ),
        workers=1,
        batch=2,
        reaches=REFUSED,
    ),
    "time, history, the retention is raised": Check(
        _changed(DeduplicationMode.HISTORY, "a", "a", others=copies("b"), before=1, after=6, steps=4),
        workers=1,
        reaches=REFUSED,
    ),
    "time, history, the retention is lowered": Check(
        _changed(DeduplicationMode.HISTORY, "a", "a", "b", before=6, after=1, steps=5), workers=1, reaches=REFUSED
    ),
    "time, a dedup store, the retention is raised": Check(
        _changed(DeduplicationMode.DEDUP, "a", "a", before=1, after=6, steps=5), workers=1, reaches=REFUSED
    ),
    "time, a dedup store, the retention is lowered": Check(
        _changed(DeduplicationMode.DEDUP, "a", "a", before=6, after=1, steps=5), workers=1, reaches=REFUSED
    ),
    "time, a control message, and a crash": Check(_control(Client("t")), Bounds(crashes=1), workers=1, reaches=("load", "ack")),
    "time, a control message, a key without an entity, and a crash": Check(
        _control(WITHOUT_ENTITY), Bounds(crashes=1), workers=1, reaches=("load", "ack")
    ),
    "time, a deadline, and a run that takes long": Check(
        Workload(
            clients=(WITHOUT_ENTITY,), deduplication=DeduplicationMode.HISTORY, timing=Timing(steps=4, rest=4, per_call=True)
        ),
        workers=1,
        reaches=("load", "ack"),
    ),
    "time, the answer under a client's key": Check(
        Workload(
            clients=(KEYED, KEYED, OTHER),
            deduplication=DeduplicationMode.HISTORY,
            quiet=True,
            timing=Timing(steps=4, forgets=True),
        ),
        workers=0,
    ),
    "time, a dedup store, a retention beyond the margin": Check(
        _beyond(DeduplicationMode.DEDUP, arrivals=TWICE), workers=1, reaches=("load", "save", "ack")
    ),
    "time, a dedup store, a renewed mark, and another body": Check(
        Workload(
            (MessageArrival("a", "a"), MessageArrival("a", "b")),
            deduplication=DeduplicationMode.DEDUP,
            quiet=True,
            timing=Timing(steps=BEYOND_MARGIN - 1, retention=BEYOND_MARGIN),
        ),
        Bounds(crashes=1),
        workers=1,
        reaches=("load", "save", "dead-letter", "ack"),
    ),
    "time, the answer under a client's key, a retention beyond the margin": Check(
        _beyond(DeduplicationMode.HISTORY, clients=(KEYED, KEYED, OTHER)), workers=0
    ),
    "time, the answer under a client's key without an entity, a retention beyond the margin": Check(
        _beyond(DeduplicationMode.HISTORY, clients=(WITHOUT_ENTITY, WITHOUT_ENTITY)), workers=0
    ),
    "time, the answer under a client's key, asked for on another entity": Check(
        _beyond(DeduplicationMode.HISTORY, clients=(KEYED, ON_ANOTHER)), workers=0
    ),
    "time, an artifact, and a crash": Check(_artifact(1), Bounds(crashes=1), workers=1, sweepers=1, reaches=MADE),
    "time, an artifact, and a failed call": Check(_artifact(1), Bounds(failures=1), workers=1, sweepers=1, reaches=MADE),
    "time, a request of another service, late and deleted": Check(
        Workload(asked=("PUT a", "DELETE a", "DELETE b"), timing=Timing(steps=4, per_call=True, skews=(-1, 0))),
        workers=0,
        reaches=(),
    ),
    "time, delays of retries, and a crash": Check(_delays(0), Bounds(crashes=1), workers=1, reaches=FAILING),
    "time, delays of retries, and clocks that differ": Check(_delays(*AHEAD), workers=1, reaches=FAILING),
    "time, tokens and a sweeper, and a crash": Check(
        _swept(DeduplicationMode.TOKENS),
        Bounds(crashes=1),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "token-prepare", "send", "ack"),
    ),
    "time, tokens elsewhere and a sweeper, and a failed call": Check(
        _swept(DeduplicationMode.ELSEWHERE),
        Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=("begin", "commit", "token-prepare", "send", "ack"),
    ),
    "time, a ring, two slices of one bucket, and a crash": Check(
        TWO_SLICES, Bounds(crashes=1), workers=1, janitors=1, reaches=REFUSING
    ),
    "time, a ring, claims without an instant, and a failed call": Check(
        _rotated(*TWICE, steps=4, forgets=True), Bounds(failures=1), workers=1, janitors=1
    ),
}

LONGER_CHECKS = {
    "time, history, two copies and another message, and a crash": Check(
        Workload(
            copies("a", "a", "b"),
            deduplication=DeduplicationMode.HISTORY,
            timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD),
        ),
        Bounds(crashes=1),
        workers=1,
        reaches=("load", "save", "send", "ack"),
    ),
    "time, a dedup store, two copies, and a crash": Check(
        Workload(
            TWICE, deduplication=DeduplicationMode.DEDUP, timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD)
        ),
        Bounds(crashes=1),
        workers=1,
        reaches=("load", "save", "send", "ack"),
    ),
    "time, a deadline, a run that takes long, and a crash": Check(
        Workload(
            clients=(KEYED,),
            deduplication=DeduplicationMode.HISTORY,
            timing=Timing(steps=6, rest=4, per_call=True, skews=AHEAD),
        ),
        Bounds(crashes=1),
        workers=1,
        reaches=("load", "ack"),
    ),
    "time, an artifact, a crash and a failed call": Check(
        _artifact(2), Bounds(crashes=1, failures=1), workers=1, sweepers=1, reaches=MADE
    ),
    "time, delays of retries, clocks that differ, and a crash": Check(
        _delays(*AHEAD), Bounds(crashes=1), workers=1, reaches=FAILING
    ),
    "time, a ring, two slices of one bucket, and a failed call": Check(
        TWO_SLICES, Bounds(failures=1), workers=1, janitors=1, reaches=REFUSING
    ),
    "time, a ring, three slices of one bucket, two janitors": Check(
        _rotated(*BEHIND, *NEXT_SLICE, *AFTER, steps=7), workers=1, janitors=2, reaches=REFUSING
    ),
}
"""Larger worlds with time, for `--deep`."""
