"""The checks of full batches: each batch has all that waits, so situations of large batches take few states."""

from onceonly.model.retry import Retry
from onceonly_verify.check import HASTY, IMPATIENT, Check
from onceonly_verify.clock import NEXT, OLD
from onceonly_verify.workload import (
    BILLING,
    OF_SPOILED,
    SHOP,
    Arrival,
    Behaviour,
    DeduplicationMode,
    Workload,
    copies,
)
from onceonly_verify.world import Bounds

SETTLED = ("begin", "commit", "send", "forget", "dead-letter", "ack")
ANY = tuple((name, Behaviour.ANY) for name in "abc")
FAILS, RUINS, SPOILS, OUTLASTS = Behaviour.FAILS, Behaviour.RUINS, Behaviour.SPOILS, Behaviour.OUTLASTS


def full(  # noqa: PLR0913 - what differs between these checks
    name: str,
    workload: Workload,
    bounds: Bounds | None = None,
    *,
    batch: int,
    isolated: bool = False,
    workers: int = 1,
    janitors: int = 0,
    reaches: tuple[str, ...] = SETTLED,
) -> Check:
    """Give a check in which each batch has all that waits."""
    return Check(
        name=name,
        workload=workload,
        bounds=bounds or Bounds(),
        workers=workers,
        janitors=janitors,
        batch=batch,
        isolated=isolated,
        full=True,
        patience=30,
        reaches=reaches,
    )


def _ending(names: str, *ends: tuple[str, Behaviour]) -> Workload:
    return Workload(arrivals=copies(*names), behaviours=ends, retry=HASTY)


HANDLED = ("begin", "commit", "send", "forget", "ack")
TWO_FAIL = _ending("abcde", ("b", FAILS), ("c", SPOILS), ("d", SPOILS), ("e", FAILS))
TWO_RUIN = _ending("abcd", ("a", RUINS), ("c", RUINS))
RUNS_ON = _ending("abcd", ("b", OUTLASTS), ("d", FAILS))
COPIES = Workload(arrivals=copies("a", "a"), behaviours=(("a", FAILS),), retry=HASTY)
OTHER_BODIES = (*copies("a", "b"), Arrival("a", "x"), Arrival("a", "x"), Arrival("b", "y"))
TWO_BODIES = (*copies("a", "b"), Arrival("a", "x"), Arrival("b", "y"))
DOUBTED = (*copies("a", "b"), Arrival("c", "c", doubted=True), Arrival("d", "d", doubted=True))

FULL_CHECKS: tuple[Check, ...] = (
    full(
        "a full batch of three messages that end in any way",
        Workload(arrivals=copies("a", "b", "c"), behaviours=ANY, retry=IMPATIENT),
        Bounds(whims=1),
        batch=3,
        reaches=HANDLED,
    ),
    full(
        "a full isolated batch of three messages that end in any way",
        Workload(arrivals=copies("a", "b", "c"), behaviours=ANY, retry=IMPATIENT),
        Bounds(whims=1),
        batch=3,
        isolated=True,
        reaches=HANDLED,
    ),
    full(
        "a full batch of three messages, one of which ends in any way",
        Workload(arrivals=copies("a", "b", "c"), behaviours=ANY[1:2], retry=IMPATIENT),
        Bounds(whims=2),
        batch=3,
        reaches=HANDLED,
    ),
    full(
        "two messages about entities that end in any way",
        Workload(arrivals=copies("a", "b"), behaviours=ANY[:2], retry=IMPATIENT, deduplication=DeduplicationMode.HISTORY),
        Bounds(whims=1),
        batch=2,
        reaches=("load", "save", "send", "ack"),
    ),
    full("a full isolated batch, two that spoil units between two that fail", TWO_FAIL, batch=5, isolated=True),
    full("a full batch, two that spoil units between two that fail", TWO_FAIL, batch=5),
    full("a full isolated batch, one that runs on and one that fails", RUNS_ON, batch=4, isolated=True),
    full("a full batch, one that runs on and one that fails", RUNS_ON, batch=4),
    full(
        "a full batch, two of four can never be committed",
        _ending("abcd", ("b", Behaviour.HOPELESS), ("d", Behaviour.REFUSED)),
        batch=4,
    ),
    full("a full batch, two of four ruin their units", TWO_RUIN, batch=4),
    full(
        "a full batch, two of three ruin their units, and an outage",
        _ending("abc", ("a", RUINS), ("b", RUINS)),
        Bounds(outage=3),
        batch=3,
    ),
    full(
        "a full isolated batch, two that ruined their units, and a failed call",
        Workload(arrivals=DOUBTED, retry=HASTY),
        Bounds(failures=1),
        batch=4,
        isolated=True,
        reaches=HANDLED,
    ),
    full(
        "a full batch, two that ruined their units and end in any way behind one that fails",
        Workload(
            arrivals=(*copies("a"), *DOUBTED[2:]),
            behaviours=(("a", FAILS), ("c", Behaviour.ANY), ("d", Behaviour.ANY)),
            retry=HASTY,
        ),
        Bounds(whims=1),
        batch=3,
    ),
    full(
        "two copies of a message that fails in a batch, and a failed call",
        COPIES,
        Bounds(failures=1),
        batch=2,
        reaches=("begin", "dead-letter", "ack"),
    ),
    full(
        "two copies of a message given up in a batch while an earlier save may land",
        Workload(
            arrivals=copies("a", "a"),
            behaviours=(("a", Behaviour.UNSTEADY),),
            retry=HASTY,
            deduplication=DeduplicationMode.HISTORY,
            may_be_both=True,
        ),
        Bounds(failures=1, whims=1),
        batch=2,
        reaches=("load", "save", "dead-letter", "ack"),
    ),
    full(
        "two messages that fail in a batch, and their copies may not arrive",
        Workload(arrivals=copies("a", "b"), behaviours=(("a", FAILS), ("b", FAILS)), retry=IMPATIENT),
        Bounds(failures=1),
        batch=2,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    full("copies with another body in a batch", Workload(arrivals=OTHER_BODIES), batch=5, reaches=(*SETTLED, "release")),
    full(
        "copies with another body in a batch, a dedup store",
        Workload(arrivals=OTHER_BODIES, deduplication=DeduplicationMode.DEDUP),
        batch=5,
        reaches=("load", "save", "send", "dedup-contains", "dedup-add", "dead-letter", "ack", "release"),
    ),
    full(
        "two ids with two bodies each about two entities, a dedup store, two workers and a crash",
        Workload(
            arrivals=TWO_BODIES,
            deduplication=DeduplicationMode.DEDUP,
            entities=(("x", "f"), ("y", "f")),
            may_be_both=True,
        ),
        Bounds(crashes=1),
        batch=2,
        workers=2,
        reaches=("load", "save", "dedup-contains", "dedup-add", "send", "ack"),
    ),
    full(
        "two messages in a batch and their copies, tokens, and a failed call",
        Workload(arrivals=copies("a", "b", "a", "b"), quiet=True, deduplication=DeduplicationMode.TOKENS),
        Bounds(failures=1),
        batch=2,
        reaches=("load", "save", "token-live", "token-remove", "ack"),
    ),
    full(
        "tokens elsewhere, nothing to send, and a crash",
        Workload(arrivals=copies("a"), quiet=True, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(crashes=1),
        batch=1,
        reaches=("begin", "commit", "token-live", "token-remove", "ack"),
    ),
    full(
        "two messages in a batch with two requests each, and a failed call",
        Workload(arrivals=copies("a", "b"), effects=2, requests=2, deduplication=DeduplicationMode.HISTORY),
        Bounds(failures=1),
        batch=2,
        reaches=("load", "save", "remote-put", "remote-call", "send", "ack"),
    ),
    full(
        "two responses in a batch that lead to other requests, and a failed call",
        Workload(arrivals=copies("a", "b"), followed=True, requests=1),
        Bounds(failures=1),
        batch=2,
        reaches=("begin", "commit", "remote-get", "remote-call", "send", "forget", "ack"),
    ),
    full(
        "a message with two requests, and a failed call",
        Workload(arrivals=copies("a"), effects=2, requests=2, deduplication=DeduplicationMode.HISTORY),
        Bounds(failures=1),
        batch=1,
        reaches=("load", "save", "remote-put", "remote-call", "send", "ack"),
    ),
    full(
        "tokens elsewhere, and two failed calls",
        Workload(arrivals=copies("a"), deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(failures=2),
        batch=1,
        reaches=("begin", "commit", "token-live", "token-prepare", "token-activate", "send", "token-remove", "forget", "ack"),
    ),
    full(
        "four effects that are always refused",
        Workload(arrivals=copies("a"), effects=4, refused=(0, 1, 2, 3), retry=HASTY),
        batch=1,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    full(
        "two messages in a batch whose effects are always refused",
        Workload(arrivals=copies("a", "b"), effects=2, refused=(1,), retry=HASTY),
        batch=2,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    full(
        "an event with one subscriber, and a failed call",
        Workload(arrivals=copies("a"), endpoints=(SHOP, BILLING), published=True, quiet=True, retry=HASTY),
        Bounds(failures=1),
        batch=1,
        reaches=("begin", "commit", "ack"),
    ),
    full(
        "a message that waits for a lock, and no copy can be made",
        Workload(
            arrivals=(*copies("a"), Arrival("b", "b", failed=1)),
            behaviours=(("b", Behaviour.LOCKED),),
            retry=HASTY,
            takes_copies=False,
        ),
        Bounds(whims=2),
        batch=2,
        reaches=(*HANDLED, "release"),
    ),
    full(
        "a message that failed before, and no copy can be made",
        Workload(
            arrivals=(Arrival("a", "a", failed=1),),
            behaviours=(("a", FAILS),),
            retry=Retry(immediate=2, delayed=0),
            takes_copies=False,
        ),
        batch=1,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    full(
        "two copies of a message that must run alone, and no copy can be made",
        Workload(arrivals=(Arrival("a", "a", alone=True),) * 2, retry=HASTY, takes_copies=False),
        Bounds(failures=1),
        batch=1,
        workers=2,
        reaches=(*HANDLED, "release"),
    ),
    full(
        "a message that must run alone and fails twice",
        Workload(arrivals=(Arrival("a", "a", alone=True),), behaviours=(("a", FAILS),), retry=IMPATIENT),
        batch=1,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    full(
        "two messages in a batch that must run alone, behind one that need not",
        Workload(arrivals=(*copies("c"), Arrival("a", "a", alone=True), Arrival("b", "b", alone=True)), retry=HASTY),
        batch=3,
        reaches=(*HANDLED, "start-begin", "start-ended"),
    ),
    full(
        "two messages of a process that died, which failed before",
        Workload(arrivals=tuple(Arrival(name, name, suspect=True, failed=2) for name in "ab")),
        batch=2,
        reaches=HANDLED,
    ),
    full(
        "a ring, and a full batch of messages that come late or early",
        Workload(
            arrivals=(*copies("a", "c", instant=OLD), *copies("b", "d", instant=NEXT)),
            deduplication=DeduplicationMode.RING,
            quiet=True,
        ),
        batch=4,
        janitors=1,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    full(
        "two copies of a message, one of which failed and ruined its unit, next to a good message",
        Workload(arrivals=(*copies("a", "c"), Arrival("c", "c", failed=1, doubted=True)), retry=HASTY),
        batch=3,
        reaches=HANDLED,
    ),
    full(
        "a ring, a message that comes early, and a failed call",
        Workload(arrivals=copies("b", instant=NEXT), deduplication=DeduplicationMode.RING, quiet=True),
        Bounds(failures=1),
        batch=1,
        janitors=1,
        reaches=("begin", "commit", "send", "release", "ack"),
    ),
    full(
        "a control message of a document that cannot be read",
        Workload(arrivals=copies("a"), strays=(OF_SPOILED,), spoiled=b"of nobody", deduplication=DeduplicationMode.HISTORY),
        Bounds(failures=1),
        batch=2,
        reaches=("load", "save", "send", "dead-letter", "ack"),
    ),
)
