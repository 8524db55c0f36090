"""The checks of requests that are executed once: from the side that asks, and from the side that is asked."""

from msgspec.structs import replace

from onceonly_verify.check import CHAIN, Check
from onceonly_verify.workload import DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

BOTH_SIDES = ("load", "save", "ack")
"""What the endpoint that asks does, and the one that follows up."""
CALLING = Workload(copies("a"), endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.HISTORY, requests=1)
FOLLOWING = Workload(copies("a"), quiet=True, deduplication=DeduplicationMode.HISTORY, followed=True)

REQUEST_CHECKS = {
    "a request, a failed call": Check(CALLING, Bounds(failures=1), workers=1, sweepers=1, reaches=BOTH_SIDES),
    "a request, a crash and a failed call": Check(
        CALLING, Bounds(crashes=1, failures=1), workers=1, sweepers=1, reaches=BOTH_SIDES
    ),
    "a request, two attempts": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, requests=1),
        Bounds(expiries=1),
        sweepers=1,
        reaches=("load", "save", "remote-put", "remote-call", "send", "ack"),
    ),
    "a response, two attempts": Check(
        FOLLOWING, Bounds(expiries=1), reaches=("load", "save", "remote-get", "remote-call", "ack")
    ),
    "a response, two attempts, a dedup store": Check(
        replace(FOLLOWING, deduplication=DeduplicationMode.DEDUP),
        Bounds(expiries=1),
        reaches=("load", "save", "dedup-contains", "dedup-add", "remote-get", "remote-call", "ack"),
    ),
    "a response, a crash and a failed call": Check(
        FOLLOWING, Bounds(crashes=1, failures=1), workers=1, reaches=("load", "save", "remote-get", "remote-call", "ack")
    ),
    "a request, and the other service away at every step": Check(
        CALLING, Bounds(silences=6), workers=1, sweepers=1, patience=30, reaches=("load", "save", "ack")
    ),
    "a request, a crash, and the other service away": Check(
        CALLING, Bounds(crashes=1, silences=2), workers=1, sweepers=1, patience=30, reaches=BOTH_SIDES
    ),
    "two responses in a batch, and the other service away at every step": Check(
        replace(FOLLOWING, arrivals=copies("a", "b")),
        Bounds(silences=4),
        workers=1,
        batch=2,
        patience=30,
        reaches=("remote-get", "remote-call"),
    ),
    "a request, and early sweeps": Check(CALLING, Bounds(sweeps=2), workers=1, sweepers=1, reaches=BOTH_SIDES),
    "asked by another service, late and duplicated": Check(Workload(asked=("ASK a", "PUT a")), workers=0, reaches=()),
    "asked by another service, and a crash": Check(
        Workload(asked=("ASK a",)), Bounds(crashes=1), workers=0, executors=1, reaches=()
    ),
    "asked by another service, and a failed call": Check(
        Workload(asked=("ASK a",)), Bounds(failures=1), workers=0, executors=1, reaches=()
    ),
    "asked by another service, and deleted before it is executed": Check(
        Workload(asked=("PUT a", "PUT a", "DELETE a")), Bounds(crashes=1, failures=1), workers=0, reaches=()
    ),
}


CALLED = ("CALL a",)
MADE = ("load", "save", "remote-put", "remote-call", "send", "ack")

EXECUTION_CHECKS = {
    "tokens elsewhere, asked by another service, and a failed call": Check(
        Workload(asked=CALLED, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(failures=1),
        workers=0,
        executors=1,
        reaches=(),
    ),
    "tokens elsewhere, asked by another service, and two failed calls": Check(
        Workload(asked=CALLED, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(failures=2),
        workers=0,
        executors=1,
        reaches=(),
    ),
    "tokens elsewhere, asked by another service, a crash and an early sweep": Check(
        Workload(asked=CALLED, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(crashes=1, sweeps=1),
        workers=0,
        executors=1,
        sweepers=1,
        reaches=(),
    ),
    "asked by another service for two things": Check(Workload(asked=("CALL a", "CALL b")), workers=0, reaches=()),
    "asked by another service, two effects, and a failed call": Check(
        Workload(asked=CALLED, effects=2), Bounds(failures=1), workers=0, executors=1, reaches=()
    ),
    "asked by another service, nothing to send, and a failed call": Check(
        Workload(asked=CALLED, quiet=True), Bounds(failures=1), workers=0, executors=1, reaches=()
    ),
    "asked by another service at the deadline": Check(
        Workload(asked=("LATE a", "PUT b", "DELETE b")), Bounds(failures=1), workers=0, executors=1, reaches=()
    ),
    "two requests in one batch, and a failed call": Check(
        Workload(copies("a", "b"), deduplication=DeduplicationMode.HISTORY, requests=1),
        Bounds(failures=1),
        workers=1,
        sweepers=1,
        batch=2,
        reaches=MADE,
    ),
    "an artifact and a request, and a failed call": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, requests=1),
        Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=(*MADE, "artifact-create"),
    ),
    "two artifacts, and an early sweep": Check(
        Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=2, quiet=True),
        Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "artifact-create", "ack"),
    ),
}
