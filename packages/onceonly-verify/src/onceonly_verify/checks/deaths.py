"""The checks of deaths that a supervisor sees: the shared counters, and messages that run alone."""

from onceonly.model.retry import Retry
from onceonly_verify.check import HASTY, IMPATIENT, Check
from onceonly_verify.supervision import Supervision
from onceonly_verify.workload import Arrival, Batched, Behaviour, Workload, copies
from onceonly_verify.world import Bounds

ALONE = (Arrival("a", "a", alone=True), Arrival("a", "a", alone=True))
"""Two copies that must run alone."""
RUNS = ("begin", "commit", "send", "forget", "ack", "alone", "start-begin", "start-ended")

DEATH_CHECKS: tuple[Check, ...] = (
    Check(
        name="shared counters, two copies that must run alone, and a crash",
        workload=Workload(arrivals=ALONE, board=Supervision.SEES, retry=Retry(immediate=3, delayed=0)),
        bounds=Bounds(crashes=1),
        reaches=RUNS,
    ),
    Check(
        name="shared counters, two copies that must run alone, and a kill by the supervisor",
        workload=Workload(arrivals=ALONE, board=Supervision.KILLS, retry=HASTY),
        bounds=Bounds(crashes=1),
        reaches=RUNS,
    ),
    Check(
        name="shared counters, two copies that must run alone, and a failed call",
        workload=Workload(arrivals=ALONE, board=Supervision.SEES, retry=HASTY),
        bounds=Bounds(failures=1),
        reaches=RUNS,
    ),
    Check(
        name="shared counters, a message that comes again, and no death was seen",
        workload=Workload(arrivals=(Arrival("a", "a", suspect=True), Arrival("b", "b")), board=Supervision.SEES, retry=HASTY),
        bounds=Bounds(),
        workers=1,
        batch=2,
        reaches=(*RUNS, "board-look"),
    ),
    Check(
        name="shared counters, a message that kills its process, and one that it held",
        workload=Workload(
            arrivals=copies("a", "c"), behaviours=(("c", Behaviour.KILLS),), board=Supervision.SEES, retry=IMPATIENT
        ),
        bounds=Bounds(),
        workers=1,
        batch=2,
        patience=20,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "alone", "board-look"),
    ),
    Check(
        name="shared counters, a message that kills its process, and a crash",
        workload=Workload(arrivals=copies("c"), behaviours=(("c", Behaviour.KILLS),), board=Supervision.SEES, retry=IMPATIENT),
        bounds=Bounds(crashes=1),
        workers=1,
        batch=2,
        patience=20,
        reaches=("begin", "dead-letter", "ack", "alone", "board-look", "start-begin", "start-forget"),
    ),
    Check(
        name="shared counters, messages that a process held, and a kill by the supervisor",
        workload=Workload(arrivals=copies("a", "b"), board=Supervision.KILLS, retry=HASTY),
        bounds=Bounds(crashes=2),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "forget", "ack", "board-look"),
    ),
    Check(
        name="shared counters, an explained death beside an unclear one",
        workload=Workload(
            arrivals=copies("a", "b", "c"),
            behaviours=(("b", Behaviour.KILLS), ("c", Behaviour.KILLS)),
            batched=Batched.FAILS,
            board=Supervision.SEES,
            retry=HASTY,
        ),
        bounds=Bounds(),
        workers=1,
        batch=2,
        patience=16,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "alone", "board-look"),
    ),
)
