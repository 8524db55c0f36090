"""The checks of what is stored elsewhere: records in entities, a dedup store, tokens, artifacts."""

from onceonly_verify.check import CHAIN, HASTY, ONE_OF_EACH, TWICE, Check
from onceonly_verify.mutations import change
from onceonly_verify.mutations.operations import drop, replace
from onceonly_verify.mutations.places import argument, branch, condition
from onceonly_verify.workload import Arrival, Behaviour, DeduplicationMode, Workload, copies
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
    return Workload(arrivals=copies("a"), behaviours=unsteady, deduplication=deduplication, retry=HASTY, may_be_both=True)


ANOTHER_BODY = (Arrival("a", "a"), Arrival("a", "b"))
"""Two messages under one id."""
OLDER = (change("documents.store", "DocumentUnit._kept", drop(branch(condition("history")))),)
"""A version that stored a record without effects like any other: nothing is pending, and no time of the finish is stored."""
WITHOUT_BODIES = (change("algorithms.admission", "DedupStoreAdmission.retire", replace(argument("_done.add", 1), "{}")),)
"""A version that added marks without the fingerprints of bodies."""

STORED_ELSEWHERE: tuple[Check, ...] = (
    Check(
        name="an entity and its history, one message",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY),
        bounds=ONE_OF_EACH,
        reaches=ON_DOCUMENTS,
    ),
    Check(
        name="an entity and its history, two copies",
        workload=Workload(arrivals=TWICE, deduplication=DeduplicationMode.HISTORY),
        bounds=Bounds(crashes=1, failures=1),
        reaches=ON_DOCUMENTS,
    ),
    Check(
        name="given up while an earlier save may land, history",
        workload=_giving_up(DeduplicationMode.HISTORY),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        reaches=GIVEN_UP,
    ),
    Check(
        name="given up while an earlier save may land, history and a crash",
        workload=_giving_up(DeduplicationMode.HISTORY),
        bounds=Bounds(crashes=1, whims=1),
        workers=1,
        reaches=GIVEN_UP,
    ),
    Check(
        name="given up while an earlier save may land, a dedup store",
        workload=_giving_up(DeduplicationMode.DEDUP),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        reaches=(*GIVEN_UP, "dedup-contains"),
    ),
    Check(
        name="given up while an earlier save may land, tokens",
        workload=_giving_up(DeduplicationMode.TOKENS),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        sweepers=1,
        reaches=(*GIVEN_UP, "token-live"),
    ),
    Check(
        name="an entity and its history, two messages",
        workload=Workload(arrivals=copies("a", "b"), deduplication=DeduplicationMode.HISTORY),
        bounds=Bounds(crashes=1),
        reaches=ON_DOCUMENTS,
    ),
    Check(
        name="two entities in one batch",
        workload=Workload(arrivals=copies("a", "b"), deduplication=DeduplicationMode.HISTORY, entities=(("b", "f"),)),
        bounds=Bounds(crashes=1),
        batch=2,
        reaches=ON_DOCUMENTS,
    ),
    Check(
        name="an older version beside a newer one",
        workload=Workload(arrivals=TWICE, deduplication=DeduplicationMode.HISTORY, quiet=True),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        older=OLDER,
        reaches=("load", "save", "ack"),
    ),
    Check(
        name="a dedup store, an older version beside a newer one",
        workload=Workload(arrivals=TWICE, deduplication=DeduplicationMode.DEDUP, quiet=True),
        bounds=Bounds(),
        workers=1,
        older=WITHOUT_BODIES,
        reaches=("load", "save", "dedup-contains", "dedup-add", "ack"),
    ),
    Check(
        name="a dedup store, another body",
        workload=Workload(arrivals=ANOTHER_BODY, deduplication=DeduplicationMode.DEDUP),
        bounds=Bounds(crashes=1),
        reaches=(*DEDUPLICATED, "dead-letter"),
    ),
    Check(
        name="a dedup store, another body about another entity",
        workload=Workload(
            arrivals=ANOTHER_BODY, deduplication=DeduplicationMode.DEDUP, entities=(("b", "f"),), may_be_both=True
        ),
        bounds=Bounds(crashes=1),
        reaches=(*DEDUPLICATED, "dead-letter"),
    ),
    Check(
        name="a dedup store, two copies",
        workload=Workload(arrivals=TWICE, deduplication=DeduplicationMode.DEDUP),
        bounds=Bounds(crashes=1),
        reaches=DEDUPLICATED,
    ),
    Check(
        name="a dedup store, a lease that ends early",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.DEDUP),
        bounds=Bounds(crashes=1, expiries=1),
        reaches=DEDUPLICATED,
    ),
    Check(
        name="a dedup store, a lease that ends early, and a failed call",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.DEDUP),
        bounds=Bounds(expiries=1, failures=1),
        reaches=DEDUPLICATED,
    ),
    Check(
        name="a dedup store, a crash and a failed call",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.DEDUP),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        reaches=DEDUPLICATED,
    ),
    Check(
        name="tokens, two copies",
        workload=Workload(arrivals=TWICE, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1),
        reaches=TOKENIZED,
    ),
    Check(
        name="tokens, a lease that ends early",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1, expiries=1),
        reaches=TOKENIZED,
    ),
    Check(
        name="tokens, a lease that ends early, and a failed call",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(expiries=1, failures=1),
        reaches=TOKENIZED,
    ),
    Check(
        name="tokens and a sweeper, a crash",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1, sweeps=2),
        workers=1,
        sweepers=1,
        reaches=TOKENIZED,
    ),
    Check(
        name="tokens and a sweeper, a failed call",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(failures=1, sweeps=2),
        workers=1,
        sweepers=1,
        reaches=TOKENIZED,
    ),
    Check(
        name="tokens and a sweeper, two copies",
        workload=Workload(arrivals=TWICE, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(sweeps=1),
        sweepers=1,
        reaches=TOKENIZED,
    ),
    Check(
        name="a chain with tokens, two copies and a failed call",
        workload=Workload(arrivals=TWICE, endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(failures=1),
        workers=1,
        reaches=RECEIVED,
    ),
    Check(
        name="a chain with tokens, a crash and a failed call",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        reaches=RECEIVED,
    ),
    Check(
        name="a chain with tokens and a sweeper",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1, expiries=1, sweeps=1),
        workers=1,
        sweepers=1,
        reaches=RECEIVED,
    ),
    Check(
        name="tokens in the same database, one message",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.DATABASE),
        bounds=ONE_OF_EACH,
        reaches=IN_DATABASE,
    ),
    Check(
        name="tokens in the same database, a chain",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.DATABASE),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        reaches=IN_DATABASE,
    ),
    Check(
        name="tokens in the same database, and a relay",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.DATABASE),
        bounds=Bounds(crashes=1, expiries=1),
        relays=1,
        reaches=IN_DATABASE,
    ),
    Check(
        name="an artifact, a crash and a failed call",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        sweepers=1,
        reaches=MADE,
    ),
    Check(
        name="an artifact, two attempts",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, quiet=True),
        bounds=Bounds(expiries=1),
        sweepers=1,
        reaches=("load", "save", "artifact-create", "ack"),
    ),
    Check(
        name="an artifact, and early sweeps",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1),
        bounds=Bounds(sweeps=2),
        workers=1,
        sweepers=1,
        reaches=MADE,
    ),
    Check(
        name="an artifact, and two fences for other messages",
        workload=Workload(
            arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, quiet=True, fences=2, uncancelled=True
        ),
        bounds=Bounds(),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "artifact-create", "ack"),
    ),
    Check(
        name="an artifact, a fence for another message, and an early sweep",
        workload=Workload(
            arrivals=copies("a"),
            behaviours=(("a", Behaviour.FAILS),),
            deduplication=DeduplicationMode.HISTORY,
            artifacts=1,
            quiet=True,
            fences=1,
            retry=HASTY,
        ),
        bounds=Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "dead-letter", "ack"),
    ),
    Check(
        name="an artifact, and a sweeper that overtakes",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, quiet=True),
        bounds=Bounds(crashes=1, sweeps=1),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "artifact-create", "ack"),
    ),
)
