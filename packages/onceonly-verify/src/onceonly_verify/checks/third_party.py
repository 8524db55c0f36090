"""The checks of calls to a service that is not ours, and that recognizes repeated requests by their key."""

from onceonly_verify.check import HASTY, Check
from onceonly_verify.time_steps import Timing
from onceonly_verify.workload import Calls, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

MADE = ("begin", "third-party-call", "commit", "send", "forget", "ack")
GIVING_UP = ("begin", "third-party-call", "commit", "send", "forget", "dead-letter", "ack")
USED, KNOWN = 2, 3
"""The steps for which a key is used, and known: a run may take one step."""


def _timed(*, is_searchable: bool) -> Workload:
    """Return a workload whose service forgets keys while copies are still on their way."""
    return Workload(
        copies("a"),
        calls=Calls(used=USED, known=KNOWN, is_searchable=is_searchable),
        timing=Timing(steps=5, rest=8, retention=9),
        retry=HASTY,
        may_be_given_up=True,
    )


THIRD_PARTY_CHECKS = {
    "a call of a third party, two attempts": Check(Workload(copies("a"), calls=Calls()), Bounds(expiries=1), reaches=MADE),
    "a call of a third party, two copies, and a crash": Check(
        Workload(copies("a", "a"), calls=Calls()), Bounds(crashes=1), reaches=MADE
    ),
    "a call of a third party, two copies, a crash and a failed call": Check(
        Workload(copies("a", "a"), calls=Calls(), quiet=True),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=("begin", "third-party-call", "commit", "ack"),
    ),
    "two calls of a third party in a batch, which is away at every step": Check(
        Workload(copies("a", "b"), calls=Calls(), quiet=True),
        Bounds(silences=3),
        workers=1,
        batch=2,
        patience=30,
        reaches=("begin", "third-party-call", "commit", "ack"),
    ),
    "a call of a third party, records in entities": Check(
        Workload(copies("a", "a"), calls=Calls(), deduplication=DeduplicationMode.HISTORY),
        Bounds(crashes=1),
        reaches=("load", "third-party-call", "save", "send", "ack"),
    ),
    "time, a call of a third party that forgets keys": Check(
        _timed(is_searchable=False), Bounds(crashes=1, failures=1), workers=1, reaches=GIVING_UP
    ),
    "time, a call of a third party that forgets keys and can be asked": Check(
        _timed(is_searchable=True),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=("begin", "third-party-call", "third-party-find", "commit", "send", "forget", "ack"),
    ),
}
