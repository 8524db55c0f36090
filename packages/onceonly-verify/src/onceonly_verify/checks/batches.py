"""The checks of batches: several messages of one kind or of different kinds in one unit, and what is set aside from a unit."""

from msgspec.structs import replace

from onceonly.model.retry import Retry
from onceonly_verify.check import GIVING_UP, HANDLED, HASTY, IMPATIENT, Check
from onceonly_verify.clock import OLD
from onceonly_verify.workload import (
    BILLING,
    SHIPPING,
    SHOP,
    Behaviour,
    DeduplicationMode,
    Flaw,
    MessageArrival,
    Workload,
    copies,
)
from onceonly_verify.world import Bounds

PAIR = copies("a", "b")
PUBLISHED = (SHOP, BILLING, SHIPPING)
FAILING = (("a", Behaviour.FAILS), ("b", Behaviour.FAILS))
UNSTEADY = (("a", Behaviour.UNSTEADY), ("b", Behaviour.UNSTEADY))
VARYING = (("a", Behaviour.VARIES), ("b", Behaviour.VARIES))
ON_DOCUMENTS = ("load", "save", "send", "ack")
GIVEN_UP = ("load", "save", "dead-letter", "ack")
UNENTITLED = MessageArrival("u", "u", flaw=Flaw.UNENTITLED)
FLAWED = (*PAIR, MessageArrival("u", "u", flaw=Flaw.UNREADABLE), MessageArrival("n", "n", flaw=Flaw.UNNAMED))


def published(deduplication: DeduplicationMode, *, effects: int = 1) -> Workload:
    """Return a workload in which two endpoints subscribe to what the first one publishes."""
    return Workload(copies("a"), endpoints=PUBLISHED, published=True, quiet=True, effects=effects, deduplication=deduplication)


def giving_up(deduplication: DeduplicationMode) -> Workload:
    """Return a workload in which any attempt at each of two messages may work, or fail for good."""
    return Workload(PAIR, behaviours=UNSTEADY, deduplication=deduplication, retry=HASTY, may_be_both=True)


BATCH_CHECKS = {
    "two messages with two effects each, and a failed call": Check(
        Workload(PAIR, effects=2), Bounds(failures=1), workers=1, batch=2
    ),
    "two messages with two effects each, one is always refused": Check(
        Workload(PAIR, effects=2, refused=(0,), retry=HASTY),
        Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    "two messages that fail in one unit, and a failed call": Check(
        Workload(PAIR, behaviours=FAILING, retry=IMPATIENT),
        Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    "two messages that sometimes fail, with different counts": Check(
        Workload(PAIR, behaviours=(("a", Behaviour.FAILS), ("b", Behaviour.UNSTEADY)), retry=Retry(immediate=2, delayed=0)),
        Bounds(whims=2),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    "a message that must run alone and fails": Check(
        Workload(copies("a", "a"), behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT, supervised=False),
        Bounds(crashes=1),
        workers=1,
        batch=2,
        reaches=("begin", "dead-letter", "ack"),
    ),
    "two copies of a message that fails, and a crash": Check(
        Workload(copies("a", "a"), behaviours=(("a", Behaviour.UNSTEADY),), retry=IMPATIENT, may_be_both=True),
        Bounds(crashes=1, whims=2),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    "two messages whose handlers decide differently on each run, and a crash": Check(
        Workload(PAIR, behaviours=VARYING, effects=2), Bounds(crashes=1, whims=2), workers=1, batch=2
    ),
    "two copies of a message whose handler decides differently on each run": Check(
        Workload(copies("a", "a"), behaviours=VARYING, effects=2, blocking=False), Bounds(failures=1, whims=2)
    ),
    "unreadable messages beside two good ones": Check(
        Workload(FLAWED), Bounds(failures=1), workers=1, batch=4, reaches=GIVING_UP
    ),
    "another body and another time under one id, beside a good message": Check(
        Workload(
            (
                *copies("a", "b"),
                MessageArrival("a", "x"),
                MessageArrival("a", "y"),
                MessageArrival("a", "a", time="2026-01-01T00:00:00Z"),
            )
        ),
        workers=1,
        batch=5,
        reaches=GIVING_UP,
    ),
    "two messages in a batch, a relay and a failed call": Check(
        Workload(PAIR, effects=2), Bounds(failures=1), workers=1, relays=1, batch=2
    ),
    "an event with two subscribers": Check(
        Workload(copies("a", "a"), endpoints=PUBLISHED, published=True, quiet=True),
        Bounds(crashes=1),
        workers=1,
        reaches=("begin", "commit", "ack"),
    ),
    "an event with two subscribers, a dedup store": Check(
        published(DeduplicationMode.DEDUP), workers=1, reaches=("load", "save", "dedup-contains", "dedup-add", "ack")
    ),
    "an event with two subscribers, tokens and a failed call": Check(
        published(DeduplicationMode.TOKENS), Bounds(failures=1), workers=1, reaches=("load", "save", "token-live", "ack")
    ),
    "two events with two subscribers, tokens in the same database": Check(
        published(DeduplicationMode.DATABASE, effects=2), Bounds(crashes=1), workers=1, reaches=("begin", "commit", "ack")
    ),
    "two messages of one entity in a batch, its history, and a failed call": Check(
        Workload(PAIR, deduplication=DeduplicationMode.HISTORY), Bounds(failures=1), workers=1, batch=2, reaches=ON_DOCUMENTS
    ),
    "two messages of one entity in a batch, a dedup store, and a failed call": Check(
        Workload(PAIR, deduplication=DeduplicationMode.DEDUP),
        Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=(*ON_DOCUMENTS, "dedup-contains", "dedup-add"),
    ),
    "two messages of one entity in a batch, a dedup store, two workers and a crash": Check(
        Workload(PAIR, deduplication=DeduplicationMode.DEDUP),
        Bounds(crashes=1),
        batch=2,
        reaches=(*ON_DOCUMENTS, "dedup-contains", "dedup-add"),
    ),
    "two messages and one without a token in a batch, and a failed call": Check(
        Workload((*PAIR, UNENTITLED), deduplication=DeduplicationMode.TOKENS),
        Bounds(failures=1),
        workers=1,
        sweepers=1,
        batch=3,
        reaches=(*ON_DOCUMENTS, "token-live", "token-prepare", "token-activate", "token-remove"),
    ),
    "two messages of one entity in a batch, tokens, two workers and a crash": Check(
        Workload(PAIR, effects=2, deduplication=DeduplicationMode.TOKENS),
        Bounds(crashes=1),
        batch=2,
        reaches=(*ON_DOCUMENTS, "token-live", "token-prepare", "token-activate", "token-remove"),
    ),
    "two messages in a batch, tokens elsewhere, and a failed call": Check(
        Workload(PAIR, effects=2, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(failures=1),
        workers=1,
        relays=1,
        sweepers=1,
        batch=2,
        reaches=("begin", "commit", "ack"),
    ),
    "two messages in a batch, tokens in the same database, and a relay": Check(
        Workload((*PAIR, UNENTITLED), effects=2, deduplication=DeduplicationMode.DATABASE),
        Bounds(failures=1),
        workers=1,
        relays=1,
        batch=3,
        reaches=("begin", "commit", "ack"),
    ),
    "two messages with two artifacts each": Check(
        Workload(PAIR, deduplication=DeduplicationMode.HISTORY, artifacts=2),
        Bounds(failures=1),
        workers=1,
        sweepers=1,
        batch=2,
        reaches=(*ON_DOCUMENTS, "artifact-create"),
    ),
    "two messages given up while an earlier save may land, history": Check(
        giving_up(DeduplicationMode.HISTORY), Bounds(failures=1, whims=2), workers=1, batch=2, reaches=GIVEN_UP
    ),
    "two messages given up while an earlier save may land, a dedup store": Check(
        giving_up(DeduplicationMode.DEDUP), Bounds(failures=1, whims=1), workers=1, batch=2, reaches=GIVEN_UP
    ),
    "two messages given up while an earlier save may land, tokens": Check(
        giving_up(DeduplicationMode.TOKENS), Bounds(failures=1, whims=1), workers=1, sweepers=1, batch=2, reaches=GIVEN_UP
    ),
    "two messages given up while an earlier commit may land, blocking store": Check(
        giving_up(DeduplicationMode.CLAIMS),
        Bounds(failures=1, whims=1),
        workers=1,
        relays=1,
        batch=2,
        reaches=("begin", "commit", "dead-letter", "ack"),
    ),
    "two messages given up while an earlier commit may land, optimistic store": Check(
        replace(giving_up(DeduplicationMode.CLAIMS), blocking=False),
        Bounds(failures=1, whims=1),
        workers=1,
        relays=1,
        batch=2,
        reaches=("begin", "commit", "dead-letter", "ack"),
    ),
    "two messages given up while an earlier commit may land, tokens in the same database": Check(
        giving_up(DeduplicationMode.DATABASE),
        Bounds(failures=1, whims=1),
        workers=1,
        relays=1,
        batch=2,
        reaches=("begin", "commit", "dead-letter", "ack"),
    ),
}


PAIR_TWICE = copies("a", "b", "a", "b")
OTHER_BODIES = (*PAIR, MessageArrival("a", "x"), MessageArrival("b", "y"))


def _twice(deduplication: DeduplicationMode, *, effects: int = 1) -> Workload:
    return Workload(PAIR_TWICE, deduplication=deduplication, effects=effects)


def _one_worker(workload: Workload, reaches: tuple[str, ...], *, bounds: Bounds | None = None) -> Check:
    return Check(workload, bounds or Bounds(), workers=1, batch=2, reaches=reaches)


PAIR_CHECKS = {
    "two messages and their copies, history": _one_worker(_twice(DeduplicationMode.HISTORY), ON_DOCUMENTS),
    "two messages and their copies, a dedup store": _one_worker(
        _twice(DeduplicationMode.DEDUP), (*ON_DOCUMENTS, "dedup-contains", "dedup-add")
    ),
    "two messages and their copies, tokens": _one_worker(
        _twice(DeduplicationMode.TOKENS, effects=2),
        (*ON_DOCUMENTS, "token-live", "token-prepare", "token-activate", "token-remove"),
    ),
    "two messages and their copies, tokens in the same database": _one_worker(
        _twice(DeduplicationMode.DATABASE, effects=2), ("begin", "commit", "ack")
    ),
    "two messages whose processes died, tokens elsewhere": _one_worker(
        Workload(PAIR, deduplication=DeduplicationMode.ELSEWHERE, handled_before=True, effects=2),
        ("begin", "token-live", "token-activate", "send", "token-remove", "forget", "ack"),
    ),
    "two ids with two bodies each": _one_worker(Workload(OTHER_BODIES), (*HANDLED, "dead-letter")),
    "two ids with two bodies each, a dedup store": _one_worker(
        Workload(OTHER_BODIES, deduplication=DeduplicationMode.DEDUP),
        (*ON_DOCUMENTS, "dedup-contains", "dedup-add", "dead-letter"),
    ),
    "artifacts and a dedup store, two batches of one worker alone": _one_worker(
        Workload(PAIR_TWICE, artifacts=1, quiet=True, alone=True, deduplication=DeduplicationMode.DEDUP),
        ("load", "save", "artifact-create", "dedup-add", "ack"),
    ),
    "a ring, and two messages that come late in one batch": replace(
        _one_worker(
            Workload(copies("a", "b", instant=OLD), deduplication=DeduplicationMode.RING, quiet=True),
            ("begin", "commit", "ack", "dead-letter"),
        ),
        janitors=1,
    ),
    "two unreadable messages": _one_worker(
        Workload((MessageArrival("u", "u", flaw=Flaw.UNREADABLE), MessageArrival("n", "n", flaw=Flaw.UNNAMED))),
        ("dead-letter", "ack"),
    ),
    "a message that must run alone, behind one that need not": _one_worker(
        Workload((*copies("a"), MessageArrival("b", "b", alone=True)), retry=HASTY), (*HANDLED, "start-begin", "start-ended")
    ),
    "two copies of a message that a process held when it died": _one_worker(
        Workload((*copies("a"), MessageArrival("a", "a", suspect=True, held=1)), retry=HASTY), HANDLED
    ),
    "three copies, tokens": _one_worker(
        Workload(copies("a", "a", "a"), quiet=True, deduplication=DeduplicationMode.TOKENS),
        ("load", "save", "token-live", "token-remove", "ack"),
    ),
    "one id with two bodies, a dedup store, and nothing to send": _one_worker(
        Workload(OTHER_BODIES[::2], quiet=True, deduplication=DeduplicationMode.DEDUP),
        ("load", "save", "dedup-contains", "dedup-add", "dead-letter", "ack"),
        bounds=Bounds(crashes=1),
    ),
}
