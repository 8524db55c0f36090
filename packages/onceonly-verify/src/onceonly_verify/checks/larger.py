"""Worlds larger than can be explored by default: DEEP are explored as far as a budget goes, LARGE by random schedules."""

from msgspec.structs import replace

from onceonly.model.retry import Retry
from onceonly_verify.check import CHAIN, GIVEN_UP, GIVING_UP, HASTY, IMPATIENT, ONE_OF_EACH, TWICE, Check, named
from onceonly_verify.checks.batches import PAIR, VARYING, published
from onceonly_verify.checks.timed import LATE, LONGER_CHECKS, REFUSING, TWO_AHEAD
from onceonly_verify.checks.tokens import LARGER_DATABASE_CHECKS, LARGER_TOKEN_CHECKS
from onceonly_verify.clock import OLD
from onceonly_verify.workload import Batched, Behaviour, Client, DeduplicationMode, MessageArrival, Workload, copies
from onceonly_verify.world import Bounds

THREE = copies("a", "a", "a")
FOUR = copies("a", "b", "c", "a")
MANY_FAULTS = Bounds(crashes=3, expiries=3, failures=3, whims=3)
ENDLESS = 60
"""So many deliveries or copies of four messages with nine faults show that there is no end to it."""

_DEEP = {
    "two events with two subscribers, a dedup store, and a crash": Check(
        published(DeduplicationMode.DEDUP, effects=2),
        Bounds(crashes=1),
        workers=1,
        reaches=("load", "save", "dedup-contains", "dedup-add", "ack"),
    ),
    "two events with two subscribers, tokens and a failed call": Check(
        published(DeduplicationMode.TOKENS, effects=2),
        Bounds(failures=1),
        workers=1,
        reaches=("load", "save", "token-live", "ack"),
    ),
    "two messages with two artifacts each, two workers and a crash": Check(
        Workload(PAIR, deduplication=DeduplicationMode.HISTORY, artifacts=2),
        Bounds(crashes=1),
        sweepers=1,
        batch=2,
        reaches=("load", "save", "send", "artifact-create", "ack"),
    ),
    "two messages that sometimes fail, with different counts, and a failed call": Check(
        Workload(PAIR, behaviours=(("a", Behaviour.FAILS), ("b", Behaviour.UNSTEADY)), retry=Retry(immediate=2, delayed=0)),
        Bounds(failures=1, whims=2),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    "two messages with two effects each, two workers, a crash and a failed call": Check(
        Workload(PAIR, effects=2, behaviours=VARYING), Bounds(crashes=1, failures=1, whims=2), batch=2
    ),
    "two copies, blocking store, two crashes": Check(Workload(TWICE), Bounds(crashes=2, expiries=1, failures=1)),
    "two copies, blocking store, two failed calls": Check(Workload(TWICE), Bounds(crashes=1, expiries=1, failures=2)),
    "two copies, blocking store, three workers": Check(Workload(TWICE), Bounds(crashes=1, expiries=1, failures=1), workers=3),
    "three copies, blocking store": Check(Workload(THREE), Bounds(crashes=1, failures=1), workers=3),
    "three copies, optimistic store": Check(Workload(THREE, blocking=False), Bounds(failures=1), workers=3),
    "two copies, optimistic store, every kind of fault": Check(Workload(TWICE, blocking=False), ONE_OF_EACH),
    "two copies, optimistic store, two failed calls": Check(Workload(TWICE, blocking=False), Bounds(crashes=1, failures=2)),
    "duplicates within a batch of three": Check(Workload(THREE), Bounds(crashes=1, failures=1), batch=3),
    "overlapping batches, and a crash": Check(
        Workload(copies("a", "b", "a"), blocking=False), Bounds(crashes=1, failures=1), batch=2
    ),
    "two messages in one unit, one is unsteady, and a crash": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)), Bounds(crashes=1, failures=1, whims=2), batch=2
    ),
    "a message that ruins every unit it is in, and a failed call": Check(
        Workload(copies("a", "b"), behaviours=(("b", Behaviour.RUINS),), retry=HASTY),
        Bounds(failures=1),
        workers=1,
        batch=2,
        patience=20,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "release"),
    ),
    "a handler that fails, two crashes and two failed calls": Check(
        Workload(copies("a"), behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        Bounds(crashes=2, failures=2),
        reaches=("begin", "send", "dead-letter", "ack", "release"),
    ),
    "given up while it is handled, blocking store, and a failed call": Check(
        GIVEN_UP, Bounds(crashes=2, expiries=1, failures=1), relays=1, reaches=GIVING_UP
    ),
    "given up while it is handled, optimistic store, and a failed call": Check(
        replace(GIVEN_UP, blocking=False), Bounds(crashes=2, expiries=1, failures=1), relays=1, reaches=GIVING_UP
    ),
    "a control message, two attempts with one key, and two workers": Check(
        Workload(clients=(Client("t", key="k"), Client("t", key="k")), deduplication=DeduplicationMode.HISTORY),
        Bounds(crashes=1),
        reaches=("load", "ack"),
    ),
    "tokens elsewhere, two messages in one batch, and a relay": Check(
        Workload(copies("a", "b"), deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(crashes=1, failures=1),
        workers=1,
        relays=1,
        batch=2,
        reaches=("begin", "commit", "token-live", "token-activate", "send", "token-remove", "forget", "ack"),
    ),
    "tokens and two sweepers, a crash": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.TOKENS),
        Bounds(crashes=1, sweeps=2),
        workers=1,
        sweepers=2,
        reaches=("load", "save", "token-live", "token-prepare", "token-activate", "send", "token-remove", "ack"),
    ),
    "a client that retries, and a control message": Check(
        Workload(clients=(Client("t", key="k"),), clients_retry=True, deduplication=DeduplicationMode.HISTORY),
        Bounds(failures=1),
        workers=1,
        reaches=("load", "ack"),
    ),
    "asked by another service, a relay, and a crash": Check(
        Workload(asked=("ASK a",)), Bounds(crashes=1), workers=0, executors=2, relays=1, reaches=()
    ),
    "a ring, two slices of one bucket, a crash and a lease that ends early": Check(
        Workload((*LATE[:1], *TWO_AHEAD[:1]), deduplication=DeduplicationMode.RING),
        Bounds(crashes=1, expiries=1),
        janitors=2,
        reaches=REFUSING,
    ),
    "a ring, and copies that come late, and a failed call": Check(
        Workload(LATE, deduplication=DeduplicationMode.RING), ONE_OF_EACH, janitors=2, reaches=REFUSING
    ),
}
DEEP = named(_DEEP, LARGER_TOKEN_CHECKS, LARGER_DATABASE_CHECKS, LONGER_CHECKS)

_LARGE = {
    "large, blocking store": Check(
        Workload(FOUR, behaviours=(("b", Behaviour.UNSTEADY),)), MANY_FAULTS, workers=3, batch=3, patience=ENDLESS
    ),
    "large, optimistic store": Check(
        Workload(FOUR, behaviours=(("b", Behaviour.UNSTEADY),), blocking=False),
        MANY_FAULTS,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    "large, handlers that fail and kill": Check(
        Workload(
            FOUR,
            behaviours=(("b", Behaviour.FAILS), ("c", Behaviour.KILLS)),
            retry=Retry(immediate=2, delayed=0),
            may_be_given_up=True,
            may_be_both=True,
        ),
        MANY_FAULTS,
        relays=1,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    **{
        f"large, a batch handler that {how.value}": Check(
            Workload(
                FOUR,
                behaviours=(("b", Behaviour.FAILS), ("c", Behaviour.UNSTEADY)),
                retry=Retry(immediate=3, delayed=0),
                batched=how,
                may_be_both=True,
            ),
            MANY_FAULTS,
            relays=1,
            workers=3,
            batch=3,
            isolated=how is Batched.SETS_ASIDE,
            patience=ENDLESS,
        )
        for how in Batched
    },
    "large, a batch handler that kills": Check(
        Workload(FOUR, behaviours=(("c", Behaviour.KILLS),), retry=IMPATIENT, supervised=False, batched=Batched.FAILS),
        Bounds(expiries=2, failures=3),
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    "large, a handler that kills": Check(
        Workload(FOUR, behaviours=(("c", Behaviour.KILLS),), retry=HASTY),
        Bounds(failures=3),
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    "large, a handler that kills, and nobody sees its process die": Check(
        Workload(FOUR, behaviours=(("c", Behaviour.KILLS),), retry=IMPATIENT, supervised=False),
        Bounds(expiries=2, failures=3),
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    "large, two handlers that kill, no retries": Check(
        Workload(FOUR, behaviours=(("b", Behaviour.KILLS), ("c", Behaviour.KILLS)), retry=HASTY),
        workers=2,
        batch=3,
        patience=ENDLESS,
    ),
    "large, optimistic store, given up while it is handled": Check(
        Workload(FOUR, retry=HASTY, blocking=False, may_be_given_up=True, may_be_both=True),
        MANY_FAULTS,
        relays=1,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    "large, given up with effects pending": Check(
        replace(GIVEN_UP, arrivals=FOUR), MANY_FAULTS, relays=1, workers=3, batch=3, patience=ENDLESS
    ),
    "large, a chain with relays and a transaction": Check(
        Workload(
            (*copies("a", "b", "a"), MessageArrival("a", "d", source="elsewhere")),
            endpoints=CHAIN,
            effects=2,
            behaviours=(("b", Behaviour.UNSTEADY), ("a.0", Behaviour.UNSTEADY)),
            transactions=("t",),
            told=("t",),
        ),
        MANY_FAULTS,
        relays=1,
        workers=2,
        batch=3,
        patience=ENDLESS,
    ),
    "large, three transactions": Check(
        Workload(transactions=("t", "u", "v")), Bounds(crashes=1, failures=6), workers=0, relays=2
    ),
    "large, two effects, refused commits, another body": Check(
        Workload(
            (*FOUR, MessageArrival("a", "d")),
            behaviours=(("c", Behaviour.REFUSED),),
            effects=2,
            retry=IMPATIENT,
            may_be_given_up=True,
            may_be_both=True,
        ),
        MANY_FAULTS,
        relays=1,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    "large, entities and their histories": Check(
        Workload(
            FOUR, behaviours=(("b", Behaviour.UNSTEADY),), deduplication=DeduplicationMode.HISTORY, entities=(("c", "f"),)
        ),
        MANY_FAULTS,
        workers=3,
        batch=3,
        patience=ENDLESS,
    ),
    "large, a chain with a dedup store": Check(
        Workload(
            FOUR,
            endpoints=CHAIN,
            behaviours=(("b", Behaviour.UNSTEADY),),
            deduplication=DeduplicationMode.DEDUP,
            entities=(("c", "f"),),
        ),
        MANY_FAULTS,
        workers=2,
        batch=3,
        patience=ENDLESS,
    ),
    "large, a chain with tokens and a sweeper": Check(
        Workload(
            FOUR,
            endpoints=CHAIN,
            behaviours=(("b", Behaviour.UNSTEADY),),
            deduplication=DeduplicationMode.TOKENS,
            entities=(("c", "f"),),
        ),
        replace(MANY_FAULTS, sweeps=6),
        workers=2,
        sweepers=1,
        batch=3,
        patience=ENDLESS,
    ),
    "large, a chain with tokens in the same database": Check(
        Workload(
            FOUR, endpoints=CHAIN, behaviours=(("b", Behaviour.UNSTEADY),), deduplication=DeduplicationMode.DATABASE, effects=2
        ),
        MANY_FAULTS,
        relays=1,
        workers=2,
        batch=3,
        patience=ENDLESS,
    ),
    "large, artifacts": Check(
        Workload(FOUR, behaviours=(("b", Behaviour.UNSTEADY),), deduplication=DeduplicationMode.HISTORY, artifacts=2),
        MANY_FAULTS,
        workers=3,
        sweepers=1,
        batch=3,
        patience=ENDLESS,
    ),
    "large, artifacts, and sweepers that overtake": Check(
        Workload(FOUR, deduplication=DeduplicationMode.HISTORY, artifacts=1, entities=(("c", "f"),)),
        replace(MANY_FAULTS, sweeps=6),
        workers=3,
        sweepers=1,
        batch=2,
        patience=ENDLESS,
    ),
    "large, clients, control messages and two workers": Check(
        Workload(
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
        Bounds(crashes=2, expiries=2, failures=3),
        workers=2,
        batch=2,
        patience=ENDLESS,
        reaches=("load", "ack"),
    ),
    "large, clients and relays": Check(
        Workload(clients=(*(Client("t", key="k", request="this") for _ in range(3)), Client("t", key="k", request="that"))),
        Bounds(crashes=2, failures=4),
        workers=0,
        relays=2,
    ),
    "large, a ring": Check(
        Workload(
            (*LATE, *TWO_AHEAD, *copies("c", instant=OLD)),
            behaviours=(("c", Behaviour.UNSTEADY),),
            deduplication=DeduplicationMode.RING,
        ),
        MANY_FAULTS,
        workers=3,
        janitors=2,
        batch=3,
        patience=ENDLESS,
    ),
}

LARGE = named(_LARGE)
