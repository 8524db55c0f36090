"""The checks of batches with two messages of one kind: known, dropped, mismatched, undecidable, or set apart."""

from msgspec.structs import replace

from onceonly_verify.check import HASTY, Check
from onceonly_verify.clock import OLD
from onceonly_verify.workload import Arrival, DeduplicationMode, Flaw, Workload, copies
from onceonly_verify.world import Bounds

PAIR = copies("a", "b")
PAIR_TWICE = copies("a", "b", "a", "b")
OTHER_BODIES = (*PAIR, Arrival("a", "x"), Arrival("b", "y"))
ON_DOCUMENTS = ("load", "save", "send", "ack")
SETTLED = ("begin", "commit", "send", "forget", "ack")


def _twice(deduplication: DeduplicationMode, *, effects: int = 1) -> Workload:
    return Workload(arrivals=PAIR_TWICE, deduplication=deduplication, effects=effects)


def _one_worker(name: str, workload: Workload, reaches: tuple[str, ...], *, bounds: Bounds | None = None) -> Check:
    return Check(name=name, workload=workload, bounds=bounds or Bounds(), workers=1, batch=2, reaches=reaches)


PAIR_CHECKS: tuple[Check, ...] = (
    _one_worker("two messages and their copies, history", _twice(DeduplicationMode.HISTORY), ON_DOCUMENTS),
    _one_worker(
        "two messages and their copies, a dedup store",
        _twice(DeduplicationMode.DEDUP),
        (*ON_DOCUMENTS, "dedup-contains", "dedup-add"),
    ),
    _one_worker(
        "two messages and their copies, tokens",
        _twice(DeduplicationMode.TOKENS, effects=2),
        (*ON_DOCUMENTS, "token-live", "token-prepare", "token-activate", "token-remove"),
    ),
    _one_worker(
        "two messages and their copies, tokens in the same database",
        _twice(DeduplicationMode.DATABASE, effects=2),
        ("begin", "commit", "ack"),
    ),
    _one_worker(
        "two messages whose processes died, tokens elsewhere",
        Workload(arrivals=PAIR, deduplication=DeduplicationMode.ELSEWHERE, handled_before=True, effects=2),
        ("begin", "token-live", "token-activate", "send", "token-remove", "forget", "ack"),
    ),
    _one_worker(
        "two ids with two bodies each",
        Workload(arrivals=OTHER_BODIES),
        (*SETTLED, "dead-letter"),
    ),
    _one_worker(
        "two ids with two bodies each, a dedup store",
        Workload(arrivals=OTHER_BODIES, deduplication=DeduplicationMode.DEDUP),
        (*ON_DOCUMENTS, "dedup-contains", "dedup-add", "dead-letter"),
    ),
    _one_worker(
        "artifacts and a dedup store, two batches of one worker alone",
        Workload(arrivals=PAIR_TWICE, artifacts=1, quiet=True, alone=True, deduplication=DeduplicationMode.DEDUP),
        ("load", "save", "artifact-create", "dedup-add", "ack"),
    ),
    replace(
        _one_worker(
            "a ring, and two messages that come late in one batch",
            Workload(arrivals=copies("a", "b", instant=OLD), deduplication=DeduplicationMode.RING, quiet=True),
            ("begin", "commit", "ack", "dead-letter"),
        ),
        janitors=1,
    ),
    _one_worker(
        "two unreadable messages",
        Workload(arrivals=(Arrival("u", "u", flaw=Flaw.UNREADABLE), Arrival("n", "n", flaw=Flaw.UNNAMED))),
        ("dead-letter", "ack"),
    ),
    _one_worker(
        "a message that must run alone, behind one that need not",
        Workload(arrivals=(*copies("a"), Arrival("b", "b", alone=True)), retry=HASTY),
        (*SETTLED, "start-begin", "start-ended"),
    ),
    _one_worker(
        "two copies of a message that a process held when it died",
        Workload(arrivals=(*copies("a"), Arrival("a", "a", suspect=True, held=1)), retry=HASTY),
        SETTLED,
    ),
    _one_worker(
        "three copies, tokens",
        Workload(arrivals=copies("a", "a", "a"), quiet=True, deduplication=DeduplicationMode.TOKENS),
        ("load", "save", "token-live", "token-remove", "ack"),
    ),
    _one_worker(
        "one id with two bodies, a dedup store, and nothing to send",
        Workload(arrivals=OTHER_BODIES[::2], quiet=True, deduplication=DeduplicationMode.DEDUP),
        ("load", "save", "dedup-contains", "dedup-add", "dead-letter", "ack"),
        bounds=Bounds(crashes=1),
    ),
)
