"""The checks of the three drivers at once: the incoming message, a relay, and a control message.

Whoever comes first dispatches a record, and the others find it gone. On documents, relays read the list of pending documents.
"""

from msgspec.structs import replace

from onceonly_verify.check import Check
from onceonly_verify.workload import Client, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

IN_TABLES = Workload(copies("a"), clients=(Client("t"),), controlled=True)
ON_DOCUMENTS = Workload(copies("a"), clients=(Client("t"),), deduplication=DeduplicationMode.HISTORY)
LOST = Workload(copies("a", "b"), hosted=True, hosted_most=1, supervised=False, deduplication=DeduplicationMode.HISTORY)
"""Messages that do not come again: without a relay, what is committed and not sent would be lost."""
SAVED = ("load", "save", "send", "ack")

DRIVER_CHECKS = {
    "three drivers at once in tables, a message and a transaction": Check(
        IN_TABLES, Bounds(crashes=1), workers=1, relays=1, reaches=("begin", "commit", "record", "send", "forget", "ack")
    ),
    "three drivers at once in tables, two attempts with one key": Check(
        replace(IN_TABLES, arrivals=(), clients=(Client("t", key="k"), Client("t", key="k"))),
        Bounds(crashes=1),
        workers=1,
        relays=1,
        reaches=("entry", "record", "ack"),
    ),
    "three drivers at once on documents, a message and a transaction": Check(
        replace(ON_DOCUMENTS, entities=(("a", "f"),)), Bounds(crashes=1), workers=1, relays=1, reaches=SAVED
    ),
    "three drivers at once on one document, a message and a transaction": Check(
        ON_DOCUMENTS, workers=1, relays=1, reaches=SAVED
    ),
    "a control message and a relay on documents": Check(
        replace(ON_DOCUMENTS, arrivals=()), Bounds(crashes=1, failures=1), workers=1, relays=1, reaches=("load", "ack")
    ),
    "a relay on documents, two messages that do not come again": Check(
        LOST, Bounds(crashes=2), workers=1, relays=1, reaches=("load", "save")
    ),
    "two relays on documents that lease what they take": Check(
        replace(LOST, arrivals=copies("a"), leases=True), Bounds(crashes=2), workers=1, relays=2, reaches=("load", "save")
    ),
    "two relays on documents, a message that does not come again": Check(
        replace(LOST, arrivals=copies("a")), Bounds(crashes=2, failures=1), workers=1, relays=2, reaches=("load", "save")
    ),
}
