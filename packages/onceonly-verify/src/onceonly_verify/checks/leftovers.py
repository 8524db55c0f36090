"""The checks of what attempts leave behind that lose: where nothing fails, each cleans up itself, and no sweeper is needed."""

from msgspec.structs import replace

from onceonly_verify.check import GIVEN_UP, HASTY, TWICE, Check
from onceonly_verify.checks.transactions import REUSED
from onceonly_verify.checks.transactions import TWICE as ATTEMPTS
from onceonly_verify.workload import NOWHERE, Arrival, Client, DeduplicationMode, Flaw, Workload, copies
from onceonly_verify.world import Bounds

PAIR_AND_COPY = copies("a", "b", "a")
ELSEWHERE = ("begin", "commit", "token-prepare", "token-activate", "token-discard", "send", "forget", "ack")
PUBLISHED = ("row-open", "begin", "artifact-create", "commit", "send", "forget", "ack")
SWEEPING = ("load", "save", "token-prepare", "token-activate", "send", "token-remove", "ack")
LOST = Workload(arrivals=copies("a"), quiet=True, followed=True, lost=True)
MADE = ("row-open", "begin", "artifact-create", "artifact-delete", "commit", "row-remove", "ack")

LEFTOVER_CHECKS: tuple[Check, ...] = (
    Check(
        name="tokens elsewhere, two attempts with one key, and no sweeper",
        workload=Workload(arrivals=(), clients=ATTEMPTS, blocking=False, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(),
        workers=0,
    ),
    Check(
        name="tokens elsewhere, two requests under one key, and no sweeper",
        workload=Workload(arrivals=(), clients=REUSED, blocking=False, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(),
        workers=0,
    ),
    Check(
        name="tokens elsewhere, two copies, and no sweeper",
        workload=Workload(arrivals=TWICE, blocking=False, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(),
        reaches=ELSEWHERE,
    ),
    Check(
        name="tokens elsewhere, two messages in a batch, a copy, and no sweeper",
        workload=Workload(arrivals=PAIR_AND_COPY, blocking=False, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(),
        batch=2,
        reaches=ELSEWHERE,
    ),
    Check(
        name="tokens elsewhere, asked by another service, and no sweeper",
        workload=Workload(arrivals=(), asked=("ASK a",), deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(),
        workers=0,
        executors=2,
        reaches=(),
    ),
    Check(
        name="an artifact in a store with claims, two copies, and no sweeper",
        workload=Workload(arrivals=TWICE, artifacts=1, quiet=True, blocking=False),
        bounds=Bounds(),
        reaches=MADE,
    ),
    Check(
        name="artifacts in a store with claims, two messages in a batch, a copy, and no sweeper",
        workload=Workload(arrivals=PAIR_AND_COPY, artifacts=1, quiet=True, blocking=False),
        bounds=Bounds(),
        batch=2,
        reaches=MADE,
    ),
    Check(
        name="an artifact in a store with claims, two crashes, a relay and a sweeper",
        workload=Workload(arrivals=copies("a"), artifacts=1),
        bounds=Bounds(crashes=2),
        workers=1,
        relays=1,
        sweepers=1,
        reaches=PUBLISHED,
    ),
    Check(
        name="an artifact in a store with claims, two copies and a crash",
        workload=Workload(arrivals=TWICE, artifacts=1, quiet=True, blocking=False),
        bounds=Bounds(crashes=1),
        sweepers=1,
        reaches=("row-open", "begin", "artifact-create", "commit", "ack"),
    ),
    Check(
        name="an artifact in a store with claims, and two failed calls",
        workload=Workload(arrivals=copies("a"), artifacts=1, quiet=True),
        bounds=Bounds(failures=2),
        workers=1,
        sweepers=1,
        reaches=("row-open", "begin", "artifact-create", "commit", "ack"),
    ),
    Check(
        name="an artifact in a store with claims, two attempts and a relay",
        workload=Workload(arrivals=copies("a"), artifacts=1),
        bounds=Bounds(expiries=1),
        relays=1,
        reaches=PUBLISHED,
    ),
    Check(
        name="an artifact and a transaction, and a relay that sends both",
        workload=Workload(arrivals=copies("a"), clients=(Client("t"),), artifacts=1),
        bounds=Bounds(crashes=1),
        workers=1,
        relays=1,
        reaches=PUBLISHED,
    ),
    Check(
        name="artifacts in a store with claims, two batches of one worker alone",
        workload=Workload(arrivals=copies("a", "b", "a", "b"), artifacts=1, quiet=True, alone=True),
        bounds=Bounds(),
        workers=1,
        batch=2,
        reaches=("row-open", "begin", "artifact-create", "commit", "row-remove", "ack"),
    ),
    Check(
        name="a response that is lost",
        workload=LOST,
        bounds=Bounds(crashes=1),
        workers=1,
        patience=5,
        reaches=("begin", "remote-get", "dead-letter", "ack"),
    ),
    Check(
        name="a response that is lost, tokens elsewhere, and a failed call",
        workload=replace(LOST, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(failures=1),
        workers=1,
        reaches=("begin", "remote-get", "token-live", "dead-letter", "ack"),
    ),
    Check(
        name="a response, two copies, optimistic store with claims",
        workload=Workload(arrivals=TWICE, quiet=True, blocking=False, followed=True),
        bounds=Bounds(),
        reaches=("begin", "commit", "remote-get", "remote-call", "forget", "ack"),
    ),
    Check(
        name="a response that leads to another request, store with claims",
        workload=Workload(arrivals=copies("a"), followed=True, requests=1),
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=("begin", "commit", "remote-get", "remote-call", "send", "forget", "ack"),
    ),
    Check(
        name="two responses in a batch, a worker without peers, and a crash",
        workload=Workload(arrivals=copies("a", "b"), quiet=True, followed=True),
        bounds=Bounds(crashes=1),
        workers=1,
        peerless=1,
        batch=2,
        full=True,
        reaches=("begin", "commit", "remote-get", "remote-call", "forget", "ack"),
    ),
    Check(
        name="an unreadable message that failed before",
        workload=Workload(arrivals=(Arrival("u", "u", flaw=Flaw.UNREADABLE, failed=2),)),
        bounds=Bounds(),
        workers=1,
        reaches=("dead-letter", "ack"),
    ),
    Check(
        name="given up with its effects pending, tokens elsewhere, and a relay",
        workload=replace(GIVEN_UP, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(crashes=2),
        workers=1,
        relays=1,
        reaches=("begin", "commit", "send", "forget", "ack"),
    ),
    Check(
        name="tokens elsewhere, and a sweeper whose two pages are full",
        workload=Workload(
            arrivals=(), clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE, page=1, strangers=2, effects=2
        ),
        bounds=Bounds(crashes=2),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    Check(
        name="tokens, two effects, a sweeper and a failed call",
        workload=Workload(arrivals=copies("a"), effects=2, deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=SWEEPING,
    ),
    Check(
        name="tokens, and a sweeper that cannot read the oldest document",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.TOKENS, page=1, spoiled=b"of nobody"),
        bounds=Bounds(crashes=2),
        workers=1,
        sweepers=1,
        reaches=SWEEPING,
    ),
    Check(
        name="tokens, and a sweeper that finds the document of a newer version",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.TOKENS, page=1, spoiled=b'{"onceonly": 9}'),
        bounds=Bounds(crashes=2),
        workers=1,
        sweepers=1,
        reaches=SWEEPING,
    ),
    Check(
        name="tokens elsewhere, an effect that is always refused, a sweeper and a failed call",
        workload=Workload(
            arrivals=copies("a"), to=NOWHERE, retry=HASTY, deduplication=DeduplicationMode.ELSEWHERE, may_be_both=True
        ),
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=("begin", "commit", "token-prepare", "token-activate", "dead-letter", "ack"),
    ),
    Check(
        name="tokens elsewhere, an early sweep of full pages, and a failed call",
        workload=Workload(arrivals=(), clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE, page=1, strangers=1),
        bounds=Bounds(failures=1, sweeps=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
)
