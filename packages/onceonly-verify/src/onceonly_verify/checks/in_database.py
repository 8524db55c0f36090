"""The checks of transactions and executions with tokens in the database of the store, and of artifacts with relays."""

from msgspec.structs import replace

from onceonly_verify.check import Check
from onceonly_verify.workload import Client, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

TWICE = (Client("t", key="k"), Client("t", key="k"))
MADE = ("begin", "commit", "send", "forget", "ack", "artifact-create")
ARTIFACT = Workload(arrivals=copies("a"), artifacts=1)

DATABASE_CHECKS: tuple[Check, ...] = (
    Check(
        name="tokens in the same database, two attempts with one key, and a relay",
        workload=Workload(arrivals=(), clients=TWICE, deduplication=DeduplicationMode.DATABASE),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        relays=1,
    ),
    Check(
        name="tokens in the same database, two enlisted transactions, and a relay",
        workload=Workload(arrivals=(), transactions=("t", "u"), told=("t",), deduplication=DeduplicationMode.DATABASE),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        relays=1,
    ),
    Check(
        name="tokens in the same database, asked by another service, and a failed call",
        workload=Workload(arrivals=(), asked=("CALL a",), effects=2, deduplication=DeduplicationMode.DATABASE),
        bounds=Bounds(failures=1),
        workers=0,
        executors=1,
        reaches=(),
    ),
    Check(
        name="tokens in the same database, asked by another service, and a crash",
        workload=Workload(arrivals=(), asked=("CALL a",), deduplication=DeduplicationMode.DATABASE),
        bounds=Bounds(crashes=1),
        workers=0,
        reaches=(),
    ),
    Check(
        name="an artifact, a relay and a failed call",
        workload=ARTIFACT,
        bounds=Bounds(failures=1),
        workers=1,
        relays=1,
        sweepers=1,
        reaches=MADE,
    ),
    Check(
        name="an artifact, a relay, and two attempts",
        workload=ARTIFACT,
        bounds=Bounds(expiries=1),
        relays=1,
        sweepers=1,
        reaches=MADE,
    ),
    Check(
        name="an artifact, a relay, and an early sweep",
        workload=ARTIFACT,
        bounds=Bounds(sweeps=1),
        workers=1,
        relays=1,
        sweepers=1,
        reaches=MADE,
    ),
    Check(
        name="an artifact, a relay, a crash and a failed call",
        workload=ARTIFACT,
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        relays=1,
        sweepers=1,
        reaches=MADE,
    ),
)

LARGER_DATABASE_CHECKS: tuple[Check, ...] = (
    Check(
        name="tokens in the same database, asked twice by another service, and a crash",
        workload=Workload(arrivals=(), asked=("ASK a",), deduplication=DeduplicationMode.DATABASE),
        bounds=Bounds(crashes=1),
        workers=0,
        reaches=(),
    ),
    Check(
        name="an artifact, a relay, an early sweep and two attempts, optimistic store",
        workload=replace(ARTIFACT, blocking=False),
        bounds=Bounds(expiries=1, sweeps=1),
        relays=1,
        sweepers=1,
        reaches=MADE,
    ),
)
"""Larger worlds, for `--deep`."""
