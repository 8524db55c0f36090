"""The checks of batches: several messages and several effects in one unit, and what is set aside from a unit."""

from msgspec.structs import replace

from onceonly.model.retry import Retry
from onceonly_verify.check import HASTY, IMPATIENT, Check
from onceonly_verify.workload import BILLING, SHIPPING, SHOP, Arrival, Behaviour, DeduplicationMode, Flaw, Workload, copies
from onceonly_verify.world import Bounds

PAIR = copies("a", "b")
PUBLISHED = (SHOP, BILLING, SHIPPING)
GIVING_UP = ("begin", "commit", "send", "forget", "dead-letter", "ack")
FAILING = (("a", Behaviour.FAILS), ("b", Behaviour.FAILS))
UNSTEADY = (("a", Behaviour.UNSTEADY), ("b", Behaviour.UNSTEADY))
VARYING = (("a", Behaviour.VARIES), ("b", Behaviour.VARIES))
ON_DOCUMENTS = ("load", "save", "send", "ack")
GIVEN_UP = ("load", "save", "dead-letter", "ack")
UNENTITLED = Arrival("u", "u", flaw=Flaw.UNENTITLED)
FLAWED = (*PAIR, Arrival("u", "u", flaw=Flaw.UNREADABLE), Arrival("n", "n", flaw=Flaw.UNNAMED))


def published(deduplication: DeduplicationMode, *, effects: int = 1) -> Workload:
    """Return a workload in which two endpoints subscribe to what the first one publishes."""
    return Workload(
        arrivals=copies("a"), endpoints=PUBLISHED, published=True, quiet=True, effects=effects, deduplication=deduplication
    )


def giving_up(deduplication: DeduplicationMode) -> Workload:
    """Return a workload in which any attempt at each of two messages may work, or fail for good."""
    return Workload(arrivals=PAIR, behaviours=UNSTEADY, deduplication=deduplication, retry=HASTY, may_be_both=True)


BATCH_CHECKS: tuple[Check, ...] = (
    Check(
        name="two messages with two effects each, and a failed call",
        workload=Workload(arrivals=PAIR, effects=2),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
    ),
    Check(
        name="two messages with two effects each, one is always refused",
        workload=Workload(arrivals=PAIR, effects=2, refused=(0,), retry=HASTY),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    Check(
        name="two messages that fail in one unit, and a failed call",
        workload=Workload(arrivals=PAIR, behaviours=FAILING, retry=IMPATIENT),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    Check(
        name="two messages that sometimes fail, with different counts",
        workload=Workload(
            arrivals=PAIR,
            behaviours=(("a", Behaviour.FAILS), ("b", Behaviour.UNSTEADY)),
            retry=Retry(immediate=2, delayed=0),
        ),
        bounds=Bounds(whims=2),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    Check(
        name="a message that must run alone and fails",
        workload=Workload(arrivals=copies("a", "a"), behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT, supervised=False),
        bounds=Bounds(crashes=1),
        workers=1,
        batch=2,
        reaches=("begin", "dead-letter", "ack"),
    ),
    Check(
        name="two copies of a message that fails, and a crash",
        workload=Workload(
            arrivals=copies("a", "a"), behaviours=(("a", Behaviour.UNSTEADY),), retry=IMPATIENT, may_be_both=True
        ),
        bounds=Bounds(crashes=1, whims=2),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    Check(
        name="two messages whose handlers decide differently on each run, and a crash",
        workload=Workload(arrivals=PAIR, behaviours=VARYING, effects=2),
        bounds=Bounds(crashes=1, whims=2),
        workers=1,
        batch=2,
    ),
    Check(
        name="two copies of a message whose handler decides differently on each run",
        workload=Workload(arrivals=copies("a", "a"), behaviours=VARYING, effects=2, blocking=False),
        bounds=Bounds(failures=1, whims=2),
    ),
    Check(
        name="unreadable messages beside two good ones",
        workload=Workload(arrivals=FLAWED),
        bounds=Bounds(failures=1),
        workers=1,
        batch=4,
        reaches=GIVING_UP,
    ),
    Check(
        name="another body and another time under one id, beside a good message",
        workload=Workload(
            arrivals=(
                *copies("a", "b"),
                Arrival("a", "x"),
                Arrival("a", "y"),
                Arrival("a", "a", time="2026-01-01T00:00:00Z"),
            )
        ),
        bounds=Bounds(),
        workers=1,
        batch=5,
        reaches=GIVING_UP,
    ),
    Check(
        name="two messages in a batch, a relay and a failed call",
        workload=Workload(arrivals=PAIR, effects=2),
        bounds=Bounds(failures=1),
        workers=1,
        relays=1,
        batch=2,
    ),
    Check(
        name="an event with two subscribers",
        workload=Workload(arrivals=copies("a", "a"), endpoints=PUBLISHED, published=True, quiet=True),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("begin", "commit", "ack"),
    ),
    Check(
        name="an event with two subscribers, a dedup store",
        workload=published(DeduplicationMode.DEDUP),
        bounds=Bounds(),
        workers=1,
        reaches=("load", "save", "dedup-contains", "dedup-add", "ack"),
    ),
    Check(
        name="an event with two subscribers, tokens and a failed call",
        workload=published(DeduplicationMode.TOKENS),
        bounds=Bounds(failures=1),
        workers=1,
        reaches=("load", "save", "token-live", "ack"),
    ),
    Check(
        name="two events with two subscribers, tokens in the same database",
        workload=published(DeduplicationMode.DATABASE, effects=2),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("begin", "commit", "ack"),
    ),
    Check(
        name="two messages of one entity in a batch, its history, and a failed call",
        workload=Workload(arrivals=PAIR, deduplication=DeduplicationMode.HISTORY),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=ON_DOCUMENTS,
    ),
    Check(
        name="two messages of one entity in a batch, a dedup store, and a failed call",
        workload=Workload(arrivals=PAIR, deduplication=DeduplicationMode.DEDUP),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=(*ON_DOCUMENTS, "dedup-contains", "dedup-add"),
    ),
    Check(
        name="two messages of one entity in a batch, a dedup store, two workers and a crash",
        workload=Workload(arrivals=PAIR, deduplication=DeduplicationMode.DEDUP),
        bounds=Bounds(crashes=1),
        batch=2,
        reaches=(*ON_DOCUMENTS, "dedup-contains", "dedup-add"),
    ),
    Check(
        name="two messages and one without a token in a batch, and a failed call",
        workload=Workload(arrivals=(*PAIR, UNENTITLED), deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        batch=3,
        reaches=(*ON_DOCUMENTS, "token-live", "token-prepare", "token-activate", "token-remove"),
    ),
    Check(
        name="two messages of one entity in a batch, tokens, two workers and a crash",
        workload=Workload(arrivals=PAIR, effects=2, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1),
        batch=2,
        reaches=(*ON_DOCUMENTS, "token-live", "token-prepare", "token-activate", "token-remove"),
    ),
    Check(
        name="two messages in a batch, tokens elsewhere, and a failed call",
        workload=Workload(arrivals=PAIR, effects=2, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(failures=1),
        workers=1,
        relays=1,
        sweepers=1,
        batch=2,
        reaches=("begin", "commit", "ack"),
    ),
    Check(
        name="two messages in a batch, tokens in the same database, and a relay",
        workload=Workload(arrivals=(*PAIR, UNENTITLED), effects=2, deduplication=DeduplicationMode.DATABASE),
        bounds=Bounds(failures=1),
        workers=1,
        relays=1,
        batch=3,
        reaches=("begin", "commit", "ack"),
    ),
    Check(
        name="two messages with two artifacts each",
        workload=Workload(arrivals=PAIR, deduplication=DeduplicationMode.HISTORY, artifacts=2),
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        batch=2,
        reaches=(*ON_DOCUMENTS, "artifact-create"),
    ),
    Check(
        name="two messages given up while an earlier save may land, history",
        workload=giving_up(DeduplicationMode.HISTORY),
        bounds=Bounds(failures=1, whims=2),
        workers=1,
        batch=2,
        reaches=GIVEN_UP,
    ),
    Check(
        name="two messages given up while an earlier save may land, a dedup store",
        workload=giving_up(DeduplicationMode.DEDUP),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        batch=2,
        reaches=GIVEN_UP,
    ),
    Check(
        name="two messages given up while an earlier save may land, tokens",
        workload=giving_up(DeduplicationMode.TOKENS),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        sweepers=1,
        batch=2,
        reaches=GIVEN_UP,
    ),
    Check(
        name="two messages given up while an earlier commit may land, blocking store",
        workload=giving_up(DeduplicationMode.CLAIMS),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        relays=1,
        batch=2,
        reaches=("begin", "commit", "dead-letter", "ack"),
    ),
    Check(
        name="two messages given up while an earlier commit may land, optimistic store",
        workload=replace(giving_up(DeduplicationMode.CLAIMS), blocking=False),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        relays=1,
        batch=2,
        reaches=("begin", "commit", "dead-letter", "ack"),
    ),
    Check(
        name="two messages given up while an earlier commit may land, tokens in the same database",
        workload=giving_up(DeduplicationMode.DATABASE),
        bounds=Bounds(failures=1, whims=1),
        workers=1,
        relays=1,
        batch=2,
        reaches=("begin", "commit", "dead-letter", "ack"),
    ),
)
