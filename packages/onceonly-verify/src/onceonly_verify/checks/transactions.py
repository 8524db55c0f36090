"""The checks of clients' transactions: with a relay, and with control messages where the store cannot be searched."""

from onceonly_verify.check import Check
from onceonly_verify.workload import Client, DeduplicationMode, Workload
from onceonly_verify.world import Bounds

TWICE = (Client("t", key="k"), Client("t", key="k"))
REUSED = (Client("t", key="k", request="this"), Client("t", key="k", request="that"))
ELSEWHERE = (Client("t", key="k"), Client("t", key="k", entity="f"))
NOWHERE = Client("t", key="k", entity="")
LOOKING = ("load", "ack")
"""What a worker does to see how an attempt ended."""

TRANSACTION_CHECKS: tuple[Check, ...] = (
    Check(
        name="a relay, and two attempts with one key",
        workload=Workload(arrivals=(), clients=TWICE),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        relays=1,
    ),
    Check(
        name="a relay, and two requests under one key, optimistic store",
        workload=Workload(arrivals=(), clients=REUSED, blocking=False),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        relays=1,
    ),
    Check(
        name="tokens elsewhere, a relay, and a sweeper whose clock is ahead",
        workload=Workload(arrivals=(), clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(crashes=1, sweeps=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    Check(
        name="tokens elsewhere, two attempts with one key, and early sweeps",
        workload=Workload(arrivals=(), clients=TWICE, deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(failures=1, sweeps=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    Check(
        name="tokens elsewhere, asked by another service, and an early sweep",
        workload=Workload(arrivals=(), asked=("ASK a",), deduplication=DeduplicationMode.ELSEWHERE),
        bounds=Bounds(sweeps=1),
        workers=0,
        executors=1,
        sweepers=1,
        reaches=(),
    ),
    Check(
        name="tokens, a control message, a key without an entity, and an early sweep",
        workload=Workload(arrivals=(), clients=(NOWHERE,), deduplication=DeduplicationMode.TOKENS),
        bounds=Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=LOOKING,
    ),
    Check(
        name="a control message",
        workload=Workload(arrivals=(), clients=(Client("t"),), deduplication=DeduplicationMode.HISTORY, looks=2),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        reaches=LOOKING,
    ),
    Check(
        name="a control message, two workers",
        workload=Workload(arrivals=(), clients=(Client("t"),), deduplication=DeduplicationMode.HISTORY),
        bounds=Bounds(crashes=1, expiries=1),
        reaches=LOOKING,
    ),
    Check(
        name="a control message, and a client's key",
        workload=Workload(arrivals=(), clients=(Client("t", key="k"),), deduplication=DeduplicationMode.HISTORY),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        reaches=LOOKING,
    ),
    Check(
        name="a control message, and a key without an entity",
        workload=Workload(arrivals=(), clients=(NOWHERE,), deduplication=DeduplicationMode.HISTORY),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        reaches=LOOKING,
    ),
    Check(
        name="a control message, and two attempts with one key",
        workload=Workload(arrivals=(), clients=TWICE, deduplication=DeduplicationMode.HISTORY),
        bounds=Bounds(),
        workers=1,
        reaches=LOOKING,
    ),
    Check(
        name="one key, two requests",
        workload=Workload(arrivals=(), clients=REUSED, deduplication=DeduplicationMode.HISTORY, quiet=True),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
    ),
    Check(
        name="one key, two entities",
        workload=Workload(arrivals=(), clients=ELSEWHERE, deduplication=DeduplicationMode.HISTORY, quiet=True),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
    ),
    Check(
        name="one key, with an entity and without",
        workload=Workload(
            arrivals=(), clients=(Client("t", key="k"), NOWHERE), deduplication=DeduplicationMode.HISTORY, quiet=True
        ),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
    ),
    Check(
        name="one key, three attempts on two entities",
        workload=Workload(
            arrivals=(), clients=(*ELSEWHERE, Client("t", key="k")), deduplication=DeduplicationMode.HISTORY, quiet=True
        ),
        bounds=Bounds(),
        workers=0,
    ),
)
