"""The checks: small worlds, each explored completely."""

from msgspec.structs import replace

from onceonly.model.retry import Retry
from onceonly_verify.check import CHAIN, GIVEN_UP, GIVING_UP, HASTY, IMPATIENT, ONE_OF_EACH, TWICE, Check
from onceonly_verify.checks.batch_handlers import BATCH_HANDLER_CHECKS
from onceonly_verify.checks.batches import BATCH_CHECKS
from onceonly_verify.checks.clients import CLIENT_CHECKS
from onceonly_verify.checks.deaths import DEATH_CHECKS
from onceonly_verify.checks.executions import EXECUTION_CHECKS
from onceonly_verify.checks.full_batches import FULL_CHECKS
from onceonly_verify.checks.hopeless import HOPELESS_CHECKS
from onceonly_verify.checks.in_database import DATABASE_CHECKS
from onceonly_verify.checks.leftovers import LEFTOVER_CHECKS
from onceonly_verify.checks.pairs import PAIR_CHECKS
from onceonly_verify.checks.requests import REQUEST_CHECKS
from onceonly_verify.checks.rotation import ROTATION_CHECKS
from onceonly_verify.checks.shell import SHELL_CHECKS
from onceonly_verify.checks.stored_elsewhere import STORED_ELSEWHERE
from onceonly_verify.checks.timed import TIMED_CHECKS
from onceonly_verify.checks.tokens import TOKEN_CHECKS
from onceonly_verify.checks.transactions import TRANSACTION_CHECKS
from onceonly_verify.workload import NOWHERE, Arrival, Behaviour, Workload, copies
from onceonly_verify.world import Bounds

CHECKS: tuple[Check, ...] = (
    Check(
        name="two copies, blocking store",
        workload=Workload(arrivals=TWICE),
        bounds=ONE_OF_EACH,
    ),
    Check(
        name="two copies, optimistic store",
        workload=Workload(arrivals=TWICE, blocking=False),
        bounds=Bounds(crashes=1, failures=1),
    ),
    Check(
        name="two copies, optimistic store, a lease that ends early, and a failed call",
        workload=Workload(arrivals=TWICE, blocking=False),
        bounds=Bounds(expiries=1, failures=1),
    ),
    Check(
        name="two copies, optimistic store, a lease that ends early, and a crash",
        workload=Workload(arrivals=TWICE, blocking=False),
        bounds=Bounds(crashes=1, expiries=1),
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
        name="two messages in an isolated unit, one is unsteady",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)),
        bounds=Bounds(failures=1, whims=2),
        workers=1,
        batch=2,
        isolated=True,
    ),
    Check(
        name="a message in an isolated unit, beside one that fails",
        workload=Workload(arrivals=copies("b", "a"), behaviours=(("b", Behaviour.FAILS),), retry=HASTY, prompt=("a",)),
        bounds=Bounds(),
        workers=1,
        batch=2,
        isolated=True,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
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
        name="a handler that fails, and no copy can be made",
        workload=Workload(arrivals=TWICE, behaviours=(("a", Behaviour.FAILS),), takes_copies=False, retry=IMPATIENT),
        bounds=Bounds(crashes=1, failures=1),
        patience=6,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    Check(
        name="an unsteady handler, and no copy can be made",
        workload=Workload(arrivals=copies("a"), behaviours=(("a", Behaviour.UNSTEADY),), takes_copies=False, may_be_both=True),
        bounds=Bounds(crashes=1, failures=1, whims=2),
        workers=1,
        relays=1,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="a message that kills its process, and no copy can be made",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("a", Behaviour.KILLS),), takes_copies=False),
        bounds=Bounds(),
        batch=2,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="a commit that is refused",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.REFUSED),), retry=IMPATIENT),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
    ),
    Check(
        name="a message that ruins every unit it is in",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.RUINS),), retry=HASTY),
        bounds=Bounds(),
        workers=1,
        batch=2,
        patience=20,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="a message that ruins every unit it is in, but for isolated ones",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.SPOILS),), retry=HASTY, prompt=("a",)),
        bounds=Bounds(),
        workers=1,
        batch=2,
        isolated=True,
        patience=20,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="a handler that runs on after its time",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.OUTLASTS),), retry=HASTY, prompt=("a",)),
        bounds=Bounds(),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="a message that waits for a lock",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.LOCKED),), retry=HASTY, prompt=("a",)),
        bounds=Bounds(whims=4),
        workers=1,
        batch=2,
    ),
    Check(
        name="a lock time-out that ends its unit",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.LOCKED_OUT),), retry=HASTY),
        bounds=Bounds(whims=4),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "forget", "ack", "release"),
    ),
    Check(
        name="an outage of the store",
        workload=Workload(arrivals=copies("a", "b"), retry=HASTY),
        bounds=Bounds(outage=10),
        workers=1,
        batch=2,
        patience=30,
        reaches=("begin", "commit", "send", "forget", "ack", "release"),
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
        name="a message whose receive is not answered, no retries",
        workload=Workload(arrivals=copies("a"), retry=HASTY),
        bounds=Bounds(failures=2),
        workers=1,
    ),
    Check(
        name="a message brought ahead to a process that dies",
        workload=Workload(arrivals=copies("a", "c"), behaviours=(("c", Behaviour.KILLS),), retry=HASTY),
        bounds=Bounds(failures=2),
        workers=1,
        patience=20,
    ),
    Check(
        name="a message that must run alone, and nobody sees its process die",
        workload=Workload(arrivals=copies("a", "c"), behaviours=(("c", Behaviour.KILLS),), retry=IMPATIENT, supervised=False),
        bounds=Bounds(failures=1),
        workers=1,
        patience=20,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "start-begin", "start-ended"),
    ),
    Check(
        name="a message that kills its process, and nobody sees it die",
        workload=Workload(arrivals=copies("c"), behaviours=(("c", Behaviour.KILLS),), retry=IMPATIENT, supervised=False),
        bounds=Bounds(),
        workers=1,
        patience=20,
        reaches=("begin", "dead-letter", "ack", "start-begin"),
    ),
    Check(
        name="two messages, and nobody sees their process die",
        workload=Workload(arrivals=copies("a", "b"), supervised=False),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        batch=2,
    ),
    Check(
        name="the lease of a message that must run alone ends early",
        workload=GIVEN_UP,
        bounds=ONE_OF_EACH,
        relays=1,
        reaches=GIVING_UP,
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
        name="given up with its effects pending",
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
    *BATCH_CHECKS,
    *PAIR_CHECKS,
    *HOPELESS_CHECKS,
    *DEATH_CHECKS,
    *SHELL_CHECKS,
    *FULL_CHECKS,
    *BATCH_HANDLER_CHECKS,
    *STORED_ELSEWHERE,
    *TOKEN_CHECKS,
    *DATABASE_CHECKS,
    *TRANSACTION_CHECKS,
    *CLIENT_CHECKS,
    *REQUEST_CHECKS,
    *EXECUTION_CHECKS,
    *LEFTOVER_CHECKS,
    *ROTATION_CHECKS,
    *TIMED_CHECKS,
)
