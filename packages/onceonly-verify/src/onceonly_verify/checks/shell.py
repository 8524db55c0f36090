"""The checks of the delivery loop: how handlers end, messages that can never be handled, deaths of processes."""

from onceonly.model.retry import Retry
from onceonly_verify.check import GIVING_UP, HASTY, IMPATIENT, Check
from onceonly_verify.workload import (
    INVALID,
    Batched,
    Behaviour,
    DeduplicationMode,
    Flaw,
    MessageArrival,
    Supervision,
    Workload,
    copies,
)
from onceonly_verify.world import Bounds

THREE = copies("a", "b", "c")


def _ending(*ends: tuple[str, Behaviour], deduplication: DeduplicationMode = DeduplicationMode.CLAIMS) -> Workload:
    return Workload(THREE, behaviours=ends, retry=HASTY, deduplication=deduplication)


SHELL_CHECKS = {
    "three messages, and one that ends in any way": Check(
        Workload(THREE, behaviours=(("b", Behaviour.ANY),), retry=IMPATIENT), Bounds(whims=2), workers=1, batch=3
    ),
    "two messages that end in any way": Check(
        Workload(copies("a", "b"), behaviours=(("a", Behaviour.ANY), ("b", Behaviour.ANY)), retry=IMPATIENT),
        Bounds(whims=2),
        workers=1,
        batch=2,
    ),
    "three messages, two of which can never be committed": Check(
        _ending(("b", Behaviour.HOPELESS), ("c", Behaviour.REFUSED)), workers=1, batch=3, reaches=GIVING_UP
    ),
    "three messages, two of which ruin the units that are not isolated": Check(
        _ending(("a", Behaviour.SPOILS), ("b", Behaviour.SPOILS)), workers=1, batch=3, patience=30, reaches=GIVING_UP
    ),
    "a message that can never be committed, between two that end in any way": Check(
        _ending(("a", Behaviour.ANY), ("b", Behaviour.HOPELESS), ("c", Behaviour.ANY)),
        Bounds(whims=1),
        workers=1,
        batch=3,
        reaches=GIVING_UP,
    ),
    "a message that ruins its units, next to one that ends in any way": Check(
        Workload(copies("a", "b"), behaviours=(("a", Behaviour.ANY), ("b", Behaviour.SPOILS)), retry=HASTY),
        Bounds(whims=1),
        workers=1,
        batch=2,
        patience=30,
        reaches=GIVING_UP,
    ),
    "two messages of a process that died, and a failed call": Check(
        Workload(tuple(MessageArrival(name, name, suspect=True) for name in "ab"), retry=HASTY, supervised=False),
        Bounds(failures=1),
        workers=1,
        batch=2,
    ),
    "two copies of a message that must run alone, and a failed call": Check(
        Workload((MessageArrival("a", "a", alone=True), MessageArrival("a", "a", alone=True)), retry=HASTY), Bounds(failures=1)
    ),
    "messages that could not be acknowledged and come again": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.FAILS),), retry=IMPATIENT, patient=True),
        Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=(*GIVING_UP, "release"),
    ),
    "a message that could be neither handled nor released": Check(
        Workload(copies("a"), patient=True),
        Bounds(failures=2),
        workers=1,
        reaches=("begin", "commit", "send", "forget", "ack", "release"),
    ),
    "a message that was held too often, and one that was not": Check(
        Workload(
            (MessageArrival("a", "a", held=19), MessageArrival("b", "b", held=20), *copies("c")),
            behaviours=(("c", Behaviour.KILLS),),
            retry=HASTY,
        ),
        workers=1,
        batch=3,
        patience=20,
    ),
}


GOOD = copies("a")
ON_DOCUMENTS = ("load", "save", "send", "dead-letter", "ack")

HOPELESS_CHECKS = {
    "a message that follows up a request, and an endpoint without peers": Check(
        Workload((*GOOD, MessageArrival("u", "u", flaw=Flaw.WITHOUT_PEERS)), retry=HASTY),
        Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    "a message whose response is lost": Check(
        Workload(
            (*GOOD, MessageArrival("u", "u", flaw=Flaw.WITHOUT_RESPONSE)),
            deduplication=DeduplicationMode.HISTORY,
            followed=True,
            quiet=True,
            retry=HASTY,
        ),
        Bounds(failures=1),
        workers=1,
        patience=4,
        reaches=("load", "save", "remote-get", "remote-call", "dead-letter", "ack"),
    ),
    "a message about an entity that no document can have": Check(
        Workload(
            (*GOOD, MessageArrival("u", "u", flaw=Flaw.WITHOUT_UNIT)),
            deduplication=DeduplicationMode.HISTORY,
            entities=(("u", INVALID),),
            retry=HASTY,
        ),
        Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=ON_DOCUMENTS,
    ),
    "a handler that names an artifact of another attempt": Check(
        Workload(
            copies("b"),
            behaviours=(("b", Behaviour.MISNAMES),),
            deduplication=DeduplicationMode.HISTORY,
            artifacts=1,
            retry=HASTY,
        ),
        Bounds(failures=1),
        workers=1,
        reaches=("load", "save", "dead-letter", "ack"),
    ),
}


ALONE = (MessageArrival("a", "a", alone=True), MessageArrival("a", "a", alone=True))
"""Two copies that must run alone."""
RUNS = ("begin", "commit", "send", "forget", "ack", "alone", "start-begin", "start-ended")

DEATH_CHECKS = {
    "shared counters, two copies that must run alone, and a crash": Check(
        Workload(ALONE, board=Supervision.SEES, retry=Retry(immediate=3, delayed=0)), Bounds(crashes=1), reaches=RUNS
    ),
    "shared counters, two copies that must run alone, and a kill by the supervisor": Check(
        Workload(ALONE, board=Supervision.KILLS, retry=HASTY), Bounds(crashes=1), reaches=RUNS
    ),
    "shared counters, two copies that must run alone, and a failed call": Check(
        Workload(ALONE, board=Supervision.SEES, retry=HASTY), Bounds(failures=1), reaches=RUNS
    ),
    "shared counters, a message that comes again, and no death was seen": Check(
        Workload((MessageArrival("a", "a", suspect=True), MessageArrival("b", "b")), board=Supervision.SEES, retry=HASTY),
        workers=1,
        batch=2,
        reaches=(*RUNS, "board-look"),
    ),
    "shared counters, a message that kills its process, and one that it held": Check(
        Workload(copies("a", "c"), behaviours=(("c", Behaviour.KILLS),), board=Supervision.SEES, retry=IMPATIENT),
        workers=1,
        batch=2,
        patience=20,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "alone", "board-look"),
    ),
    "shared counters, a message that kills its process, and a crash": Check(
        Workload(copies("c"), behaviours=(("c", Behaviour.KILLS),), board=Supervision.SEES, retry=IMPATIENT),
        Bounds(crashes=1),
        workers=1,
        batch=2,
        patience=20,
        reaches=("begin", "dead-letter", "ack", "alone", "board-look", "start-begin", "start-forget"),
    ),
    "shared counters, messages that a process held, and a kill by the supervisor": Check(
        Workload(copies("a", "b"), board=Supervision.KILLS, retry=HASTY),
        Bounds(crashes=2),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "forget", "ack", "board-look"),
    ),
    "shared counters, an explained death beside an unclear one": Check(
        Workload(
            copies("a", "b", "c"),
            behaviours=(("b", Behaviour.KILLS), ("c", Behaviour.KILLS)),
            batched=Batched.FAILS,
            board=Supervision.SEES,
            retry=HASTY,
        ),
        workers=1,
        batch=2,
        patience=16,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "alone", "board-look"),
    ),
}
