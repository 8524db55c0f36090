"""The checks of tokens: of several messages, for several endpoints, with relays, and in pages of a sweeper."""

from onceonly_verify.check import CHAIN, HASTY, IMPATIENT, Check
from onceonly_verify.checks.stored_elsewhere import DEDUPLICATED, IN_DATABASE, RECEIVED, TOKENIZED
from onceonly_verify.workload import Behaviour, Client, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

TWO = copies("a", "b")
UNDECLARED = (("b", Behaviour.UNDECLARED),)
ELSEWHERE = ("begin", "commit", "token-live", "token-prepare", "token-activate", "send", "token-remove", "forget", "ack")

TOKEN_CHECKS: tuple[Check, ...] = (
    Check(
        name="a chain with tokens, and a sweeper at each endpoint",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=TOKENIZED,
    ),
    Check(
        name="a chain with tokens elsewhere, and a sweeper at each endpoint",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=ELSEWHERE,
    ),
    Check(
        name="a chain with tokens, two effects",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN, quiet=True, effects=2, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=RECEIVED,
    ),
    Check(
        name="a chain with tokens, and attributes that are handed on",
        workload=Workload(
            arrivals=copies("a"), endpoints=CHAIN, quiet=True, handed_on=True, deduplication=DeduplicationMode.TOKENS
        ),
        bounds=Bounds(),
        workers=1,
        reaches=RECEIVED,
    ),
    Check(
        name="tokens, two messages in one batch, and a crash",
        workload=Workload(arrivals=TWO, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1),
        workers=1,
        batch=2,
        reaches=TOKENIZED,
    ),
    Check(
        name="tokens, two messages in one batch, and a failed call",
        workload=Workload(arrivals=TWO, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=TOKENIZED,
    ),
    Check(
        name="tokens elsewhere, and a sweeper whose page is full",
        workload=Workload(arrivals=(), clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE, page=1, strangers=1),
        bounds=Bounds(failures=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    Check(
        name="tokens elsewhere, a transaction, a relay and two failed calls",
        workload=Workload(arrivals=(), clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(failures=2),
        workers=0,
        relays=1,
    ),
    Check(
        name="tokens elsewhere, two transactions, and a relay that sends both",
        workload=Workload(arrivals=(), clients=(Client("t"), Client("u")), deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(crashes=2),
        workers=0,
        relays=1,
    ),
    Check(
        name="tokens elsewhere, a worker and a relay",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        relays=1,
        reaches=ELSEWHERE,
    ),
    Check(
        name="tokens in the same database, two messages in one batch",
        workload=Workload(arrivals=TWO, effects=2, deduplication=DeduplicationMode.DATABASE),
        bounds=Bounds(crashes=1),
        workers=1,
        batch=2,
        reaches=IN_DATABASE,
    ),
    Check(
        name="tokens elsewhere, two messages whose processes died, a relay and a failed call",
        workload=Workload(arrivals=TWO, deduplication=DeduplicationMode.ELSEWHERE, handled_before=True),
        bounds=Bounds(failures=1),
        workers=1,
        relays=1,
        reaches=("begin", "token-live", "token-activate", "send", "token-remove", "forget", "ack"),
    ),
    Check(
        name="tokens elsewhere, given up with an effect that is refused once, and a relay",
        workload=Workload(arrivals=copies("a"), retry=HASTY, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        relays=1,
        reaches=(*ELSEWHERE, "dead-letter"),
    ),
    Check(
        name="a chain with tokens, and a sweeper of both endpoints",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(sweeps=2),
        workers=1,
        shared_sweepers=1,
        reaches=TOKENIZED,
    ),
    Check(
        name="a chain with tokens elsewhere, a sweeper of both endpoints, and a failed call",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(failures=1),
        workers=1,
        shared_sweepers=1,
        reaches=ELSEWHERE,
    ),
    Check(
        name="an event without declared subscribers next to a good message, tokens",
        workload=Workload(arrivals=TWO, behaviours=UNDECLARED, deduplication=DeduplicationMode.TOKENS, retry=IMPATIENT),
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        batch=2,
        reaches=("load", "save", "send", "dead-letter", "ack"),
    ),
    Check(
        name="an event without declared subscribers next to a good message, tokens in the same database",
        workload=Workload(arrivals=TWO, behaviours=UNDECLARED, deduplication=DeduplicationMode.DATABASE, retry=IMPATIENT),
        bounds=Bounds(crashes=1),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    Check(
        name="a dedup store, two messages in one batch",
        workload=Workload(arrivals=TWO, deduplication=DeduplicationMode.DEDUP),
        bounds=Bounds(crashes=1),
        workers=1,
        batch=2,
        reaches=DEDUPLICATED,
    ),
)

LARGER_TOKEN_CHECKS: tuple[Check, ...] = (
    Check(
        name="a chain with tokens, a sweeper of both endpoints, and a crash",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(crashes=1, sweeps=1),
        workers=1,
        shared_sweepers=1,
        reaches=TOKENIZED,
    ),
)
"""Larger worlds, for `--deep`."""
