"""The checks of messages that can never be handled: each becomes a dead letter, and takes no other message with it."""

from onceonly_verify.check import HASTY, Check
from onceonly_verify.workload import INVALID, Arrival, Behaviour, DeduplicationMode, Flaw, Workload, copies
from onceonly_verify.world import Bounds

GOOD = copies("a")
ON_DOCUMENTS = ("load", "save", "send", "dead-letter", "ack")

HOPELESS_CHECKS: tuple[Check, ...] = (
    Check(
        name="a message that follows up a request, and an endpoint without peers",
        workload=Workload(arrivals=(*GOOD, Arrival("u", "u", flaw=Flaw.WITHOUT_PEERS)), retry=HASTY),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="a message whose response is lost",
        workload=Workload(
            arrivals=(*GOOD, Arrival("u", "u", flaw=Flaw.WITHOUT_RESPONSE)),
            deduplication=DeduplicationMode.HISTORY,
            followed=True,
            quiet=True,
            retry=HASTY,
        ),
        bounds=Bounds(failures=1),
        workers=1,
        patience=4,
        reaches=("load", "save", "remote-get", "remote-call", "dead-letter", "ack"),
    ),
    Check(
        name="a message about an entity that no document can have",
        workload=Workload(
            arrivals=(*GOOD, Arrival("u", "u", flaw=Flaw.WITHOUT_UNIT)),
            deduplication=DeduplicationMode.HISTORY,
            entities=(("u", INVALID),),
            retry=HASTY,
        ),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=ON_DOCUMENTS,
    ),
    Check(
        name="a handler that names an artifact of another attempt",
        workload=Workload(
            arrivals=copies("b"),
            behaviours=(("b", Behaviour.MISNAMES),),
            deduplication=DeduplicationMode.HISTORY,
            artifacts=1,
            retry=HASTY,
        ),
        bounds=Bounds(failures=1),
        workers=1,
        reaches=("load", "save", "dead-letter", "ack"),
    ),
)
