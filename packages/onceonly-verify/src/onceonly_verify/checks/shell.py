"""The checks of the delivery shell: handlers that end in every way in units of several messages."""

from onceonly_verify.check import HASTY, IMPATIENT, Check
from onceonly_verify.workload import Arrival, Behaviour, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

THREE = copies("a", "b", "c")
SETTLED = ("begin", "commit", "send", "forget", "dead-letter", "ack")


def _ending(*ends: tuple[str, Behaviour], deduplication: DeduplicationMode = DeduplicationMode.CLAIMS) -> Workload:
    return Workload(arrivals=THREE, behaviours=ends, retry=HASTY, deduplication=deduplication)


SHELL_CHECKS: tuple[Check, ...] = (
    Check(
        name="three messages, and one that ends in any way",
        workload=Workload(arrivals=THREE, behaviours=(("b", Behaviour.ANY),), retry=IMPATIENT),
        bounds=Bounds(whims=2),
        workers=1,
        batch=3,
    ),
    Check(
        name="two messages that end in any way",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("a", Behaviour.ANY), ("b", Behaviour.ANY)), retry=IMPATIENT),
        bounds=Bounds(whims=2),
        workers=1,
        batch=2,
    ),
    Check(
        name="three messages, two of which can never be committed",
        workload=_ending(("b", Behaviour.HOPELESS), ("c", Behaviour.REFUSED)),
        bounds=Bounds(),
        workers=1,
        batch=3,
        reaches=SETTLED,
    ),
    Check(
        name="three messages, two of which ruin the units that are not isolated",
        workload=_ending(("a", Behaviour.SPOILS), ("b", Behaviour.SPOILS)),
        bounds=Bounds(),
        workers=1,
        batch=3,
        patience=30,
        reaches=SETTLED,
    ),
    Check(
        name="a message that can never be committed, between two that end in any way",
        workload=_ending(("a", Behaviour.ANY), ("b", Behaviour.HOPELESS), ("c", Behaviour.ANY)),
        bounds=Bounds(whims=1),
        workers=1,
        batch=3,
        reaches=SETTLED,
    ),
    Check(
        name="a message that ruins its units, next to one that ends in any way",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("a", Behaviour.ANY), ("b", Behaviour.SPOILS)), retry=HASTY),
        bounds=Bounds(whims=1),
        workers=1,
        batch=2,
        patience=30,
        reaches=SETTLED,
    ),
    Check(
        name="two messages of a process that died, and a failed call",
        workload=Workload(arrivals=tuple(Arrival(name, name, suspect=True) for name in "ab"), retry=HASTY, supervised=False),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
    ),
    Check(
        name="two copies of a message that must run alone, and a failed call",
        workload=Workload(arrivals=(Arrival("a", "a", alone=True), Arrival("a", "a", alone=True)), retry=HASTY),
        bounds=Bounds(failures=1),
    ),
    Check(
        name="messages that could not be acknowledged and come again",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.FAILS),), retry=IMPATIENT, patient=True),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=(*SETTLED, "release"),
    ),
    Check(
        name="a message that could be neither handled nor released",
        workload=Workload(arrivals=copies("a"), patient=True),
        bounds=Bounds(failures=2),
        workers=1,
        reaches=("begin", "commit", "send", "forget", "ack", "release"),
    ),
    Check(
        name="a message that was held too often, and one that was not",
        workload=Workload(
            arrivals=(Arrival("a", "a", held=19), Arrival("b", "b", held=20), *copies("c")),
            behaviours=(("c", Behaviour.KILLS),),
            retry=HASTY,
        ),
        bounds=Bounds(),
        workers=1,
        batch=3,
        patience=20,
    ),
)
