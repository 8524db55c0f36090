"""The checks of hosted delivery: a host receives, acknowledges late or never, redelivers at any moment, and gives up."""

from onceonly_verify.check import CHAIN, GIVING_UP, HANDLED, HASTY, IMPATIENT, TWICE, Check
from onceonly_verify.workload import NOWHERE, Behaviour, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

HOSTED_CHECKS = {
    "a host, one message": Check(
        Workload(copies("a"), hosted=True, supervised=False), Bounds(crashes=1, expiries=1, failures=1)
    ),
    "a host, two copies, a crash, and a lease that ends early": Check(
        Workload(TWICE, hosted=True, supervised=False), Bounds(crashes=1, expiries=1)
    ),
    "a host, two copies, optimistic store, and a failed call": Check(
        Workload(TWICE, hosted=True, supervised=False, blocking=False), Bounds(failures=1)
    ),
    "a host whose time ends while it redelivers": Check(
        Workload(TWICE, hosted=True, supervised=False), Bounds(expiries=1, cuts=1)
    ),
    "a host whose time ends, and every kind of fault": Check(
        Workload(copies("a"), hosted=True, supervised=False), Bounds(crashes=1, expiries=1, failures=1, cuts=1)
    ),
    "a host, two messages in a batch, one is unsteady, and its time ends": Check(
        Workload(copies("a", "b"), hosted=True, supervised=False, behaviours=(("b", Behaviour.UNSTEADY),)),
        Bounds(whims=1, cuts=1),
        workers=1,
        batch=2,
    ),
    "a host, a handler that fails": Check(
        Workload(copies("a"), hosted=True, supervised=False, behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=("begin", "dead-letter", "ack", "release"),
    ),
    "a host that redelivers to the same process, an unsteady handler": Check(
        Workload(copies("a"), hosted=True, hosted_again=True, supervised=False, behaviours=(("a", Behaviour.UNSTEADY),)),
        Bounds(failures=1, whims=2),
        workers=1,
        reaches=(*HANDLED, "release"),
    ),
    "a host, a message that kills its process": Check(
        Workload(copies("a"), hosted=True, supervised=False, behaviours=(("a", Behaviour.KILLS),), retry=IMPATIENT),
        Bounds(expiries=1),
        reaches=("begin", "dead-letter", "ack", "start-begin"),
    ),
    "a host, a message that kills its process next to one that does not": Check(
        Workload(copies("a", "b"), hosted=True, supervised=False, behaviours=(("b", Behaviour.KILLS),), retry=HASTY),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    "a host that gives up, and a relay": Check(
        Workload(copies("a"), hosted=True, hosted_most=2, supervised=False),
        Bounds(crashes=2),
        relays=1,
        reaches=("begin", "commit"),
    ),
    "a host, two copies, and every kind of fault": Check(
        Workload(TWICE, hosted=True, supervised=False), Bounds(crashes=1, expiries=1, failures=1)
    ),
    "a host that redelivers to the same process, and its time ends": Check(
        Workload(copies("a"), hosted=True, hosted_again=True, supervised=False, behaviours=(("a", Behaviour.UNSTEADY),)),
        Bounds(crashes=1, expiries=1, whims=1, cuts=1),
    ),
    "a host, two messages in a batch, and its time ends": Check(
        Workload(copies("a", "b"), hosted=True, supervised=False), Bounds(crashes=1, cuts=1), batch=2
    ),
    "a host, a handler that fails while the host redelivers": Check(
        Workload(
            copies("a"),
            hosted=True,
            supervised=False,
            behaviours=(("a", Behaviour.FAILS),),
            retry=IMPATIENT,
            may_be_both=True,
        ),
        Bounds(crashes=1, expiries=1, failures=1),
        reaches=("begin", "dead-letter", "ack", "release"),
    ),
    "a host, a message that kills its process, and a crash": Check(
        Workload(copies("a"), hosted=True, supervised=False, behaviours=(("a", Behaviour.KILLS),), retry=IMPATIENT),
        Bounds(crashes=1, expiries=1),
        patience=20,
        reaches=("begin", "dead-letter", "ack", "start-begin"),
    ),
    "a host, an effect that is always refused": Check(
        Workload(copies("a"), hosted=True, supervised=False, to=NOWHERE, retry=HASTY, may_be_both=True, may_be_given_up=True),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=("begin", "commit", "dead-letter", "ack"),
    ),
    "hosts of two endpoints in a chain": Check(
        Workload(copies("a"), endpoints=CHAIN, hosted=True, supervised=False), Bounds(crashes=1, expiries=1), workers=1
    ),
    "a host, tokens in the same database": Check(
        Workload(copies("a"), hosted=True, supervised=False, deduplication=DeduplicationMode.DATABASE),
        Bounds(crashes=1, expiries=1, failures=1),
    ),
    "a host that gives up, a relay, and every kind of fault": Check(
        Workload(copies("a"), hosted=True, hosted_most=2, supervised=False),
        Bounds(crashes=1, expiries=1, failures=1, cuts=1),
        relays=1,
    ),
    "a host that gives up while a process is at work, and a relay": Check(
        Workload(copies("a"), hosted=True, hosted_most=1, supervised=False),
        Bounds(crashes=1, expiries=1, cuts=1),
        workers=1,
        relays=1,
    ),
    "a host, an entity and its history": Check(
        Workload(copies("a"), hosted=True, supervised=False, deduplication=DeduplicationMode.HISTORY),
        Bounds(expiries=1, cuts=1),
        reaches=("load", "save", "send", "ack"),
    ),
}
