"""The checks of tokens: in a store of their own or in the same database, with relays, and in pages of a sweeper."""

from msgspec.structs import replace

from onceonly_verify.check import CHAIN, HASTY, IMPATIENT, Check
from onceonly_verify.checks.stored_elsewhere import DEDUPLICATED, IN_DATABASE, RECEIVED, TOKENIZED
from onceonly_verify.workload import Behaviour, Client, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

TWO = copies("a", "b")
UNDECLARED = (("b", Behaviour.UNDECLARED),)
ELSEWHERE = ("begin", "commit", "token-live", "token-prepare", "token-activate", "send", "token-remove", "forget", "ack")

TOKEN_CHECKS = {
    "a chain with tokens, and a sweeper at each endpoint": Check(
        Workload(copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.TOKENS),
        Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=TOKENIZED,
    ),
    "a chain with tokens elsewhere, and a sweeper at each endpoint": Check(
        Workload(copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=ELSEWHERE,
    ),
    "a chain with tokens, two effects": Check(
        Workload(copies("a"), endpoints=CHAIN, quiet=True, effects=2, deduplication=DeduplicationMode.TOKENS),
        Bounds(crashes=1),
        workers=1,
        reaches=RECEIVED,
    ),
    "a chain with tokens, and attributes that are handed on": Check(
        Workload(copies("a"), endpoints=CHAIN, quiet=True, handed_on=True, deduplication=DeduplicationMode.TOKENS),
        workers=1,
        reaches=RECEIVED,
    ),
    "tokens, two messages in one batch, and a crash": Check(
        Workload(TWO, deduplication=DeduplicationMode.TOKENS), Bounds(crashes=1), workers=1, batch=2, reaches=TOKENIZED
    ),
    "tokens, two messages in one batch, and a failed call": Check(
        Workload(TWO, deduplication=DeduplicationMode.TOKENS), Bounds(failures=1), workers=1, batch=2, reaches=TOKENIZED
    ),
    "tokens elsewhere, and a sweeper whose page is full": Check(
        Workload(clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE, page=1, strangers=1),
        Bounds(failures=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    "tokens elsewhere, a transaction, a relay and two failed calls": Check(
        Workload(clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE), Bounds(failures=2), workers=0, relays=1
    ),
    "tokens elsewhere, two transactions, and a relay that sends both": Check(
        Workload(clients=(Client("t"), Client("u")), deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(crashes=2),
        workers=0,
        relays=1,
    ),
    "tokens elsewhere, a worker and a relay": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(crashes=1, failures=1),
        workers=1,
        relays=1,
        reaches=ELSEWHERE,
    ),
    "tokens in the same database, two messages in one batch": Check(
        Workload(TWO, effects=2, deduplication=DeduplicationMode.DATABASE),
        Bounds(crashes=1),
        workers=1,
        batch=2,
        reaches=IN_DATABASE,
    ),
    "tokens elsewhere, two messages whose processes died, a relay and a failed call": Check(
        Workload(TWO, deduplication=DeduplicationMode.ELSEWHERE, handled_before=True),
        Bounds(failures=1),
        workers=1,
        relays=1,
        reaches=("begin", "token-live", "token-activate", "send", "token-remove", "forget", "ack"),
    ),
    "tokens elsewhere, given up with an effect that is refused once, and a relay": Check(
        Workload(copies("a"), retry=HASTY, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(crashes=1, failures=1),
        workers=1,
        relays=1,
        reaches=(*ELSEWHERE, "dead-letter"),
    ),
    "a chain with tokens, and a sweeper of both endpoints": Check(
        Workload(copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.TOKENS),
        Bounds(sweeps=2),
        workers=1,
        shared_sweepers=1,
        reaches=TOKENIZED,
    ),
    "a chain with tokens elsewhere, a sweeper of both endpoints, and a failed call": Check(
        Workload(copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(failures=1),
        workers=1,
        shared_sweepers=1,
        reaches=ELSEWHERE,
    ),
    "an event without declared subscribers next to a good message, tokens": Check(
        Workload(TWO, behaviours=UNDECLARED, deduplication=DeduplicationMode.TOKENS, retry=IMPATIENT),
        Bounds(failures=1),
        workers=1,
        sweepers=1,
        batch=2,
        reaches=("load", "save", "send", "dead-letter", "ack"),
    ),
    "an event without declared subscribers next to a good message, tokens in the same database": Check(
        Workload(TWO, behaviours=UNDECLARED, deduplication=DeduplicationMode.DATABASE, retry=IMPATIENT),
        Bounds(crashes=1),
        workers=1,
        batch=2,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    "a dedup store, two messages in one batch": Check(
        Workload(TWO, deduplication=DeduplicationMode.DEDUP), Bounds(crashes=1), workers=1, batch=2, reaches=DEDUPLICATED
    ),
}

LARGER_TOKEN_CHECKS = {
    "a chain with tokens, a sweeper of both endpoints, and a crash": Check(
        Workload(copies("a"), endpoints=CHAIN, deduplication=DeduplicationMode.TOKENS),
        Bounds(crashes=1, sweeps=1),
        workers=1,
        shared_sweepers=1,
        reaches=TOKENIZED,
    )
}
"""Larger worlds, for `--deep`."""


TWICE = (Client("t", key="k"), Client("t", key="k"))
MADE = ("begin", "commit", "send", "forget", "ack", "artifact-create")
ARTIFACT = Workload(copies("a"), artifacts=1)

DATABASE_CHECKS = {
    "tokens in the same database, two attempts with one key, and a relay": Check(
        Workload(clients=TWICE, deduplication=DeduplicationMode.DATABASE), Bounds(crashes=1, failures=1), workers=0, relays=1
    ),
    "tokens in the same database, two enlisted transactions, and a relay": Check(
        Workload(transactions=("t", "u"), told=("t",), deduplication=DeduplicationMode.DATABASE),
        Bounds(crashes=1, failures=1),
        workers=0,
        relays=1,
    ),
    "tokens in the same database, asked by another service, and a failed call": Check(
        Workload(asked=("CALL a",), effects=2, deduplication=DeduplicationMode.DATABASE),
        Bounds(failures=1),
        workers=0,
        executors=1,
        reaches=(),
    ),
    "tokens in the same database, asked by another service, and a crash": Check(
        Workload(asked=("CALL a",), deduplication=DeduplicationMode.DATABASE), Bounds(crashes=1), workers=0, reaches=()
    ),
    "an artifact, a relay and a failed call": Check(
        ARTIFACT, Bounds(failures=1), workers=1, relays=1, sweepers=1, reaches=MADE
    ),
    "an artifact, a relay, and two attempts": Check(ARTIFACT, Bounds(expiries=1), relays=1, sweepers=1, reaches=MADE),
    "an artifact, a relay, and an early sweep": Check(
        ARTIFACT, Bounds(sweeps=1), workers=1, relays=1, sweepers=1, reaches=MADE
    ),
    "an artifact, a relay, a crash and a failed call": Check(
        ARTIFACT, Bounds(crashes=1, failures=1), workers=1, relays=1, sweepers=1, reaches=MADE
    ),
}

LARGER_DATABASE_CHECKS = {
    "tokens in the same database, asked twice by another service, and a crash": Check(
        Workload(asked=("ASK a",), deduplication=DeduplicationMode.DATABASE), Bounds(crashes=1), workers=0, reaches=()
    ),
    "an artifact, a relay, an early sweep and two attempts, optimistic store": Check(
        replace(ARTIFACT, blocking=False), Bounds(expiries=1, sweeps=1), relays=1, sweepers=1, reaches=MADE
    ),
}
"""Larger worlds, for `--deep`."""
