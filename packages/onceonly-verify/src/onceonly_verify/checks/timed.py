"""The checks in which time passes by steps: retention, deadlines, delays and tombstones, by clocks that differ."""

from onceonly.model.retry import Retry
from onceonly_verify.check import TWICE, Check
from onceonly_verify.checks.rotation import REFUSING
from onceonly_verify.clock import FULL
from onceonly_verify.time_steps import START, STEP, Timing
from onceonly_verify.workload import Arrival, Behaviour, Client, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

AHEAD = (0, 1)
"""Each run has a clock that is right, or a step ahead: so two clocks differ by a step at most."""
KEYED, OTHER = Client("t", key="k"), Client("u")
WITHOUT_ENTITY = Client("t", key="k", entity="")
ON_ANOTHER = Client("t", key="k", entity="another")
MADE = ("load", "save", "artifact-create", "ack")
FAILING = ("begin", "send", "dead-letter", "ack")
BEHIND = copies("a", "a", instant=START - 1)
"""Two copies; the clock of their sender was behind, so they are in the slice before the first one."""
NEXT, AFTER = copies("b", instant=START + 3 * STEP), copies("c", instant=START + 7 * STEP)
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
    return Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, quiet=True, timing=timing)


def _control(client: Client) -> Workload:
    timing = Timing(steps=3, rest=6, skews=AHEAD)
    return Workload(arrivals=(), clients=(client,), deduplication=DeduplicationMode.HISTORY, timing=timing)


def _unacknowledged(deduplication: DeduplicationMode, *names: str) -> Workload:
    """Return a workload whose messages come again at any time, also after their retention."""
    timing = Timing(steps=4, forgets=True)
    return Workload(arrivals=copies(*names), deduplication=deduplication, quiet=True, patient=True, timing=timing)


def _delays(*skews: int) -> Workload:
    """Return a workload whose handler fails until the message is given up: one retry follows at once, two are delayed."""
    retry = Retry(immediate=1, delayed=2, first_delay=STEP / 1000, factor=2, max_delay=7200, jitter=0)
    timing = Timing(steps=1, rest=8, skews=skews, retry_after=(0, 1, 2))
    return Workload(arrivals=copies("a"), behaviours=(("a", Behaviour.FAILS),), retry=retry, timing=timing)


def _beyond(
    deduplication: DeduplicationMode, *, arrivals: tuple[Arrival, ...] = (), clients: tuple[Client, ...] = ()
) -> Workload:
    """Return a workload in which nothing may be forgotten: the clock stops when the retention ends."""
    timing = Timing(steps=BEYOND_MARGIN, per_call=bool(arrivals), skews=AHEAD if arrivals else (0,), retention=BEYOND_MARGIN)
    return Workload(arrivals=arrivals, clients=clients, deduplication=deduplication, quiet=True, timing=timing)


def _swept(deduplication: DeduplicationMode) -> Workload:
    """Return a workload of tokens; the clock of the sweeper is a step ahead of that of the workers."""
    timing = Timing(steps=1, rest=5, sweeper_skews=(1,), sweep_after=3)
    return Workload(arrivals=copies("a"), deduplication=deduplication, timing=timing)


def _rotated(*arrivals: Arrival, steps: int, forgets: bool = False) -> Workload:
    timing = Timing(steps=steps, rest=4, retention=FULL, forgets=forgets)
    return Workload(arrivals=arrivals, deduplication=DeduplicationMode.RING, timing=timing)


TWO_SLICES = _rotated(*BEHIND, *NEXT, steps=3)

TIMED_CHECKS: tuple[Check, ...] = (
    Check(
        name="time, history, two copies and another message",
        workload=Workload(
            arrivals=copies("a", "a", "b"),
            deduplication=DeduplicationMode.HISTORY,
            timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD),
        ),
        bounds=Bounds(),
        workers=1,
        reaches=("load", "save", "send", "ack"),
    ),
    Check(
        name="time, history, two copies and another message, nothing to send",
        workload=Workload(
            arrivals=copies("a", "a", "b"),
            deduplication=DeduplicationMode.HISTORY,
            quiet=True,
            timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD),
        ),
        bounds=Bounds(),
        workers=1,
        reaches=("load", "save", "ack"),
    ),
    Check(
        name="time, a dedup store, two copies",
        workload=Workload(
            arrivals=TWICE,
            deduplication=DeduplicationMode.DEDUP,
            quiet=True,
            timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD),
        ),
        bounds=Bounds(),
        workers=1,
        reaches=("load", "save", "ack"),
    ),
    Check(
        name="time, history, a message that could not be acknowledged and comes again",
        workload=_unacknowledged(DeduplicationMode.HISTORY, "a", "b"),
        bounds=Bounds(failures=1),
        workers=1,
        reaches=("load", "save", "ack", "release"),
    ),
    Check(
        name="time, a dedup store, a message that could not be acknowledged and comes again",
        workload=_unacknowledged(DeduplicationMode.DEDUP, "a"),
        bounds=Bounds(failures=1),
        workers=1,
        reaches=("load", "save", "ack", "release"),
    ),
    Check(
        name="time, a control message, and a crash",
        workload=_control(Client("t")),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("load", "ack"),
    ),
    Check(
        name="time, a control message, a key without an entity, and a crash",
        workload=_control(WITHOUT_ENTITY),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("load", "ack"),
    ),
    Check(
        name="time, a deadline, and a run that takes long",
        workload=Workload(
            arrivals=(),
            clients=(WITHOUT_ENTITY,),
            deduplication=DeduplicationMode.HISTORY,
            timing=Timing(steps=4, rest=4, per_call=True),
        ),
        bounds=Bounds(),
        workers=1,
        reaches=("load", "ack"),
    ),
    Check(
        name="time, the answer under a client's key",
        workload=Workload(
            arrivals=(),
            clients=(KEYED, KEYED, OTHER),
            deduplication=DeduplicationMode.HISTORY,
            quiet=True,
            timing=Timing(steps=4, forgets=True),
        ),
        bounds=Bounds(),
        workers=0,
    ),
    Check(
        name="time, a dedup store, a retention beyond the margin",
        workload=_beyond(DeduplicationMode.DEDUP, arrivals=TWICE),
        bounds=Bounds(),
        workers=1,
        reaches=("load", "save", "ack"),
    ),
    Check(
        name="time, a dedup store, a renewed mark, and another body",
        workload=Workload(
            arrivals=(Arrival("a", "a"), Arrival("a", "b")),
            deduplication=DeduplicationMode.DEDUP,
            quiet=True,
            timing=Timing(steps=BEYOND_MARGIN - 1, retention=BEYOND_MARGIN),
        ),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("load", "save", "dead-letter", "ack"),
    ),
    Check(
        name="time, the answer under a client's key, a retention beyond the margin",
        workload=_beyond(DeduplicationMode.HISTORY, clients=(KEYED, KEYED, OTHER)),
        bounds=Bounds(),
        workers=0,
    ),
    Check(
        name="time, the answer under a client's key without an entity, a retention beyond the margin",
        workload=_beyond(DeduplicationMode.HISTORY, clients=(WITHOUT_ENTITY, WITHOUT_ENTITY)),
        bounds=Bounds(),
        workers=0,
    ),
    Check(
        name="time, the answer under a client's key, asked for on another entity",
        workload=_beyond(DeduplicationMode.HISTORY, clients=(KEYED, ON_ANOTHER)),
        bounds=Bounds(),
        workers=0,
    ),
    Check(
        name="time, an artifact, and a crash",
        workload=_artifact(1),
        bounds=Bounds(crashes=1),
        workers=1,
        sweepers=1,
        reaches=MADE,
    ),
    Check(
        name="time, an artifact, and a failed call",
        workload=_artifact(1),
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=MADE,
    ),
    Check(
        name="time, a request of another service, late and deleted",
        workload=Workload(
            arrivals=(), asked=("PUT a", "DELETE a", "DELETE b"), timing=Timing(steps=4, per_call=True, skews=(-1, 0))
        ),
        bounds=Bounds(),
        workers=0,
        reaches=(),
    ),
    Check(
        name="time, delays of retries, and a crash",
        workload=_delays(0),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=FAILING,
    ),
    Check(
        name="time, delays of retries, and clocks that differ",
        workload=_delays(*AHEAD),
        bounds=Bounds(),
        workers=1,
        reaches=FAILING,
    ),
    Check(
        name="time, tokens and a sweeper, and a crash",
        workload=_swept(DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "token-prepare", "send", "ack"),
    ),
    Check(
        name="time, tokens elsewhere and a sweeper, and a failed call",
        workload=_swept(DeduplicationMode.ELSEWHERE),
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=("begin", "commit", "token-prepare", "send", "ack"),
    ),
    Check(
        name="time, a ring, two slices of one bucket, and a crash",
        workload=TWO_SLICES,
        bounds=Bounds(crashes=1),
        workers=1,
        janitors=1,
        reaches=REFUSING,
    ),
    Check(
        name="time, a ring, claims without an instant, and a failed call",
        workload=_rotated(*TWICE, steps=4, forgets=True),
        bounds=Bounds(failures=1),
        workers=1,
        janitors=1,
    ),
)

LONGER_CHECKS: tuple[Check, ...] = (
    Check(
        name="time, history, two copies and another message, and a crash",
        workload=Workload(
            arrivals=copies("a", "a", "b"),
            deduplication=DeduplicationMode.HISTORY,
            timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD),
        ),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("load", "save", "send", "ack"),
    ),
    Check(
        name="time, a dedup store, two copies, and a crash",
        workload=Workload(
            arrivals=TWICE,
            deduplication=DeduplicationMode.DEDUP,
            timing=Timing(steps=4, per_call=True, forgets=True, skews=AHEAD),
        ),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("load", "save", "send", "ack"),
    ),
    Check(
        name="time, a deadline, a run that takes long, and a crash",
        workload=Workload(
            arrivals=(),
            clients=(KEYED,),
            deduplication=DeduplicationMode.HISTORY,
            timing=Timing(steps=6, rest=4, per_call=True, skews=AHEAD),
        ),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("load", "ack"),
    ),
    Check(
        name="time, an artifact, a crash and a failed call",
        workload=_artifact(2),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        sweepers=1,
        reaches=MADE,
    ),
    Check(
        name="time, delays of retries, clocks that differ, and a crash",
        workload=_delays(*AHEAD),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=FAILING,
    ),
    Check(
        name="time, a ring, two slices of one bucket, and a failed call",
        workload=TWO_SLICES,
        bounds=Bounds(failures=1),
        workers=1,
        janitors=1,
        reaches=REFUSING,
    ),
    Check(
        name="time, a ring, three slices of one bucket, two janitors",
        workload=_rotated(*BEHIND, *NEXT, *AFTER, steps=7),
        bounds=Bounds(),
        workers=1,
        janitors=2,
        reaches=REFUSING,
    ),
)
"""Larger worlds with time, for `--deep`."""
