"""The checks of frozen hosts: a process stops at any step of a delivery, its message is delivered elsewhere, and it goes on.

Any process may stop between two calls in every world. Here its lease ends meanwhile, the database may end its transaction, its
run marker may be taken for that of a dead process, and a relay, a control message or the end of its retention may come first.
When it goes on, it has its old state, and the source may ignore its answers or accept them.
"""

from msgspec.structs import replace

from onceonly_verify.check import GIVING_UP, HANDLED, HASTY, Check
from onceonly_verify.clock import FULL
from onceonly_verify.time_steps import Timing
from onceonly_verify.workload import Client, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

HOSTED = Workload(copies("a"), hosted=True, supervised=False)
ON_DOCUMENTS = replace(HOSTED, deduplication=DeduplicationMode.HISTORY)
THAWS = Bounds(expiries=1, rollbacks=1)
DIES = Bounds(crashes=1, expiries=1, rollbacks=1)
SAVED = ("load", "save", "send", "ack")
LISTED = ("load", "save")
GIVEN_UP = replace(HOSTED, retry=HASTY, may_be_given_up=True, may_be_both=True)

FROZEN_CHECKS = {
    "a frozen host that thaws, and its transaction may be over": Check(HOSTED, DIES),
    "a frozen host that thaws, and its transaction may be over, optimistic store": Check(
        replace(HOSTED, blocking=False), THAWS
    ),
    "a frozen host that thaws, and a relay meanwhile": Check(HOSTED, DIES, relays=1),
    "a frozen host that thaws, two messages in a batch": Check(replace(HOSTED, arrivals=copies("a", "b")), THAWS, batch=2),
    "a frozen host that thaws, and was taken for dead": Check(
        HOSTED, Bounds(expiries=2, rollbacks=1, lapses=1), reaches=(*HANDLED, "start-begin", "start-ended")
    ),
    "a frozen host that thaws, and its message was given up": Check(
        GIVEN_UP, Bounds(expiries=2, rollbacks=2, lapses=1), reaches=(*GIVING_UP, "start-begin", "start-ended")
    ),
    "a frozen host that thaws, tokens in the same database": Check(
        replace(HOSTED, deduplication=DeduplicationMode.DATABASE), DIES
    ),
    "a frozen host that thaws, tokens elsewhere, and a sweeper meanwhile": Check(
        replace(HOSTED, deduplication=DeduplicationMode.ELSEWHERE), Bounds(expiries=1, rollbacks=1, sweeps=1), sweepers=1
    ),
    "a frozen host that thaws, tokens, and a sweeper meanwhile": Check(
        replace(HOSTED, deduplication=DeduplicationMode.TOKENS), Bounds(expiries=1, sweeps=1), sweepers=1, reaches=SAVED
    ),
    "a frozen host that thaws, a dedup store": Check(
        replace(HOSTED, deduplication=DeduplicationMode.DEDUP), Bounds(crashes=1, expiries=1), reaches=SAVED
    ),
    "a frozen host that thaws, an entity and its history, and a relay meanwhile": Check(
        replace(ON_DOCUMENTS, hosted_most=2), Bounds(crashes=1, expiries=1), relays=1, reaches=LISTED
    ),
    "a frozen host that thaws, and a control message in tables meanwhile": Check(
        Workload(clients=(Client("t"),), controlled=True, looks=2, hosted=True, supervised=False),
        DIES,
        reaches=("record", "ack"),
    ),
    "a frozen host that thaws, and a control message on documents meanwhile": Check(
        Workload(clients=(Client("t"),), deduplication=DeduplicationMode.HISTORY, looks=2, hosted=True, supervised=False),
        Bounds(crashes=1, expiries=1),
        reaches=("load", "ack"),
    ),
    "time, a frozen host that thaws after the retention, a ring": Check(
        replace(
            HOSTED,
            quiet=True,
            deduplication=DeduplicationMode.RING,
            timing=Timing(steps=3, rest=2, per_call=True, retention=FULL, forgets=True),
        ),
        THAWS,
        janitors=1,
        reaches=("begin", "commit", "ack"),
    ),
    "time, a frozen host that thaws after the retention, an entity and its history": Check(
        replace(ON_DOCUMENTS, quiet=True, timing=Timing(steps=4, per_call=True)),
        Bounds(expiries=1),
        reaches=("load", "save", "ack"),
    ),
}
