"""The checks of executions with tokens, of their responses, and of two requests or two kinds of artifacts at once."""

from onceonly_verify.check import Check
from onceonly_verify.workload import DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

CALLED = ("CALL a",)
MADE = ("load", "save", "remote-put", "remote-call", "send", "ack")

EXECUTION_CHECKS: tuple[Check, ...] = (
    Check(
        name="tokens elsewhere, asked by another service, and a failed call",
        workload=Workload(arrivals=(), asked=CALLED, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(failures=1),
        workers=0,
        executors=1,
        reaches=(),
    ),
    Check(
        name="tokens elsewhere, asked by another service, and two failed calls",
        workload=Workload(arrivals=(), asked=CALLED, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(failures=2),
        workers=0,
        executors=1,
        reaches=(),
    ),
    Check(
        name="tokens elsewhere, asked by another service, a crash and an early sweep",
        workload=Workload(arrivals=(), asked=CALLED, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(crashes=1, sweeps=1),
        workers=0,
        executors=1,
        sweepers=1,
        reaches=(),
    ),
    Check(
        name="asked by another service for two things",
        workload=Workload(arrivals=(), asked=("CALL a", "CALL b")),
        bounds=Bounds(),
        workers=0,
        reaches=(),
    ),
    Check(
        name="asked by another service, two effects, and a failed call",
        workload=Workload(arrivals=(), asked=CALLED, effects=2),
        bounds=Bounds(failures=1),
        workers=0,
        executors=1,
        reaches=(),
    ),
    Check(
        name="asked by another service, nothing to send, and a failed call",
        workload=Workload(arrivals=(), asked=CALLED, quiet=True),
        bounds=Bounds(failures=1),
        workers=0,
        executors=1,
        reaches=(),
    ),
    Check(
        name="asked by another service at the deadline",
        workload=Workload(arrivals=(), asked=("LATE a", "PUT b", "DELETE b")),
        bounds=Bounds(failures=1),
        workers=0,
        executors=1,
        reaches=(),
    ),
    Check(
        name="two requests in one batch, and a failed call",
        workload=Workload(arrivals=copies("a", "b"), deduplication=DeduplicationMode.HISTORY, requests=1),
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        batch=2,
        reaches=MADE,
    ),
    Check(
        name="an artifact and a request, and a failed call",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1, requests=1),
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=(*MADE, "artifact-create"),
    ),
    Check(
        name="two artifacts, and an early sweep",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=2, quiet=True),
        bounds=Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=("load", "save", "artifact-create", "ack"),
    ),
)
