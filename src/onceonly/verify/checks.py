"""The checks: small worlds, each explored completely."""

from msgspec.structs import replace

from onceonly.model.retry import Retry
from onceonly.verify.attempted import ATTEMPTED
from onceonly.verify.called import CALLED
from onceonly.verify.check import CHAIN, GIVEN_UP, GIVING_UP, HASTY, IMPATIENT, ONE_OF_EACH, TWICE, Check
from onceonly.verify.forgotten import FORGOTTEN
from onceonly.verify.kept import KEPT
from onceonly.verify.workload import NOWHERE, Arrival, Behaviour, Workload, copies
from onceonly.verify.world import Bounds

CHECKS: tuple[Check, ...] = (
    Check(
        name="two copies, blocking store",
        workload=Workload(arrivals=TWICE),
        bounds=ONE_OF_EACH,
    ),
    Check(
        name="two copies, optimistic store",
        workload=Workload(arrivals=TWICE, blocking=False),
        bounds=ONE_OF_EACH,
    ),
    Check(
        name="one message",
        workload=Workload(arrivals=copies("a")),
        bounds=ONE_OF_EACH,
    ),
    Check(
        name="a duplicate within a batch",
        workload=Workload(arrivals=TWICE),
        bounds=Bounds(crashes=1, failures=1),
        batch=2,
    ),
    Check(
        name="two messages in one unit, one is unsteady",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)),
        bounds=Bounds(failures=1, whims=2),
        workers=1,
        batch=2,
    ),
    Check(
        name="two messages in one unit, and a crash",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)),
        bounds=Bounds(crashes=1, whims=1),
        batch=2,
    ),
    Check(
        name="overlapping batches",
        workload=Workload(arrivals=copies("a", "b", "a"), blocking=False),
        bounds=Bounds(failures=1),
        batch=2,
    ),
    Check(
        name="a handler that fails: retry, then dead letter",
        workload=Workload(arrivals=copies("a"), behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        bounds=Bounds(crashes=1, failures=1),
        patience=8,
        reaches=("begin", "send", "dead-letter", "ack", "release"),
    ),
    Check(
        name="a handler that fails, and nothing else does",
        workload=Workload(arrivals=TWICE, behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        bounds=Bounds(),
        patience=6,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    Check(
        name="a commit that is refused",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.REFUSED),), retry=IMPATIENT),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
    ),
    Check(
        name="a message that kills its process",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("a", Behaviour.KILLS),), retry=Retry(immediate=3, delayed=0)),
        bounds=Bounds(),
        batch=2,
        patience=20,
    ),
    Check(
        name="a message that kills its process, no retries",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("a", Behaviour.KILLS),), retry=HASTY),
        bounds=Bounds(),
        batch=2,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="a message that kills its process, beside one that must run alone",
        workload=Workload(arrivals=copies("a", "c", "c"), behaviours=(("c", Behaviour.KILLS),), retry=HASTY),
        bounds=Bounds(),
        workers=1,
        batch=2,
        patience=20,
    ),
    Check(
        name="the same id with another body",
        workload=Workload(arrivals=(Arrival("a", "a"), Arrival("a", "b"))),
        bounds=Bounds(crashes=1),
        batch=2,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "release"),
    ),
    Check(
        name="an effect that is always refused",
        workload=Workload(arrivals=copies("a"), to=NOWHERE, retry=Retry(immediate=2, delayed=0)),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    Check(
        name="given up with its effects owed",
        workload=GIVEN_UP,
        bounds=Bounds(crashes=2, failures=1),
        workers=1,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="given up while it is handled, blocking store",
        workload=GIVEN_UP,
        bounds=Bounds(crashes=2, expiries=1),
        relays=1,
        reaches=GIVING_UP,
    ),
    Check(
        name="given up while it is handled, optimistic store",
        workload=replace(GIVEN_UP, blocking=False),
        bounds=Bounds(crashes=2, expiries=1),
        relays=1,
        reaches=GIVING_UP,
    ),
    Check(
        name="a relay beside a worker",
        workload=Workload(arrivals=copies("a")),
        bounds=ONE_OF_EACH,
        workers=1,
        relays=1,
    ),
    Check(
        name="a committed transaction whose process died",
        workload=Workload(arrivals=(), transactions=("t",), told=("t",), effects=2),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        relays=2,
    ),
    Check(
        name="two transactions whose processes died",
        workload=Workload(arrivals=(), transactions=("t", "u")),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        relays=2,
    ),
    Check(
        name="two effects of one message",
        workload=Workload(arrivals=TWICE, effects=2),
        bounds=Bounds(crashes=1, failures=1),
    ),
    Check(
        name="duplicates within and across batches, and a crash",
        workload=Workload(arrivals=copies("a", "a", "a", "b")),
        bounds=Bounds(crashes=1),
        batch=2,
    ),
    Check(
        name="duplicates within and across batches, optimistic store",
        workload=Workload(arrivals=copies("a", "a", "a"), blocking=False),
        bounds=Bounds(crashes=1),
        batch=2,
    ),
    Check(
        name="a chain, one worker each, two crashes",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(crashes=2, expiries=1),
        workers=1,
    ),
    Check(
        name="a chain, two workers each",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(expiries=1),
    ),
    Check(
        name="a chain, two workers each, and a crash",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(crashes=1, expiries=1),
    ),
    Check(
        name="a chain, one worker each, a crash and a failed call",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
    ),
    Check(
        name="a chain, one worker each, every kind of fault",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=ONE_OF_EACH,
        workers=1,
    ),
    Check(
        name="a chain, one worker and one relay each",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(crashes=1),
        workers=1,
        relays=1,
    ),
    Check(
        name="a chain, both handlers fail",
        workload=Workload(
            arrivals=copies("a"),
            endpoints=CHAIN,
            behaviours=(("a", Behaviour.UNSTEADY), ("a.0", Behaviour.FAILS)),
            retry=IMPATIENT,
            may_be_both=True,
        ),
        bounds=Bounds(crashes=1, whims=2),
        workers=1,
        patience=8,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    Check(
        name="a chain, two senders with one id, two effects each",
        workload=Workload(arrivals=(*TWICE, Arrival("a", "b", source="elsewhere")), endpoints=CHAIN, effects=2),
        bounds=Bounds(),
        workers=1,
        batch=2,
    ),
    *KEPT,
    *ATTEMPTED,
    *CALLED,
    *FORGOTTEN,
)
