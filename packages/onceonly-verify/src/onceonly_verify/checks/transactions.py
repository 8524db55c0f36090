"""The checks of clients' transactions: with a relay, and with control messages where the store cannot be searched."""

from msgspec.structs import replace

from onceonly_verify.check import Check
from onceonly_verify.workload import OF_NOBODY, UNREADABLE, Behaviour, Client, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

TWICE = (Client("t", key="k"), Client("t", key="k"))
REUSED = (Client("t", key="k", request="this"), Client("t", key="k", request="that"))
ELSEWHERE = (Client("t", key="k"), Client("t", key="k", entity="f"))
NOWHERE = Client("t", key="k", entity="")
LOOKING = ("load", "ack")
"""What a worker does to see how an attempt ended."""

TRANSACTION_CHECKS = {
    "a relay, and two attempts with one key": Check(
        Workload(clients=TWICE), Bounds(crashes=1, failures=1), workers=0, relays=1
    ),
    "a relay, and two requests under one key, optimistic store": Check(
        Workload(clients=REUSED, blocking=False), Bounds(crashes=1, failures=1), workers=0, relays=1
    ),
    "tokens elsewhere, a relay, and a sweeper whose clock is ahead": Check(
        Workload(clients=(Client("t"),), deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(crashes=1, sweeps=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    "tokens elsewhere, two attempts with one key, and early sweeps": Check(
        Workload(clients=TWICE, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(failures=1, sweeps=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    "tokens elsewhere, asked by another service, and an early sweep": Check(
        Workload(asked=("ASK a",), deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(sweeps=1),
        workers=0,
        executors=1,
        sweepers=1,
        reaches=(),
    ),
    "tokens, a control message, a key without an entity, and an early sweep": Check(
        Workload(clients=(NOWHERE,), deduplication=DeduplicationMode.TOKENS),
        Bounds(sweeps=1),
        workers=1,
        sweepers=1,
        reaches=LOOKING,
    ),
    "a control message": Check(
        Workload(clients=(Client("t"),), deduplication=DeduplicationMode.HISTORY, looks=2),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=LOOKING,
    ),
    "a control message, two workers": Check(
        Workload(clients=(Client("t"),), deduplication=DeduplicationMode.HISTORY),
        Bounds(crashes=1, expiries=1),
        reaches=LOOKING,
    ),
    "a control message, and a client's key": Check(
        Workload(clients=(Client("t", key="k"),), deduplication=DeduplicationMode.HISTORY),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=LOOKING,
    ),
    "a control message, and a key without an entity": Check(
        Workload(clients=(NOWHERE,), deduplication=DeduplicationMode.HISTORY),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=LOOKING,
    ),
    "a control message, and two attempts with one key": Check(
        Workload(clients=TWICE, deduplication=DeduplicationMode.HISTORY), workers=1, reaches=LOOKING
    ),
    "one key, two requests": Check(
        Workload(clients=REUSED, deduplication=DeduplicationMode.HISTORY, quiet=True), Bounds(crashes=1, failures=1), workers=0
    ),
    "one key, two entities": Check(
        Workload(clients=ELSEWHERE, deduplication=DeduplicationMode.HISTORY, quiet=True),
        Bounds(crashes=1, failures=1),
        workers=0,
    ),
    "one key, with an entity and without": Check(
        Workload(clients=(Client("t", key="k"), NOWHERE), deduplication=DeduplicationMode.HISTORY, quiet=True),
        Bounds(crashes=1, failures=1),
        workers=0,
    ),
    "one key, three attempts on two entities": Check(
        Workload(clients=(*ELSEWHERE, Client("t", key="k")), deduplication=DeduplicationMode.HISTORY, quiet=True), workers=0
    ),
}


ONCE = (Client("t", key="k"),)
IN_TABLES = Workload(clients=(Client("t"),), controlled=True)
"""In a store that a relay can search, such as SQL."""
CHECKING = ("record", "ack")
"""What a worker does there to see how an attempt ended."""

SEARCHED_CHECKS = {
    "a control message in tables": Check(
        replace(IN_TABLES, looks=2), Bounds(crashes=1, failures=1), workers=1, reaches=CHECKING
    ),
    "a control message in tables, two workers": Check(IN_TABLES, Bounds(crashes=1, expiries=1), reaches=CHECKING),
    "a control message in tables, and a client's key": Check(
        replace(IN_TABLES, clients=ONCE), Bounds(crashes=1, failures=1), workers=1, reaches=CHECKING
    ),
    "a control message in tables, and two attempts with one key": Check(
        replace(IN_TABLES, clients=TWICE), Bounds(crashes=1), workers=1, reaches=CHECKING
    ),
    "a control message in tables, and a relay": Check(
        IN_TABLES, Bounds(crashes=1, failures=1), workers=1, relays=1, reaches=CHECKING
    ),
    "a control message in tables, a client's key, and a relay": Check(
        replace(IN_TABLES, clients=ONCE), Bounds(crashes=1, failures=1), workers=1, relays=1, reaches=CHECKING
    ),
    "a control message in tables, next to a good message": Check(
        replace(IN_TABLES, arrivals=copies("a"), prefix="cloudevents:"), workers=1, batch=2, reaches=(*CHECKING, "send")
    ),
}
STRAYS = Workload(copies("a"), strays=(UNREADABLE, OF_NOBODY), deduplication=DeduplicationMode.HISTORY)
OPENED_ELSEWHERE = Workload(clients=(Client("t"),), opened_by="api", deduplication=DeduplicationMode.HISTORY)
RECEIVING = ("load", "save", "send", "ack")
GIVING_UP = (*RECEIVING, "dead-letter")

OWN = Workload(clients=ONCE, clients_own=True)
HELD_TWICE = Workload(clients=TWICE, clients_own=True)

OWN_TRANSACTION_CHECKS = {
    "a key in the caller's transaction": Check(OWN, Bounds(crashes=1, failures=1), workers=0),
    "a key in the caller's transaction, a rollback, savepoints, and a crash": Check(
        replace(OWN, behaviours=(("t", Behaviour.OWNS),)), Bounds(crashes=1, whims=2), workers=0
    ),
    "a key in the caller's transaction, savepoints, and a failed call": Check(
        replace(OWN, behaviours=(("t", Behaviour.OWNS),)), Bounds(failures=1, whims=2), workers=0
    ),
    "a key in the caller's transaction, two holders, and a failed call": Check(HELD_TWICE, Bounds(failures=1), workers=0),
    "a key in the caller's transaction, two holders, savepoints, and a crash": Check(
        replace(HELD_TWICE, behaviours=(("t", Behaviour.OWNS),)), Bounds(crashes=1, whims=2), workers=0
    ),
    "a key in the caller's transaction, two holders that do not wait, and a failed call": Check(
        replace(HELD_TWICE, blocking=False), Bounds(crashes=1, failures=1), workers=0
    ),
    "a key in the caller's transaction, two requests under one key": Check(
        replace(HELD_TWICE, clients=REUSED, blocking=False), Bounds(crashes=1), workers=0
    ),
    "a key in the caller's transaction, and a relay": Check(
        replace(HELD_TWICE, effects=2), Bounds(crashes=1), workers=0, relays=1
    ),
}

CLIENT_CHECKS = {
    "a client that retries": Check(
        Workload(clients=ONCE, clients_retry=True), Bounds(crashes=1, failures=1), workers=0, relays=1
    ),
    "a client that retries until its messages are sent, no relay": Check(
        Workload(clients=ONCE, clients_retry=True, clients_wait=True), Bounds(crashes=1, failures=1), workers=0
    ),
    "two clients that retry until their messages are sent, one key, no relay": Check(
        Workload(clients=TWICE, clients_retry=True, clients_wait=True), Bounds(crashes=1), workers=0
    ),
    "two clients that retry, two requests under one key, optimistic store": Check(
        Workload(clients=REUSED, clients_retry=True, blocking=False), Bounds(failures=1), workers=0, relays=1
    ),
    "two clients that retry, one key and a crash, optimistic store": Check(
        Workload(clients=TWICE, clients_retry=True, blocking=False), Bounds(crashes=1), workers=0, relays=1
    ),
    "two clients that retry, two requests under one key, on documents": Check(
        Workload(clients=REUSED, clients_retry=True, deduplication=DeduplicationMode.HISTORY, quiet=True),
        Bounds(failures=1),
        workers=0,
    ),
    "a block that fails, and two attempts with one key": Check(
        Workload(clients=TWICE, behaviours=(("t", Behaviour.UNSTEADY),)), Bounds(crashes=1, whims=2), workers=0, relays=1
    ),
    "a block that waits for a lock, and two attempts with one key": Check(
        Workload(clients=TWICE, behaviours=(("t", Behaviour.LOCKED),)), Bounds(failures=1, whims=1), workers=0, relays=1
    ),
    "tokens elsewhere, a transaction with two effects": Check(
        Workload(clients=(Client("t"),), effects=2, deduplication=DeduplicationMode.ELSEWHERE),
        Bounds(crashes=1, failures=1, sweeps=1),
        workers=0,
        relays=1,
        sweepers=1,
    ),
    "a control message, two effects": Check(
        Workload(clients=(Client("t"),), effects=2, deduplication=DeduplicationMode.HISTORY),
        Bounds(failures=1),
        workers=1,
        reaches=LOOKING,
    ),
    "a control message that another endpoint processes": Check(OPENED_ELSEWHERE, Bounds(crashes=1), workers=1, reaches=LOOKING),
    "a transaction that sends nothing": Check(
        Workload(clients=(Client("t", key="k", effects=False),), deduplication=DeduplicationMode.HISTORY, quiet=True),
        Bounds(failures=1),
        workers=0,
    ),
    "stray control messages next to a good message, and a crash": Check(
        STRAYS, Bounds(crashes=1), workers=1, batch=2, reaches=GIVING_UP
    ),
    "stray control messages next to a good message, and a failed call": Check(
        STRAYS, Bounds(failures=1), workers=1, batch=2, reaches=GIVING_UP
    ),
    "a control message next to a good message": Check(
        Workload(copies("a"), clients=(Client("t"),), deduplication=DeduplicationMode.HISTORY, prefix="cloudevents:"),
        workers=1,
        batch=2,
        reaches=RECEIVING,
    ),
    "two control messages in one batch": Check(
        Workload(clients=(Client("t"), Client("u", entity="f")), deduplication=DeduplicationMode.HISTORY),
        workers=1,
        batch=2,
        reaches=LOOKING,
    ),
}
