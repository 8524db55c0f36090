"""The checks of full batches, and of handlers that take batches.

A full batch has all that waits, so situations of large batches take few states. Of a batch that one handler takes, each message
has its own fate all the same.
"""

from onceonly.model.retry import Retry
from onceonly_verify.check import GIVING_UP, HANDLED, HASTY, IMPATIENT, Check
from onceonly_verify.clock import NEXT, OLD
from onceonly_verify.workload import (
    BILLING,
    OF_SPOILED,
    SHOP,
    Batched,
    Behaviour,
    DeduplicationMode,
    MessageArrival,
    Workload,
    copies,
)
from onceonly_verify.world import Bounds

ANY = tuple((name, Behaviour.ANY) for name in "abc")
FAILS, RUINS, SPOILS, OUTLASTS = Behaviour.FAILS, Behaviour.RUINS, Behaviour.SPOILS, Behaviour.OUTLASTS


def full(  # noqa: PLR0913 - what differs between these checks
    workload: Workload,
    bounds: Bounds | None = None,
    *,
    batch: int,
    isolated: bool = False,
    workers: int = 1,
    janitors: int = 0,
    reaches: tuple[str, ...] = GIVING_UP,
) -> Check:
    """Return a check in which each batch has all that waits."""
    return Check(
        workload,
        bounds or Bounds(),
        workers=workers,
        janitors=janitors,
        batch=batch,
        isolated=isolated,
        full=True,
        patience=30,
        reaches=reaches,
    )


def _ending(names: str, *ends: tuple[str, Behaviour]) -> Workload:
    return Workload(copies(*names), behaviours=ends, retry=HASTY)


TWO_FAIL = _ending("abcde", ("b", FAILS), ("c", SPOILS), ("d", SPOILS), ("e", FAILS))
TWO_RUIN = _ending("abcd", ("a", RUINS), ("c", RUINS))
RUNS_ON = _ending("abcd", ("b", OUTLASTS), ("d", FAILS))
COPIES = Workload(copies("a", "a"), behaviours=(("a", FAILS),), retry=HASTY)
OTHER_BODIES = (*copies("a", "b"), MessageArrival("a", "x"), MessageArrival("a", "x"), MessageArrival("b", "y"))
TWO_BODIES = (*copies("a", "b"), MessageArrival("a", "x"), MessageArrival("b", "y"))
SUSPECTED = (*copies("a", "b"), MessageArrival("c", "c", blamed=True), MessageArrival("d", "d", blamed=True))

FULL_CHECKS = {
    "a full batch of three messages that end in any way": full(
        Workload(copies("a", "b", "c"), behaviours=ANY, retry=IMPATIENT), Bounds(whims=1), batch=3, reaches=HANDLED
    ),
    "a full isolated batch of three messages that end in any way": full(
        Workload(copies("a", "b", "c"), behaviours=ANY, retry=IMPATIENT),
        Bounds(whims=1),
        batch=3,
        isolated=True,
        reaches=HANDLED,
    ),
    "a full batch of three messages, one of which ends in any way": full(
        Workload(copies("a", "b", "c"), behaviours=ANY[1:2], retry=IMPATIENT), Bounds(whims=2), batch=3, reaches=HANDLED
    ),
    "two messages about entities that end in any way": full(
        Workload(copies("a", "b"), behaviours=ANY[:2], retry=IMPATIENT, deduplication=DeduplicationMode.HISTORY),
        Bounds(whims=1),
        batch=2,
        reaches=("load", "save", "send", "ack"),
    ),
    "a full isolated batch, two that spoil units between two that fail": full(TWO_FAIL, batch=5, isolated=True),
    "a full batch, two that spoil units between two that fail": full(TWO_FAIL, batch=5),
    "a full isolated batch, one that runs on and one that fails": full(RUNS_ON, batch=4, isolated=True),
    "a full batch, one that runs on and one that fails": full(RUNS_ON, batch=4),
    "a full batch, two of four can never be committed": full(
        _ending("abcd", ("b", Behaviour.HOPELESS), ("d", Behaviour.REFUSED)), batch=4
    ),
    "a full batch, two of four ruin their units": full(TWO_RUIN, batch=4),
    "a full batch, two of three ruin their units, and an outage": full(
        _ending("abc", ("a", RUINS), ("b", RUINS)), Bounds(outage=3), batch=3
    ),
    "a full isolated batch, two that ruined their units, and a failed call": full(
        Workload(SUSPECTED, retry=HASTY), Bounds(failures=1), batch=4, isolated=True, reaches=HANDLED
    ),
    "a full batch, two that ruined their units and end in any way behind one that fails": full(
        Workload(
            (*copies("a"), *SUSPECTED[2:]), behaviours=(("a", FAILS), ("c", Behaviour.ANY), ("d", Behaviour.ANY)), retry=HASTY
        ),
        Bounds(whims=1),
        batch=3,
    ),
    "two copies of a message that fails in a batch, and a failed call": full(
        COPIES, Bounds(failures=1), batch=2, reaches=("begin", "dead-letter", "ack")
    ),
    "two copies of a message given up in a batch while an earlier save may land": full(
        Workload(
            copies("a", "a"),
            behaviours=(("a", Behaviour.UNSTEADY),),
            retry=HASTY,
            deduplication=DeduplicationMode.HISTORY,
            may_be_both=True,
        ),
        Bounds(failures=1, whims=1),
        batch=2,
        reaches=("load", "save", "dead-letter", "ack"),
    ),
    "two messages that fail in a batch, and their copies may not arrive": full(
        Workload(copies("a", "b"), behaviours=(("a", FAILS), ("b", FAILS)), retry=IMPATIENT),
        Bounds(failures=1),
        batch=2,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    "copies with another body in a batch": full(Workload(OTHER_BODIES), batch=5, reaches=(*GIVING_UP, "release")),
    "copies with another body in a batch, a dedup store": full(
        Workload(OTHER_BODIES, deduplication=DeduplicationMode.DEDUP),
        batch=5,
        reaches=("load", "save", "send", "dedup-contains", "dedup-add", "dead-letter", "ack", "release"),
    ),
    "two ids with two bodies each about two entities, a dedup store, two workers and a crash": full(
        Workload(TWO_BODIES, deduplication=DeduplicationMode.DEDUP, entities=(("x", "f"), ("y", "f")), may_be_both=True),
        Bounds(crashes=1),
        batch=2,
        workers=2,
        reaches=("load", "save", "dedup-contains", "dedup-add", "send", "ack"),
    ),
    "two messages in a batch and their copies, tokens, and a failed call": full(
        Workload(copies("a", "b", "a", "b"), quiet=True, deduplication=DeduplicationMode.TOKENS),
        Bounds(failures=1),
        batch=2,
        reaches=("load", "save", "token-live", "token-remove", "ack"),
    ),
    "tokens elsewhere, nothing to send, and a crash": full(
        Workload(copies("a"), quiet=True, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(crashes=1),
        batch=1,
        reaches=("begin", "commit", "token-live", "token-remove", "ack"),
    ),
    "two messages in a batch with two requests each, and a failed call": full(
        Workload(copies("a", "b"), effects=2, requests=2, deduplication=DeduplicationMode.HISTORY),
        Bounds(failures=1),
        batch=2,
        reaches=("load", "save", "remote-put", "remote-call", "send", "ack"),
    ),
    "two responses in a batch that lead to other requests, and a failed call": full(
        Workload(copies("a", "b"), followed=True, requests=1),
        Bounds(failures=1),
        batch=2,
        reaches=("begin", "commit", "remote-get", "remote-call", "send", "forget", "ack"),
    ),
    "a message with two requests, and a failed call": full(
        Workload(copies("a"), effects=2, requests=2, deduplication=DeduplicationMode.HISTORY),
        Bounds(failures=1),
        batch=1,
        reaches=("load", "save", "remote-put", "remote-call", "send", "ack"),
    ),
    "tokens elsewhere, and two failed calls": full(
        Workload(copies("a"), deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(failures=2),
        batch=1,
        reaches=("begin", "commit", "token-live", "token-prepare", "token-activate", "send", "token-remove", "forget", "ack"),
    ),
    "four effects that are always refused": full(
        Workload(copies("a"), effects=4, refused=(0, 1, 2, 3), retry=HASTY),
        batch=1,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    "two messages in a batch whose effects are always refused": full(
        Workload(copies("a", "b"), effects=2, refused=(1,), retry=HASTY),
        batch=2,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    "an event with one subscriber, and a failed call": full(
        Workload(copies("a"), endpoints=(SHOP, BILLING), published=True, quiet=True, retry=HASTY),
        Bounds(failures=1),
        batch=1,
        reaches=("begin", "commit", "ack"),
    ),
    "a message that waits for a lock, and no copy can be made": full(
        Workload(
            (*copies("a"), MessageArrival("b", "b", failed=1)),
            behaviours=(("b", Behaviour.LOCKED),),
            retry=HASTY,
            takes_copies=False,
        ),
        Bounds(whims=2),
        batch=2,
        reaches=(*HANDLED, "release"),
    ),
    "a message that failed before, and no copy can be made": full(
        Workload(
            (MessageArrival("a", "a", failed=1),),
            behaviours=(("a", FAILS),),
            retry=Retry(immediate=2, delayed=0),
            takes_copies=False,
        ),
        batch=1,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    "two copies of a message that must run alone, and no copy can be made": full(
        Workload((MessageArrival("a", "a", alone=True),) * 2, retry=HASTY, takes_copies=False),
        Bounds(failures=1),
        batch=1,
        workers=2,
        reaches=(*HANDLED, "release"),
    ),
    "a message that must run alone and fails twice": full(
        Workload((MessageArrival("a", "a", alone=True),), behaviours=(("a", FAILS),), retry=IMPATIENT),
        batch=1,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    "two messages in a batch that must run alone, behind one that need not": full(
        Workload((*copies("c"), MessageArrival("a", "a", alone=True), MessageArrival("b", "b", alone=True)), retry=HASTY),
        batch=3,
        reaches=(*HANDLED, "start-begin", "start-ended"),
    ),
    "two messages of a process that died, which failed before": full(
        Workload(tuple(MessageArrival(name, name, suspect=True, failed=2) for name in "ab")), batch=2, reaches=HANDLED
    ),
    "a ring, and a full batch of messages that come late or early": full(
        Workload(
            (*copies("a", "c", instant=OLD), *copies("b", "d", instant=NEXT)), deduplication=DeduplicationMode.RING, quiet=True
        ),
        batch=4,
        janitors=1,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    "two copies of a message, one of which failed and ruined its unit, next to a good message": full(
        Workload((*copies("a", "c"), MessageArrival("c", "c", failed=1, blamed=True)), retry=HASTY), batch=3, reaches=HANDLED
    ),
    "a ring, a message that comes early, and a failed call": full(
        Workload(copies("b", instant=NEXT), deduplication=DeduplicationMode.RING, quiet=True),
        Bounds(failures=1),
        batch=1,
        janitors=1,
        reaches=("begin", "commit", "send", "release", "ack"),
    ),
    "a control message of a document that cannot be read": full(
        Workload(copies("a"), strays=(OF_SPOILED,), spoiled=b"of nobody", deduplication=DeduplicationMode.HISTORY),
        Bounds(failures=1),
        batch=2,
        reaches=("load", "save", "send", "dead-letter", "ack"),
    ),
}


FAILS_AS_A_WHOLE, SETS_ASIDE = Batched.FAILS, Batched.SETS_ASIDE
GIVEN_UP = (*HANDLED, "dead-letter")
TWO_OF_FIVE = (("b", Behaviour.FAILS), ("d", Behaviour.FAILS))
UNSTEADY = (("a", Behaviour.UNSTEADY), ("b", Behaviour.UNSTEADY))

BATCH_HANDLER_CHECKS = {
    "a batch handler, two workers, a crash and a lease that ends early": Check(
        Workload(copies("a", "b"), batched=FAILS_AS_A_WHOLE), Bounds(crashes=1, expiries=1), batch=2
    ),
    "a batch handler with two effects for each message, and a failed call": Check(
        Workload(copies("a", "b"), effects=2, batched=FAILS_AS_A_WHOLE), Bounds(failures=1), workers=1, batch=2
    ),
    "a batch handler whose messages sometimes fail, and a failed call": Check(
        Workload(copies("a", "b"), behaviours=UNSTEADY, retry=IMPATIENT, batched=FAILS_AS_A_WHOLE),
        Bounds(failures=1, whims=1),
        workers=1,
        batch=2,
    ),
    "a batch handler that sets messages aside, and a failed call": Check(
        Workload(copies("a", "b"), behaviours=UNSTEADY, retry=IMPATIENT, batched=SETS_ASIDE, may_be_both=True),
        Bounds(failures=1, whims=1),
        workers=1,
        batch=2,
    ),
    **{
        f"a full {'isolated ' if isolated else ''}batch of a batch handler that {how.value}, two of five fail": full(
            Workload(copies(*"abcde"), behaviours=TWO_OF_FIVE, retry=HASTY, batched=how),
            batch=5,
            isolated=isolated,
            reaches=GIVEN_UP,
        )
        for how in Batched
        for isolated in (False, True)
    },
    **{
        f"a full {'isolated ' if isolated else ''}batch of a batch handler that {how.value}, messages end in any way": full(
            Workload(copies(*"abc"), behaviours=ANY, retry=IMPATIENT, batched=how),
            Bounds(whims=1),
            batch=3,
            isolated=isolated,
            reaches=HANDLED,
        )
        for how in Batched
        for isolated in (False, True)
    },
    "a full batch of a batch handler, one message kills its process": full(
        Workload(
            copies(*"abc"),
            behaviours=(("b", Behaviour.KILLS),),
            retry=Retry(immediate=1, delayed=0),
            supervised=False,
            batched=FAILS_AS_A_WHOLE,
        ),
        batch=3,
        reaches=(*GIVEN_UP, "start-begin"),
    ),
    "a full batch of a batch handler, two of four can never be committed": full(
        Workload(
            copies(*"abcd"),
            behaviours=(("b", Behaviour.HOPELESS), ("d", Behaviour.REFUSED)),
            retry=HASTY,
            batched=FAILS_AS_A_WHOLE,
        ),
        batch=4,
        reaches=GIVEN_UP,
    ),
    "a full batch of a batch handler with an artifact for each message, one fails": full(
        Workload(copies(*"abc"), behaviours=(("b", Behaviour.FAILS),), artifacts=1, retry=HASTY, batched=SETS_ASIDE),
        batch=3,
        reaches=GIVEN_UP,
    ),
    "a full batch of a batch handler, tokens in the same database, one fails": full(
        Workload(
            copies(*"abc"),
            behaviours=(("b", Behaviour.FAILS),),
            retry=HASTY,
            deduplication=DeduplicationMode.DATABASE,
            batched=FAILS_AS_A_WHOLE,
        ),
        batch=3,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
}
