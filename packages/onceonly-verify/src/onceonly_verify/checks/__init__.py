"""The checks: small worlds, each explored completely."""

from msgspec.structs import replace

from onceonly.model.retry import Retry
from onceonly_verify.check import CHAIN, GIVEN_UP, GIVING_UP, HASTY, IMPATIENT, ONE_OF_EACH, TWICE, Check, named
from onceonly_verify.checks.application import APPLICATION_CHECKS
from onceonly_verify.checks.batches import BATCH_CHECKS, PAIR_CHECKS
from onceonly_verify.checks.changed_rings import CHANGED_RINGS
from onceonly_verify.checks.drivers import DRIVER_CHECKS
from onceonly_verify.checks.frozen import FROZEN_CHECKS
from onceonly_verify.checks.full_batches import BATCH_HANDLER_CHECKS, FULL_CHECKS
from onceonly_verify.checks.hosted import HOSTED_CHECKS
from onceonly_verify.checks.leftovers import LEFTOVER_CHECKS
from onceonly_verify.checks.requests import EXECUTION_CHECKS, REQUEST_CHECKS
from onceonly_verify.checks.shell import DEATH_CHECKS, HOPELESS_CHECKS, SHELL_CHECKS
from onceonly_verify.checks.stored_elsewhere import STORED_ELSEWHERE
from onceonly_verify.checks.third_party import THIRD_PARTY_CHECKS
from onceonly_verify.checks.timed import ROTATION_CHECKS, TIMED_CHECKS
from onceonly_verify.checks.tokens import DATABASE_CHECKS, TOKEN_CHECKS
from onceonly_verify.checks.transactions import CLIENT_CHECKS, OWN_TRANSACTION_CHECKS, SEARCHED_CHECKS, TRANSACTION_CHECKS
from onceonly_verify.workload import NOWHERE, Behaviour, MessageArrival, Workload, copies
from onceonly_verify.world import Bounds

_GENERAL = {
    "two copies, blocking store": Check(Workload(TWICE), ONE_OF_EACH),
    "two copies, optimistic store": Check(Workload(TWICE, blocking=False), Bounds(crashes=1, failures=1)),
    "two copies, optimistic store, a lease that ends early, and a failed call": Check(
        Workload(TWICE, blocking=False), Bounds(expiries=1, failures=1)
    ),
    "two copies, optimistic store, a lease that ends early, and a crash": Check(
        Workload(TWICE, blocking=False), Bounds(crashes=1, expiries=1)
    ),
    "one message": Check(Workload(copies("a")), ONE_OF_EACH),
    "a duplicate within a batch": Check(Workload(TWICE), Bounds(crashes=1, failures=1), batch=2),
    "two messages in one unit, one is unsteady": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)), Bounds(failures=1, whims=2), workers=1, batch=2
    ),
    "two messages in an isolated unit, one is unsteady": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)),
        Bounds(failures=1, whims=2),
        workers=1,
        batch=2,
        isolated=True,
    ),
    "a message in an isolated unit, beside one that fails": Check(
        Workload(copies("b", "a"), behaviours=(("b", Behaviour.FAILS),), retry=HASTY, prompt=("a",)),
        workers=1,
        batch=2,
        isolated=True,
        reaches=GIVING_UP,
    ),
    "two messages in one unit, and a crash": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)), Bounds(crashes=1, whims=1), batch=2
    ),
    "overlapping batches": Check(Workload(copies("a", "b", "a"), blocking=False), Bounds(failures=1), batch=2),
    "a handler that fails: retry, then dead letter": Check(
        Workload(copies("a"), behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        Bounds(crashes=1, failures=1),
        patience=8,
        reaches=("begin", "send", "dead-letter", "ack", "release"),
    ),
    "a handler that fails, and nothing else does": Check(
        Workload(TWICE, behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        patience=6,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    "a handler that fails, and no copy can be made": Check(
        Workload(TWICE, behaviours=(("a", Behaviour.FAILS),), takes_copies=False, retry=IMPATIENT),
        Bounds(crashes=1, failures=1),
        patience=6,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    "an unsteady handler, and no copy can be made": Check(
        Workload(copies("a"), behaviours=(("a", Behaviour.UNSTEADY),), takes_copies=False, may_be_both=True),
        Bounds(crashes=1, failures=1, whims=2),
        workers=1,
        relays=1,
        reaches=GIVING_UP,
    ),
    "a message that kills its process, and no copy can be made": Check(
        Workload(copies("a", "b"), behaviours=(("a", Behaviour.KILLS),), takes_copies=False), batch=2, reaches=GIVING_UP
    ),
    "a commit that is refused": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.REFUSED),), retry=IMPATIENT),
        Bounds(failures=1),
        workers=1,
        batch=2,
    ),
    "a message that ruins every unit it is in": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.RUINS),), retry=HASTY),
        workers=1,
        batch=2,
        patience=20,
        reaches=GIVING_UP,
    ),
    "a message that ruins every unit it is in, but for isolated ones": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.SPOILS),), retry=HASTY, prompt=("a",)),
        workers=1,
        batch=2,
        isolated=True,
        patience=20,
        reaches=GIVING_UP,
    ),
    "a handler that runs on after its time": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.OUTLASTS),), retry=HASTY, prompt=("a",)),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    "a message that waits for a lock": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.LOCKED),), retry=HASTY, prompt=("a",)),
        Bounds(whims=4),
        workers=1,
        batch=2,
    ),
    "a lock time-out that ends its unit": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.LOCKED_OUT),), retry=HASTY),
        Bounds(whims=4),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "forget", "ack", "release"),
    ),
    "an outage of the store": Check(
        Workload(copies("a", "b"), retry=HASTY),
        Bounds(outage=10),
        workers=1,
        batch=2,
        patience=30,
        reaches=("begin", "commit", "send", "forget", "ack", "release"),
    ),
    "a message that kills its process": Check(
        Workload(copies("a", "b"), behaviours=(("a", Behaviour.KILLS),), retry=Retry(immediate=3, delayed=0)),
        batch=2,
        patience=20,
    ),
    "a message that kills its process, no retries": Check(
        Workload(copies("a", "b"), behaviours=(("a", Behaviour.KILLS),), retry=HASTY), batch=2, reaches=GIVING_UP
    ),
    "a message that kills its process, beside one that must run alone": Check(
        Workload(copies("a", "c", "c"), behaviours=(("c", Behaviour.KILLS),), retry=HASTY), workers=1, batch=2, patience=20
    ),
    "a message whose receive is not answered, no retries": Check(
        Workload(copies("a"), retry=HASTY), Bounds(failures=2), workers=1
    ),
    "a message brought ahead to a process that dies": Check(
        Workload(copies("a", "c"), behaviours=(("c", Behaviour.KILLS),), retry=HASTY),
        Bounds(failures=2),
        workers=1,
        patience=20,
    ),
    "a message that must run alone, and nobody sees its process die": Check(
        Workload(copies("a", "c"), behaviours=(("c", Behaviour.KILLS),), retry=IMPATIENT, supervised=False),
        Bounds(failures=1),
        workers=1,
        patience=20,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "start-begin", "start-ended"),
    ),
    "a message that kills its process, and nobody sees it die": Check(
        Workload(copies("c"), behaviours=(("c", Behaviour.KILLS),), retry=IMPATIENT, supervised=False),
        workers=1,
        patience=20,
        reaches=("begin", "dead-letter", "ack", "start-begin"),
    ),
    "two messages, and nobody sees their process die": Check(
        Workload(copies("a", "b"), supervised=False), Bounds(crashes=1, failures=1), workers=1, batch=2
    ),
    "the lease of a message that must run alone ends early": Check(GIVEN_UP, ONE_OF_EACH, relays=1, reaches=GIVING_UP),
    "the same id with another body": Check(
        Workload((MessageArrival("a", "a"), MessageArrival("a", "b"))),
        Bounds(crashes=1),
        batch=2,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "release"),
    ),
    "an effect that is always refused": Check(
        Workload(copies("a"), to=NOWHERE, retry=Retry(immediate=2, delayed=0)),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    "given up with its effects pending": Check(GIVEN_UP, Bounds(crashes=2, failures=1), workers=1, reaches=GIVING_UP),
    "given up while it is handled, blocking store": Check(GIVEN_UP, Bounds(crashes=2, expiries=1), relays=1, reaches=GIVING_UP),
    "given up while it is handled, optimistic store": Check(
        replace(GIVEN_UP, blocking=False), Bounds(crashes=2, expiries=1), relays=1, reaches=GIVING_UP
    ),
    "a relay beside a worker": Check(Workload(copies("a")), ONE_OF_EACH, workers=1, relays=1),
    "a committed transaction whose process died": Check(
        Workload(transactions=("t",), told=("t",), effects=2), Bounds(crashes=1, failures=1), workers=0, relays=2
    ),
    "two transactions whose processes died": Check(
        Workload(transactions=("t", "u")), Bounds(crashes=1, failures=1), workers=0, relays=2
    ),
    "two effects of one message": Check(Workload(TWICE, effects=2), Bounds(crashes=1, failures=1)),
    "duplicates within and across batches, and a crash": Check(
        Workload(copies("a", "a", "a", "b")), Bounds(crashes=1), batch=2
    ),
    "duplicates within and across batches, optimistic store": Check(
        Workload(copies("a", "a", "a"), blocking=False), Bounds(crashes=1), batch=2
    ),
    "a chain, one worker each, two crashes": Check(
        Workload(copies("a"), endpoints=CHAIN), Bounds(crashes=2, expiries=1), workers=1
    ),
    "a chain, two workers each": Check(Workload(copies("a"), endpoints=CHAIN), Bounds(expiries=1)),
    "a chain, two workers each, and a crash": Check(Workload(copies("a"), endpoints=CHAIN), Bounds(crashes=1, expiries=1)),
    "a chain, one worker each, a crash and a failed call": Check(
        Workload(copies("a"), endpoints=CHAIN), Bounds(crashes=1, failures=1), workers=1
    ),
    "a chain, one worker each, every kind of fault": Check(Workload(copies("a"), endpoints=CHAIN), ONE_OF_EACH, workers=1),
    "a chain, one worker and one relay each": Check(
        Workload(copies("a"), endpoints=CHAIN), Bounds(crashes=1), workers=1, relays=1
    ),
    "a chain, both handlers fail": Check(
        Workload(
            copies("a"),
            endpoints=CHAIN,
            behaviours=(("a", Behaviour.UNSTEADY), ("a.0", Behaviour.FAILS)),
            retry=IMPATIENT,
            may_be_both=True,
        ),
        Bounds(crashes=1, whims=2),
        workers=1,
        patience=8,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    "a chain, two senders with one id, two effects each": Check(
        Workload((*TWICE, MessageArrival("a", "b", source="elsewhere")), endpoints=CHAIN, effects=2), workers=1, batch=2
    ),
}

CHECKS = named(
    _GENERAL,
    BATCH_CHECKS,
    PAIR_CHECKS,
    HOPELESS_CHECKS,
    DEATH_CHECKS,
    SHELL_CHECKS,
    FULL_CHECKS,
    BATCH_HANDLER_CHECKS,
    STORED_ELSEWHERE,
    APPLICATION_CHECKS,
    TOKEN_CHECKS,
    DATABASE_CHECKS,
    TRANSACTION_CHECKS,
    CLIENT_CHECKS,
    OWN_TRANSACTION_CHECKS,
    SEARCHED_CHECKS,
    DRIVER_CHECKS,
    HOSTED_CHECKS,
    FROZEN_CHECKS,
    REQUEST_CHECKS,
    THIRD_PARTY_CHECKS,
    EXECUTION_CHECKS,
    LEFTOVER_CHECKS,
    ROTATION_CHECKS,
    TIMED_CHECKS,
    CHANGED_RINGS,
)
