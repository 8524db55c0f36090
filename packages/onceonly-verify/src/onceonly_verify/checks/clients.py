"""The checks of clients that retry, of blocks that fail, and of control messages next to other messages."""

from onceonly_verify.check import Check
from onceonly_verify.checks.transactions import LOOKING, REUSED, TWICE
from onceonly_verify.workload import OF_NOBODY, UNREADABLE, Behaviour, Client, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

ONCE = (Client("t", key="k"),)
STRAYS = Workload(arrivals=copies("a"), strays=(UNREADABLE, OF_NOBODY), deduplication=DeduplicationMode.HISTORY)
OPENED_ELSEWHERE = Workload(arrivals=(), clients=(Client("t"),), opened_by="api", deduplication=DeduplicationMode.HISTORY)
RECEIVING = ("load", "save", "send", "ack")
GIVING_UP = (*RECEIVING, "dead-letter")

CLIENT_CHECKS: tuple[Check, ...] = (
    Check(
        name="a client that retries",
        workload=Workload(arrivals=(), clients=ONCE, clients_retry=True),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        relays=1,
    ),
    Check(
        name="two clients that retry, two requests under one key, optimistic store",
        workload=Workload(arrivals=(), clients=REUSED, clients_retry=True, blocking=False),
        bounds=Bounds(failures=1),
        workers=0,
        relays=1,
    ),
    Check(
        name="two clients that retry, one key and a crash, optimistic store",
        workload=Workload(arrivals=(), clients=TWICE, clients_retry=True, blocking=False),
        bounds=Bounds(crashes=1),
        workers=0,
        relays=1,
    ),
    Check(
        name="two clients that retry, two requests under one key, on documents",
        workload=Workload(arrivals=(), clients=REUSED, clients_retry=True, deduplication=DeduplicationMode.HISTORY, quiet=True),
        bounds=Bounds(failures=1),
        workers=0,
    ),
    Check(
        name="a block that fails, and two attempts with one key",
        workload=Workload(arrivals=(), clients=TWICE, behaviours=(("t", Behaviour.UNSTEADY),)),
        bounds=Bounds(crashes=1, whims=2),
        workers=0,
        relays=1,
    ),
    Check(
        name="a block that waits for a lock, and two attempts with one key",
        workload=Workload(arrivals=(), clients=TWICE, behaviours=(("t", Behaviour.LOCKED),)),
        bounds=Bounds(failures=1, whims=1),
        workers=0,
        relays=1,
    ),
    Check(
        name="tokens elsewhere, a transaction with two effects",
        workload=Workload(arrivals=(), clients=(Client("t"),), effects=2, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(crashes=1, failures=1, sweeps=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    Check(
        name="a control message, two effects",
        workload=Workload(arrivals=(), clients=(Client("t"),), effects=2, deduplication=DeduplicationMode.HISTORY),
        bounds=Bounds(failures=1),
        workers=1,
        reaches=LOOKING,
    ),
    Check(
        name="a control message that another endpoint processes",
        workload=OPENED_ELSEWHERE,
        bounds=Bounds(crashes=1),
        workers=1,
        reaches=LOOKING,
    ),
    Check(
        name="a transaction that sends nothing",
        workload=Workload(
            arrivals=(), clients=(Client("t", key="k", effects=False),), deduplication=DeduplicationMode.HISTORY, quiet=True
        ),
        bounds=Bounds(failures=1),
        workers=0,
    ),
    Check(
        name="stray control messages next to a good message, and a crash",
        workload=STRAYS,
        bounds=Bounds(crashes=1),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    Check(
        name="stray control messages next to a good message, and a failed call",
        workload=STRAYS,
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
        reaches=GIVING_UP,
    ),
    Check(
        name="a control message next to a good message",
        workload=Workload(
            arrivals=copies("a"), clients=(Client("t"),), deduplication=DeduplicationMode.HISTORY, prefix="cloudevents:"
        ),
        bounds=Bounds(),
        workers=1,
        batch=2,
        reaches=RECEIVING,
    ),
    Check(
        name="two control messages in one batch",
        workload=Workload(arrivals=(), clients=(Client("t"), Client("u", entity="f")), deduplication=DeduplicationMode.HISTORY),
        bounds=Bounds(),
        workers=1,
        batch=2,
        reaches=LOOKING,
    ),
)
