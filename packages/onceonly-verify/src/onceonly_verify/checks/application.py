"""The checks of documents of the application, which handlers write together with their entity."""

from msgspec.structs import replace

from onceonly_verify.check import HASTY, TWICE, Check
from onceonly_verify.workload import Behaviour, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds

TOGETHER = ("load", "read", "save_together", "send", "ack")
ONE = Workload(copies("a"), deduplication=DeduplicationMode.HISTORY, application=True)
TWO_ENTITIES = replace(ONE, arrivals=copies("a", "b"), entities=(("b", "f"),), quiet=True)

APPLICATION_CHECKS = {
    "a document next to an entity, history": Check(
        replace(ONE, arrivals=TWICE), Bounds(crashes=1), reaches=(*TOGETHER, "save")
    ),
    "a document next to an entity, history and a failed call": Check(
        ONE, Bounds(crashes=1, failures=1), workers=1, reaches=(*TOGETHER, "save")
    ),
    "a document next to an entity, a dedup store": Check(
        replace(ONE, deduplication=DeduplicationMode.DEDUP),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=(*TOGETHER, "dedup-contains", "dedup-add"),
    ),
    "a document next to an entity, a dedup store and a lease that ends early": Check(
        replace(ONE, deduplication=DeduplicationMode.DEDUP),
        Bounds(expiries=1),
        reaches=(*TOGETHER, "dedup-contains", "dedup-add"),
    ),
    "a document next to an entity, tokens": Check(
        replace(ONE, deduplication=DeduplicationMode.TOKENS),
        Bounds(crashes=1, failures=1),
        workers=1,
        reaches=(*TOGETHER, "token-live", "token-remove"),
    ),
    "a document next to an entity, tokens and two copies": Check(
        replace(ONE, arrivals=TWICE, deduplication=DeduplicationMode.TOKENS, quiet=True),
        Bounds(crashes=1),
        reaches=("load", "read", "save_together", "token-live", "token-remove", "ack"),
    ),
    "one document next to two entities": Check(
        TWO_ENTITIES, Bounds(crashes=1), reaches=("load", "read", "save_together", "ack")
    ),
    "one document next to two entities, and a failed call": Check(
        TWO_ENTITIES, Bounds(failures=1), reaches=("load", "read", "save_together", "ack")
    ),
    "a document next to an entity, and a handler that fails in the batch": Check(
        replace(
            ONE, arrivals=copies("a", "b"), behaviours=(("a", Behaviour.UNSTEADY),), retry=HASTY, quiet=True, may_be_both=True
        ),
        Bounds(crashes=1, whims=1),
        workers=1,
        batch=2,
        isolated=True,
        reaches=("load", "read", "save_together", "ack"),
    ),
}
