"""Worlds larger than can be explored by default: DEEP are explored as far as a budget goes, LARGE by random schedules."""

from onceonly.model.retry import Retry
from onceonly.verify.checks import IMPATIENT, TWICE, Check
from onceonly.verify.workload import Arrival, Behaviour, Workload, copies
from onceonly.verify.world import Bounds

THREE = copies("a", "a", "a")
FOUR = copies("a", "b", "c", "a")
MANY_FAULTS = Bounds(crashes=3, expiries=3, failures=3, whims=3)
NO_TWO_HOLDERS = Bounds(crashes=3, failures=3, whims=3)
"""Where messages are given up: see "Open" in docs/verification.md for what happens when a lease ends early as well."""
ENDLESS = 60
"""So many deliveries or copies of four messages with nine faults show that there is no end to it."""

DEEP: tuple[Check, ...] = (
    Check(
        name="two copies, blocking store, two crashes",
        workload=Workload(arrivals=TWICE),
        bounds=Bounds(crashes=2, expiries=1, failures=1),
    ),
    Check(
        name="two copies, blocking store, two failed calls",
        workload=Workload(arrivals=TWICE),
        bounds=Bounds(crashes=1, expiries=1, failures=2),
    ),
    Check(
        name="two copies, blocking store, three workers",
        workload=Workload(arrivals=TWICE),
        bounds=Bounds(crashes=1, expiries=1, failures=1),
        workers=3,
    ),
    Check(
        name="three copies, blocking store",
        workload=Workload(arrivals=THREE),
        bounds=Bounds(crashes=1, failures=1),
        workers=3,
    ),
    Check(
        name="three copies, optimistic store",
        workload=Workload(arrivals=THREE, blocking=False),
        bounds=Bounds(failures=1),
        workers=3,
    ),
    Check(
        name="two copies, optimistic store, two failed calls",
        workload=Workload(arrivals=TWICE, blocking=False),
        bounds=Bounds(crashes=1, failures=2),
    ),
    Check(
        name="duplicates within a batch of three",
        workload=Workload(arrivals=THREE),
        bounds=Bounds(crashes=1, failures=1),
        batch=3,
    ),
    Check(
        name="overlapping batches, and a crash",
        workload=Workload(arrivals=copies("a", "b", "a"), blocking=False),
        bounds=Bounds(crashes=1, failures=1),
        batch=2,
    ),
    Check(
        name="two messages in one unit, one is unsteady, and a crash",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)),
        bounds=Bounds(crashes=1, failures=1, whims=2),
        batch=2,
    ),
    Check(
        name="a handler that fails, two crashes and two failed calls",
        workload=Workload(arrivals=copies("a"), behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        bounds=Bounds(crashes=2, failures=2),
        reaches=("begin", "send", "dead-letter", "ack", "release"),
    ),
)

LARGE: tuple[Check, ...] = (
    Check(
        name="large, blocking store",
        workload=Workload(arrivals=FOUR, behaviours=(("b", Behaviour.UNSTEADY),)),
        bounds=MANY_FAULTS,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, optimistic store",
        workload=Workload(arrivals=FOUR, behaviours=(("b", Behaviour.UNSTEADY),), blocking=False),
        bounds=MANY_FAULTS,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, handlers that fail and kill",
        workload=Workload(
            arrivals=FOUR,
            behaviours=(("b", Behaviour.FAILS), ("c", Behaviour.KILLS)),
            retry=Retry(immediate=2, delayed=0),
            may_be_given_up=True,
        ),
        bounds=NO_TWO_HOLDERS,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, a handler that kills",
        workload=Workload(
            arrivals=FOUR,
            behaviours=(("c", Behaviour.KILLS),),
            retry=IMPATIENT,
            may_be_given_up=True,  # see the third point of "Open" in docs/verification.md
        ),
        bounds=Bounds(failures=1),
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, two effects, refused commits, another body",
        workload=Workload(
            arrivals=(*FOUR, Arrival("a", "d")),
            behaviours=(("c", Behaviour.REFUSED),),
            effects=2,
            retry=IMPATIENT,
            may_be_given_up=True,
        ),
        bounds=NO_TWO_HOLDERS,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
)
