"""The checks of handlers that take batches: one run for several messages, and each message has its own fate all the same."""

from onceonly.model.retry import Retry
from onceonly_verify.check import HASTY, IMPATIENT, Check
from onceonly_verify.checks.full_batches import full
from onceonly_verify.workload import Batched, Behaviour, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

FAILS, SETS_ASIDE = Batched.FAILS, Batched.SETS_ASIDE
HANDLED = ("begin", "commit", "send", "forget", "ack")
GIVEN_UP = (*HANDLED, "dead-letter")
TWO_OF_FIVE = (("b", Behaviour.FAILS), ("d", Behaviour.FAILS))
ANY = tuple((name, Behaviour.ANY) for name in "abc")
UNSTEADY = (("a", Behaviour.UNSTEADY), ("b", Behaviour.UNSTEADY))

BATCH_HANDLER_CHECKS: tuple[Check, ...] = (
    Check(
        name="a batch handler, two workers, a crash and a lease that ends early",
        workload=Workload(arrivals=copies("a", "b"), batched=FAILS),
        bounds=Bounds(crashes=1, expiries=1),
        batch=2,
    ),
    Check(
        name="a batch handler with two effects for each message, and a failed call",
        workload=Workload(arrivals=copies("a", "b"), effects=2, batched=FAILS),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
    ),
    Check(
        name="a batch handler whose messages sometimes fail, and a failed call",
        workload=Workload(arrivals=copies("a", "b"), behaviours=UNSTEADY, retry=IMPATIENT, batched=FAILS),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        batch=2,
    ),
    Check(
        name="a batch handler that sets messages aside, and a failed call",
        workload=Workload(
            arrivals=copies("a", "b"), behaviours=UNSTEADY, retry=IMPATIENT, batched=SETS_ASIDE, may_be_both=True
        ),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        batch=2,
    ),
    *(
        full(
            f"a full {'isolated ' if isolated else ''}batch of a batch handler that {how.value}, two of five fail",
            Workload(arrivals=copies(*"abcde"), behaviours=TWO_OF_FIVE, retry=HASTY, batched=how),
            batch=5,
            isolated=isolated,
            reaches=GIVEN_UP,
        )
        for how in Batched
        for isolated in (False, True)
    ),
    *(
        full(
            f"a full {'isolated ' if isolated else ''}batch of a batch handler that {how.value}, messages end in any way",
            Workload(arrivals=copies(*"abc"), behaviours=ANY, retry=IMPATIENT, batched=how),
            Bounds(whims=1),
            batch=3,
            isolated=isolated,
            reaches=HANDLED,
        )
        for how in Batched
        for isolated in (False, True)
    ),
    full(
        "a full batch of a batch handler, one message kills its process",
        Workload(
            arrivals=copies(*"abc"),
            behaviours=(("b", Behaviour.KILLS),),
            retry=Retry(immediate=1, delayed=0),
            supervised=False,
            batched=FAILS,
        ),
        batch=3,
        reaches=(*GIVEN_UP, "start-begin"),
    ),
    full(
        "a full batch of a batch handler, two of four can never be committed",
        Workload(
            arrivals=copies(*"abcd"),
            behaviours=(("b", Behaviour.HOPELESS), ("d", Behaviour.REFUSED)),
            retry=HASTY,
            batched=FAILS,
        ),
        batch=4,
        reaches=GIVEN_UP,
    ),
    full(
        "a full batch of a batch handler with an artifact for each message, one fails",
        Workload(
            arrivals=copies(*"abc"),
            behaviours=(("b", Behaviour.FAILS),),
            artifacts=1,
            retry=HASTY,
            batched=SETS_ASIDE,
        ),
        batch=3,
        reaches=GIVEN_UP,
    ),
    full(
        "a full batch of a batch handler, tokens in the same database, one fails",
        Workload(
            arrivals=copies(*"abc"),
            behaviours=(("b", Behaviour.FAILS),),
            retry=HASTY,
            deduplication=DeduplicationMode.DATABASE,
            batched=FAILS,
        ),
        batch=3,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
)
