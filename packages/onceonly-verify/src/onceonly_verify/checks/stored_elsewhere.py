"""The checks of what is stored elsewhere: records in entities, a dedup store, tokens, artifacts."""

from onceonly_verify.check import CHAIN, HASTY, ONE_OF_EACH, TWICE, Check
from onceonly_verify.workload import Behaviour, DeduplicationMode, MessageArrival, Workload, copies
from onceonly_verify.world import Bounds

ON_DOCUMENTS = ("load", "save", "send", "ack")
DEDUPLICATED = (*ON_DOCUMENTS, "dedup-contains", "dedup-add")
RECEIVED = ("load", "save", "token-live", "token-remove", "ack")
"""What also an endpoint does that sends nothing."""
TOKENIZED = (*RECEIVED, "token-prepare", "token-activate", "send")
IN_DATABASE = ("begin", "commit", "ack")
MADE = (*ON_DOCUMENTS, "artifact-create")
GIVEN_UP = ("load", "save", "dead-letter", "ack")


def _giving_up(deduplication: DeduplicationMode) -> Workload:
    """Return a workload in which any attempt at the message may work, or fail for good."""
    unsteady = (("a", Behaviour.UNSTEADY),)
    return Workload(copies("a"), behaviours=unsteady, deduplication=deduplication, retry=HASTY, may_be_both=True)


ANOTHER_BODY = (MessageArrival("a", "a"), MessageArrival("a", "b"))
"""Two messages under one id."""

STORED_ELSEWHERE = {
    "an entity and its history, one message": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.HISTORY), ONE_OF_EACH, reaches=ON_DOCUMENTS
    ),
    "an entity and its history, two copies": Check(
        Workload(TWICE, deduplication=DeduplicationMode.HISTORY), Bounds(crashes=1, failures=1), reaches=ON_DOCUMENTS
    ),
    "given up while an earlier save may land, history": Check(
        _giving_up(DeduplicationMode.HISTORY), Bounds(failures=1, whims=1), workers=1, reaches=GIVEN_UP
    ),
    "given up while an earlier save may land, history and a crash": Check(
        _giving_up(DeduplicationMode.HISTORY), Bounds(crashes=1, whims=1), workers=1, reaches=GIVEN_UP
    ),
    "given up while an earlier save may land, a dedup store": Check(
        _giving_up(DeduplicationMode.DEDUP), Bounds(failures=1, whims=1), workers=1, reaches=(*GIVEN_UP, "dedup-contains")
    ),
    "given up while an earlier save may land, tokens": Check(
        _giving_up(DeduplicationMode.TOKENS),
        Bounds(failures=1, whims=1),
        workers=1,
        sweepers=1,
        reaches=(*GIVEN_UP, "token-live"),
    ),
    "an entity and its history, two messages": Check(
        Workload(copies("a", "b"), deduplication=DeduplicationMode.HISTORY), Bounds(crashes=1), reaches=ON_DOCUMENTS
    ),
    "two entities in one batch": Check(
        Workload(copies("a", "b"), deduplication=DeduplicationMode.HISTORY, entities=(("b", "f"),)),
        Bounds(crashes=1),
        batch=2,
        reaches=ON_DOCUMENTS,
    ),
    "a dedup store, another body": Check(
        Workload(ANOTHER_BODY, deduplication=DeduplicationMode.DEDUP), Bounds(crashes=1), reaches=(*DEDUPLICATED, "dead-letter")
    ),
    "a dedup store, another body about another entity": Check(
        Workload(ANOTHER_BODY, deduplication=DeduplicationMode.DEDUP, entities=(("b", "f"),), may_be_both=True),
        Bounds(crashes=1),
        reaches=(*DEDUPLICATED, "dead-letter"),
    ),
    "a dedup store, two copies": Check(
        Workload(TWICE, deduplication=DeduplicationMode.DEDUP), Bounds(crashes=1), reaches=DEDUPLICATED
    ),
    "a dedup store, a lease that ends early": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.DEDUP), Bounds(crashes=1, expiries=1), reaches=DEDUPLICATED
    ),
    "a dedup store, a lease that ends early, and a failed call": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.DEDUP), Bounds(expiries=1, failures=1), reaches=DEDUPLICATED
    ),
    "a dedup store, a crash and a failed call": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.DEDUP),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=DEDUPLICATED,
    ),
    "tokens, two copies": Check(Workload(TWICE, deduplication=DeduplicationMode.TOKENS), Bounds(crashes=1), reaches=TOKENIZED),
    "tokens, a lease that ends early": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.TOKENS), Bounds(crashes=1, expiries=1), reaches=TOKENIZED
    ),
    "tokens, a lease that ends early, and a failed call": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.TOKENS), Bounds(expiries=1, failures=1), reaches=TOKENIZED
    ),
    "tokens and a sweeper, a crash": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.TOKENS),
        Bounds(crashes=1, sweeps=2),
        workers=1,
        sweepers=1,
        reaches=TOKENIZED,
    ),
    "tokens and a sweeper, a failed call": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.TOKENS),
        Bounds(failures=1, sweeps=2),
        workers=1,
        sweepers=1,
        reaches=TOKENIZED,
    ),
    "tokens and a sweeper, two copies": Check(
        Workload(TWICE, deduplication=DeduplicationMode.TOKENS), Bounds(sweeps=1), sweepers=1, reaches=TOKENIZED
    ),
    "a chain with tokens, two copies and a failed call": Check(
        Workload(TWICE, endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.TOKENS),
        Bounds(failures=1),
        workers=1,
        reaches=RECEIVED,
    ),
    "a chain with tokens, a crash and a failed call": Check(
        Workload(copies("a"), endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.TOKENS),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=RECEIVED,
    ),
    "a chain with tokens and a sweeper": Check(
        Workload(copies("a"), endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.TOKENS),
        Bounds(crashes=1, expiries=1, sweeps=1),
        workers=1,
        sweepers=1,
        reaches=RECEIVED,
    ),
    "tokens in the same database, one message": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.DATABASE), ONE_OF_EACH, reaches=IN_DATABASE
    ),
    "tokens in the same database, a chain": Check(
        Workload(copies("a"), endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.DATABASE),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=IN_DATABASE,
    ),
    "tokens in the same database, and a relay": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.DATABASE),
        Bounds(crashes=1, expiries=1),
        relays=1,
        reaches=IN_DATABASE,
    ),
    "an artifact, a crash and a failed call": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1),
        Bounds(crashes=1, failures=1),
        workers=1,
        sweepers=1,
        reaches=MADE,
    ),
    "an artifact, two attempts": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, quiet=True),
        Bounds(expiries=1),
        sweepers=1,
        reaches=("load", "save", "artifact-create", "ack"),
    ),
    "an artifact, and early sweeps": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1),
        Bounds(sweeps=2),
        workers=1,
        sweepers=1,
        reaches=MADE,
    ),
    "an artifact, and two fences for other messages": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, quiet=True, fences=2, uncancelled=True),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "artifact-create", "ack"),
    ),
    "an artifact, a fence for another message, and an early sweep": Check(
        Workload(
            copies("a"),
            behaviours=(("a", Behaviour.FAILS),),
            deduplication=DeduplicationMode.HISTORY,
            artifacts=1,
            quiet=True,
            fences=1,
            retry=HASTY,
        ),
        Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "dead-letter", "ack"),
    ),
    "an artifact, and a sweeper that overtakes": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, quiet=True),
        Bounds(crashes=1, sweeps=1),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "artifact-create", "ack"),
    ),
}
