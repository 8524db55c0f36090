"""The checks of requests that are executed once: from the side that asks, and from the side that is asked."""

from msgspec.structs import replace

from onceonly_verify.check import CHAIN, Check
from onceonly_verify.workload import DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

BOTH_SIDES = ("load", "save", "ack")
"""What the endpoint that asks does, and the one that follows up."""
CALLING = Workload(arrivals=copies("a"), endpoints=CHAIN, quiet=True, deduplication=DeduplicationMode.HISTORY, requests=1)
FOLLOWING = Workload(arrivals=copies("a"), quiet=True, deduplication=DeduplicationMode.HISTORY, followed=True)

REQUEST_CHECKS: tuple[Check, ...] = (
    Check(
        name="a request, a failed call",
        workload=CALLING,
        bounds=Bounds(failures=1),
        workers=1,
        sweepers=1,
        reaches=BOTH_SIDES,
    ),
    Check(
        name="a request, a crash and a failed call",
        workload=CALLING,
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        sweepers=1,
        reaches=BOTH_SIDES,
    ),
    Check(
        name="a request, two attempts",
        workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, requests=1),
        bounds=Bounds(expiries=1),
        sweepers=1,
        reaches=("load", "save", "remote-put", "remote-call", "send", "ack"),
    ),
    Check(
        name="a response, two attempts",
        workload=FOLLOWING,
        bounds=Bounds(expiries=1),
        reaches=("load", "save", "remote-get", "remote-call", "ack"),
    ),
    Check(
        name="a response, two attempts, a dedup store",  # a fence finds no record of what is done: only the admission knows
        workload=replace(FOLLOWING, deduplication=DeduplicationMode.DEDUP),
        bounds=Bounds(expiries=1),
        reaches=("load", "save", "dedup-contains", "dedup-add", "remote-get", "remote-call", "ack"),
    ),
    Check(
        name="a response, a crash and a failed call",
        workload=FOLLOWING,
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        reaches=("load", "save", "remote-get", "remote-call", "ack"),
    ),
    Check(
        name="a request, and the other service away at every step",
        workload=CALLING,
        bounds=Bounds(silences=6),
        workers=1,
        sweepers=1,
        patience=30,
        reaches=("load", "save", "ack"),
    ),
    Check(
        name="a request, a crash, and the other service away",  # at the DELETEs of the attempt that died, too
        workload=CALLING,
        bounds=Bounds(crashes=1, silences=2),
        workers=1,
        sweepers=1,
        patience=30,
        reaches=BOTH_SIDES,
    ),
    Check(
        name="two responses in a batch, and the other service away at every step",
        workload=replace(FOLLOWING, arrivals=copies("a", "b")),
        bounds=Bounds(silences=4),
        workers=1,
        batch=2,
        patience=30,
        reaches=("remote-get", "remote-call"),
    ),
    Check(
        name="a request, and early sweeps",
        workload=CALLING,
        bounds=Bounds(sweeps=2),
        workers=1,
        sweepers=1,
        reaches=BOTH_SIDES,
    ),
    Check(
        name="asked by another service, late and duplicated",
        workload=Workload(arrivals=(), asked=("ASK a", "PUT a")),
        bounds=Bounds(),
        workers=0,
        reaches=(),
    ),
    Check(
        name="asked by another service, and a crash",
        workload=Workload(arrivals=(), asked=("ASK a",)),
        bounds=Bounds(crashes=1),
        workers=0,
        executors=1,
        reaches=(),
    ),
    Check(
        name="asked by another service, and a failed call",
        workload=Workload(arrivals=(), asked=("ASK a",)),
        bounds=Bounds(failures=1),
        workers=0,
        executors=1,
        reaches=(),
    ),
    Check(
        name="asked by another service, and deleted before it is executed",
        workload=Workload(arrivals=(), asked=("PUT a", "PUT a", "DELETE a")),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        reaches=(),
    ),
)
