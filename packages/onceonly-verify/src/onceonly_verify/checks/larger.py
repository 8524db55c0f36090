"""Worlds larger than can be explored by default: DEEP are explored as far as a budget goes, LARGE by random schedules."""

from msgspec.structs import replace

from onceonly.model.retry import Retry
from onceonly_verify.check import CHAIN, GIVEN_UP, GIVING_UP, HASTY, IMPATIENT, ONE_OF_EACH, TWICE, Check
from onceonly_verify.checks.batches import PAIR, VARYING, published
from onceonly_verify.checks.in_database import LARGER_DATABASE_CHECKS
from onceonly_verify.checks.rotation import AHEAD, LATE, REFUSING
from onceonly_verify.checks.timed import LONGER_CHECKS
from onceonly_verify.checks.tokens import LARGER_TOKEN_CHECKS
from onceonly_verify.clock import OLD
from onceonly_verify.workload import Arrival, Batched, Behaviour, Client, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

THREE = copies("a", "a", "a")
FOUR = copies("a", "b", "c", "a")
MANY_FAULTS = Bounds(crashes=3, expiries=3, failures=3, whims=3)
ENDLESS = 60
"""So many deliveries or copies of four messages with nine faults show that there is no end to it."""

DEEP: tuple[Check, ...] = (
    Check(
        name="two events with two subscribers, a dedup store, and a crash",
        workload=published(DeduplicationMode.DEDUP, effects=2),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("load", "save", "dedup-contains", "dedup-add", "ack"),
    ),
    Check(
        name="two events with two subscribers, tokens and a failed call",
        workload=published(DeduplicationMode.TOKENS, effects=2),
        bounds=Bounds(failures=1),
        workers=1,
        reaches=("load", "save", "token-live", "ack"),
    ),
    Check(
        name="two messages with two artifacts each, two workers and a crash",
        workload=Workload(arrivals=PAIR, deduplication=DeduplicationMode.HISTORY, artifacts=2),
        bounds=Bounds(crashes=1),
        sweepers=1,
        batch=2,
        reaches=("load", "save", "send", "artifact-create", "ack"),
    ),
    Check(
        name="two messages that sometimes fail, with different counts, and a failed call",
        workload=Workload(
            arrivals=PAIR,
            behaviours=(("a", Behaviour.FAILS), ("b", Behaviour.UNSTEADY)),
            retry=Retry(immediate=2, delayed=0),
        ),
        bounds=Bounds(failures=1, whims=2),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="two messages with two effects each, two workers, a crash and a failed call",
        workload=Workload(arrivals=PAIR, effects=2, behaviours=VARYING),
        bounds=Bounds(crashes=1, failures=1, whims=2),
        batch=2,
    ),
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
        name="two copies, optimistic store, every kind of fault",
        workload=Workload(arrivals=TWICE, blocking=False),
        bounds=ONE_OF_EACH,
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
        name="a message that ruins every unit it is in, and a failed call",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.RUINS),), retry=HASTY),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        patience=20,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "release"),
    ),
    Check(
        name="a handler that fails, two crashes and two failed calls",
        workload=Workload(arrivals=copies("a"), behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        bounds=Bounds(crashes=2, failures=2),
        reaches=("begin", "send", "dead-letter", "ack", "release"),
    ),
    Check(
        name="given up while it is handled, blocking store, and a failed call",
        workload=GIVEN_UP,
        bounds=Bounds(crashes=2, expiries=1, failures=1),
        relays=1,
        reaches=GIVING_UP,
    ),
    Check(
        name="given up while it is handled, optimistic store, and a failed call",
        workload=replace(GIVEN_UP, blocking=False),
        bounds=Bounds(crashes=2, expiries=1, failures=1),
        relays=1,
        reaches=GIVING_UP,
    ),
    Check(
        name="a control message, two attempts with one key, and two workers",
        workload=Workload(
            arrivals=(), clients=(Client("t", key="k"), Client("t", key="k")), deduplication=DeduplicationMode.HISTORY
        ),
        bounds=Bounds(crashes=1),
        reaches=("load", "ack"),
    ),
    Check(
        name="tokens elsewhere, two messages in one batch, and a relay",
        workload=Workload(arrivals=copies("a", "b"), deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        relays=1,
        batch=2,
        reaches=("begin", "commit", "token-live", "token-activate", "send", "token-remove", "forget", "ack"),
    ),
    Check(
        name="tokens and two sweepers, a crash",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1, sweeps=2),
        workers=1,
        sweepers=2,
        reaches=("load", "save", "token-live", "token-prepare", "token-activate", "send", "token-remove", "ack"),
    ),
    Check(
        name="a client that retries, and a control message",
        workload=Workload(
            arrivals=(), clients=(Client("t", key="k"),), clients_retry=True, deduplication=DeduplicationMode.HISTORY
        ),
        bounds=Bounds(failures=1),
        workers=1,
        reaches=("load", "ack"),
    ),
    Check(
        name="asked by another service, a relay, and a crash",
        workload=Workload(arrivals=(), asked=("ASK a",)),
        bounds=Bounds(crashes=1),
        workers=0,
        executors=2,
        relays=1,
        reaches=(),
    ),
    Check(
        name="a ring, two slices of one bucket, a crash and a lease that ends early",
        workload=Workload(arrivals=(*LATE[:1], *AHEAD[:1]), deduplication=DeduplicationMode.RING),
        bounds=Bounds(crashes=1, expiries=1),
        janitors=2,
        reaches=REFUSING,
    ),
    Check(
        name="a ring, and copies that come late, and a failed call",
        workload=Workload(arrivals=LATE, deduplication=DeduplicationMode.RING),
        bounds=ONE_OF_EACH,
        janitors=2,
        reaches=REFUSING,
    ),
    *LARGER_TOKEN_CHECKS,
    *LARGER_DATABASE_CHECKS,
    *LONGER_CHECKS,
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
            may_be_both=True,
        ),
        bounds=MANY_FAULTS,
        relays=1,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    *(
        Check(
            name=f"large, a batch handler that {how.value}",
            workload=Workload(
                arrivals=FOUR,
                behaviours=(("b", Behaviour.FAILS), ("c", Behaviour.UNSTEADY)),
                retry=Retry(immediate=3, delayed=0),
                batched=how,
                may_be_both=True,
            ),
            bounds=MANY_FAULTS,
            relays=1,
            workers=3,
            batch=3,
            isolated=how is Batched.SETS_ASIDE,
            patience=ENDLESS,
        )
        for how in Batched
    ),
    Check(
        name="large, a batch handler that kills",
        workload=Workload(
            arrivals=FOUR, behaviours=(("c", Behaviour.KILLS),), retry=IMPATIENT, supervised=False, batched=Batched.FAILS
        ),
        bounds=Bounds(expiries=2, failures=3),
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, a handler that kills",
        workload=Workload(arrivals=FOUR, behaviours=(("c", Behaviour.KILLS),), retry=HASTY),
        bounds=Bounds(failures=3),
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, a handler that kills, and nobody sees its process die",
        workload=Workload(arrivals=FOUR, behaviours=(("c", Behaviour.KILLS),), retry=IMPATIENT, supervised=False),
        bounds=Bounds(expiries=2, failures=3),
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, two handlers that kill, no retries",
        workload=Workload(arrivals=FOUR, behaviours=(("b", Behaviour.KILLS), ("c", Behaviour.KILLS)), retry=HASTY),
        bounds=Bounds(),
        workers=2,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, optimistic store, given up while it is handled",
        workload=Workload(arrivals=FOUR, retry=HASTY, blocking=False, may_be_given_up=True, may_be_both=True),
        bounds=MANY_FAULTS,
        relays=1,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, given up with effects pending",
        workload=replace(GIVEN_UP, arrivals=FOUR),
        bounds=MANY_FAULTS,
        relays=1,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, a chain with relays and a transaction",
        workload=Workload(
            arrivals=(*copies("a", "b", "a"), Arrival("a", "d", source="elsewhere")),
            endpoints=CHAIN,
            effects=2,
            behaviours=(("b", Behaviour.UNSTEADY), ("a.0", Behaviour.UNSTEADY)),
            transactions=("t",),
            told=("t",),
        ),
        bounds=MANY_FAULTS,
        relays=1,
        workers=2,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, three transactions",
        workload=Workload(arrivals=(), transactions=("t", "u", "v")),
        bounds=Bounds(crashes=1, failures=6),
        workers=0,
        relays=2,
    ),
    Check(
        name="large, two effects, refused commits, another body",
        workload=Workload(
            arrivals=(*FOUR, Arrival("a", "d")),
            behaviours=(("c", Behaviour.REFUSED),),
            effects=2,
            retry=IMPATIENT,
            may_be_given_up=True,
            may_be_both=True,
        ),
        bounds=MANY_FAULTS,
        relays=1,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, entities and their histories",
        workload=Workload(
            arrivals=FOUR,
            behaviours=(("b", Behaviour.UNSTEADY),),
            deduplication=DeduplicationMode.HISTORY,
            entities=(("c", "f"),),
        ),
        bounds=MANY_FAULTS,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, a chain with a dedup store",
        workload=Workload(
            arrivals=FOUR,
            endpoints=CHAIN,
            behaviours=(("b", Behaviour.UNSTEADY),),
            deduplication=DeduplicationMode.DEDUP,
            entities=(("c", "f"),),
        ),
        bounds=MANY_FAULTS,
        workers=2,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, a chain with tokens and a sweeper",
        workload=Workload(
            arrivals=FOUR,
            endpoints=CHAIN,
            behaviours=(("b", Behaviour.UNSTEADY),),
            deduplication=DeduplicationMode.TOKENS,
            entities=(("c", "f"),),
        ),
        bounds=replace(MANY_FAULTS, sweeps=6),
        workers=2,
        sweepers=1,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, a chain with tokens in the same database",
        workload=Workload(
            arrivals=FOUR,
            endpoints=CHAIN,
            behaviours=(("b", Behaviour.UNSTEADY),),
            deduplication=DeduplicationMode.DATABASE,
            effects=2,
        ),
        bounds=MANY_FAULTS,
        relays=1,
        workers=2,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, artifacts",
        workload=Workload(
            arrivals=FOUR, behaviours=(("b", Behaviour.UNSTEADY),), deduplication=DeduplicationMode.HISTORY, artifacts=2
        ),
        bounds=MANY_FAULTS,
        workers=3,
        sweepers=1,
        batch=3,
        patience=ENDLESS,
    ),
    Check(
        name="large, artifacts, and sweepers that overtake",
        workload=Workload(arrivals=FOUR, deduplication=DeduplicationMode.HISTORY, artifacts=1, entities=(("c", "f"),)),
        bounds=replace(MANY_FAULTS, sweeps=6),
        workers=3,
        sweepers=1,
        batch=2,
        patience=ENDLESS,
    ),
    Check(
        name="large, clients, control messages and two workers",
        workload=Workload(
            arrivals=(),
            clients=(
                Client("t", key="k"),
                Client("t", key="k", entity="f"),
                Client("t", key="k", entity=""),
                Client("u", key="l"),
                Client("v"),
            ),
            deduplication=DeduplicationMode.HISTORY,
            looks=2,
        ),
        bounds=Bounds(crashes=2, expiries=2, failures=3),
        workers=2,
        batch=2,
        patience=ENDLESS,
        reaches=("load", "ack"),
    ),
    Check(
        name="large, clients and relays",
        workload=Workload(
            arrivals=(),
            clients=(*(Client("t", key="k", request="this") for _ in range(3)), Client("t", key="k", request="that")),
        ),
        bounds=Bounds(crashes=2, failures=4),
        workers=0,
        relays=2,
    ),
    Check(
        name="large, a ring",
        workload=Workload(
            arrivals=(*LATE, *AHEAD, *copies("c", instant=OLD)),
            behaviours=(("c", Behaviour.UNSTEADY),),
            deduplication=DeduplicationMode.RING,
        ),
        bounds=MANY_FAULTS,
        workers=3,
        janitors=2,
        batch=3,
        patience=ENDLESS,
    ),
)
