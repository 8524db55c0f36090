"""The checks of what attempts leave behind that lose: where nothing fails, each cleans up itself, and no sweeper is needed."""

from msgspec.structs import replace

from onceonly_verify.check import GIVEN_UP, HASTY, TWICE, Check
from onceonly_verify.checks.transactions import REUSED
from onceonly_verify.checks.transactions import TWICE as ATTEMPTS
from onceonly_verify.workload import NOWHERE, Client, DeduplicationMode, Flaw, MessageArrival, Workload, copies
from onceonly_verify.world import Bounds

PAIR_AND_COPY = copies("a", "b", "a")
ELSEWHERE = ("begin", "commit", "token-prepare", "token-activate", "token-discard", "send", "forget", "ack")
PUBLISHED = ("row-open", "begin", "artifact-create", "commit", "send", "forget", "ack")
SWEEPING = ("load", "save", "token-prepare", "token-activate", "send", "token-remove", "ack")
LOST = Workload(copies("a"), quiet=True, followed=True, lost=True)
MADE = ("row-open", "begin", "artifact-create", "artifact-delete", "commit", "row-remove", "ack")

LEFTOVER_CHECKS = {
    "tokens elsewhere, two attempts with one key, and no sweeper": Check(
        Workload(clients=ATTEMPTS, blocking=False, deduplication=DeduplicationMode.ELSEWHERE), workers=0
    ),
    "tokens elsewhere, two requests under one key, and no sweeper": Check(
        Workload(clients=REUSED, blocking=False, deduplication=DeduplicationMode.ELSEWHERE), workers=0
    ),
    "tokens elsewhere, two copies, and no sweeper": Check(
        Workload(TWICE, blocking=False, deduplication=DeduplicationMode.ELSEWHERE), reaches=ELSEWHERE
    ),
    "tokens elsewhere, two messages in a batch, a copy, and no sweeper": Check(
        Workload(PAIR_AND_COPY, blocking=False, deduplication=DeduplicationMode.ELSEWHERE), batch=2, reaches=ELSEWHERE
    ),
    "tokens elsewhere, asked by another service, and no sweeper": Check(
        Workload(asked=("ASK a",), deduplication=DeduplicationMode.ELSEWHERE), workers=0, executors=2, reaches=()
    ),
    "an artifact in a store with claims, two copies, and no sweeper": Check(
        Workload(TWICE, artifacts=1, quiet=True, blocking=False), reaches=MADE
    ),
    "artifacts in a store with claims, two messages in a batch, a copy, and no sweeper": Check(
        Workload(PAIR_AND_COPY, artifacts=1, quiet=True, blocking=False), batch=2, reaches=MADE
    ),
    "an artifact in a store with claims, two crashes, a relay and a sweeper": Check(
        Workload(copies("a"), artifacts=1), Bounds(crashes=2), workers=1, relays=1, sweepers=1, reaches=PUBLISHED
    ),
    "an artifact in a store with claims, two copies and a crash": Check(
        Workload(TWICE, artifacts=1, quiet=True, blocking=False),
        Bounds(crashes=1),
        sweepers=1,
        reaches=("row-open", "begin", "artifact-create", "commit", "ack"),
    ),
    "an artifact in a store with claims, and two failed calls": Check(
        Workload(copies("a"), artifacts=1, quiet=True),
        Bounds(failures=2),
        workers=1,
        sweepers=1,
        reaches=("row-open", "begin", "artifact-create", "commit", "ack"),
    ),
    "an artifact in a store with claims, two attempts and a relay": Check(
        Workload(copies("a"), artifacts=1), Bounds(expiries=1), relays=1, reaches=PUBLISHED
    ),
    "an artifact and a transaction, and a relay that sends both": Check(
        Workload(copies("a"), clients=(Client("t"),), artifacts=1), Bounds(crashes=1), workers=1, relays=1, reaches=PUBLISHED
    ),
    "artifacts in a store with claims, two batches of one worker alone": Check(
        Workload(copies("a", "b", "a", "b"), artifacts=1, quiet=True, alone=True),
        workers=1,
        batch=2,
        reaches=("row-open", "begin", "artifact-create", "commit", "row-remove", "ack"),
    ),
    "a response that is lost": Check(
        LOST, Bounds(crashes=1), workers=1, patience=5, reaches=("begin", "remote-get", "dead-letter", "ack")
    ),
    "a response that is lost, tokens elsewhere, and a failed call": Check(
        replace(LOST, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(failures=1),
        workers=1,
        reaches=("begin", "remote-get", "token-live", "dead-letter", "ack"),
    ),
    "a response, two copies, optimistic store with claims": Check(
        Workload(TWICE, quiet=True, blocking=False, followed=True),
        reaches=("begin", "commit", "remote-get", "remote-call", "forget", "ack"),
    ),
    "a response that leads to another request, store with claims": Check(
        Workload(copies("a"), followed=True, requests=1),
        Bounds(crashes=1),
        workers=1,
        reaches=("begin", "commit", "remote-get", "remote-call", "send", "forget", "ack"),
    ),
    "two responses in a batch, a worker without peers, and a crash": Check(
        Workload(copies("a", "b"), quiet=True, followed=True),
        Bounds(crashes=1),
        workers=1,
        peerless=1,
        batch=2,
        full=True,
        reaches=("begin", "commit", "remote-get", "remote-call", "forget", "ack"),
    ),
    "an unreadable message that failed before": Check(
        Workload((MessageArrival("u", "u", flaw=Flaw.UNREADABLE, failed=2),)), workers=1, reaches=("dead-letter", "ack")
    ),
    "given up with its effects pending, tokens elsewhere, and a relay": Check(
        replace(GIVEN_UP, deduplication=DeduplicationMode.ELSEWHERE), Bounds(crashes=2), workers=1, relays=1
    ),
    "tokens elsewhere, and a sweeper whose two pages are full": Check(
        Workload(clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE, page=1, strangers=2, effects=2),
        Bounds(crashes=2),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    "tokens, two effects, a sweeper and a failed call": Check(
        Workload(copies("a"), effects=2, deduplication=DeduplicationMode.TOKENS),
        Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=SWEEPING,
    ),
    "tokens, and a sweeper that cannot read the oldest document": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.TOKENS, page=1, spoiled=b"of nobody"),
        Bounds(crashes=2),
        workers=1,
        sweepers=1,
        reaches=SWEEPING,
    ),
    "tokens, and a sweeper that finds the document of a newer version": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.TOKENS, page=1, spoiled=b'{"onceonly": 9}'),
        Bounds(crashes=2),
        workers=1,
        sweepers=1,
        reaches=SWEEPING,
    ),
    "tokens elsewhere, an effect that is always refused, a sweeper and a failed call": Check(
        Workload(copies("a"), to=NOWHERE, retry=HASTY, deduplication=DeduplicationMode.ELSEWHERE, may_be_both=True),
        Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=("begin", "commit", "token-prepare", "token-activate", "dead-letter", "ack"),
    ),
    "tokens elsewhere, an early sweep of full pages, and a failed call": Check(
        Workload(clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE, page=1, strangers=1),
        Bounds(failures=1, sweeps=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
}
