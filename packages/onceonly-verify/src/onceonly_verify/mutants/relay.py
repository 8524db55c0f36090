"""Broken versions of the relay, and of the store as the relay sees it."""

from onceonly_verify.mutants.adapters import TWO_COMMITS
from onceonly_verify.mutants.known_bad import BOTH, RELAYED, RELAYED_TWO, Mutant, relay, store
from onceonly_verify.mutations.operations import (
    add_argument,
    add_field,
    add_parameter,
    compare,
    define,
    imports,
    insert_before,
    replace,
    swallow,
)
from onceonly_verify.mutations.places import argument, comparison, condition, left, named, point, result_of, root

_TAKEN = comparison("Answer.TAKEN")
_IS_OLD = comparison("older_than")
_UNCOMMITTED = "(*old, *(flushed for unit in world.open for flushed in unit.flushed))"
_FLUSHED = (
    store("OpenUnit", add_field("flushed: tuple = ()", after="claims")),
    store(
        "MemoryStore.commit",
        insert_before(
            point("commit"),
            """
records = tuple(StoredRecord(record, 0) for record in changes.records)
await self._perform('flush', _flush, (token, records))
""",
        ),
    ),
    store(
        "",
        define("""
def _flush(world, token, records):
    units = tuple(replace(unit, flushed=records) if unit.token == token else unit for unit in world.open)
    return replace(world, open=units), None
"""),
    ),
)
"""Records reach the store in a call of their own before the commit, as rows that a transaction writes do."""

RELAY: tuple[Mutant, ...] = (
    Mutant(
        "relay: forgotten before dispatch",
        (RELAYED,),
        (relay("relay", insert_before("dispatch", "await ports.store.forget(records)")),),
    ),
    Mutant(
        "relay: refused record forgotten",
        (RELAYED,),
        (relay("relay", compare(_TAKEN, "is not", "Answer.UNKNOWN")),),
    ),
    Mutant(
        "relay: record forgotten before the send is answered",
        (RELAYED,),
        (relay("relay", compare(_TAKEN, "is not", "Answer.REFUSED")),),
    ),
    Mutant(
        "relay: send failure swallowed",
        (RELAYED,),
        (
            relay("", imports("onceonly.model.errors", "RetryableError")),
            relay(
                "relay",
                swallow(
                    "dispatch",
                    "RetryableError",
                    "answers = {record.identity: Answer.TAKEN for record in records}",
                    answers=result_of("dispatch"),
                ),
            ),
        ),
    ),
    Mutant(
        "relay: all forgotten when one was taken",
        (RELAYED_TWO,),
        (relay("relay", replace(argument("store.forget", 0), "records")),),
    ),
    Mutant(
        "relay: fresh ids each time",
        (BOTH,),
        (
            relay("relay", insert_before("dispatch", "records = [_renamed(record) for record in records]")),
            relay(
                "",
                define("""
def _renamed(record):
    from msgspec.structs import replace
    fresh = [replace(e, message=replace(e.message, id=e.message.id + ' again')) for e in record.effects]
    return Record(record.identity, tuple(fresh))
"""),
            ),
        ),
    ),
    Mutant(
        "relay: told records sent before their commit",
        (RELAYED,),
        (*_FLUSHED, store("find", replace(named("world.records"), _UNCOMMITTED))),
    ),
    Mutant(
        "relay: uncommitted records seen when looking",
        (RELAYED_TWO,),
        (*_FLUSHED, store("undispatched", replace(argument("sorted", 0), _UNCOMMITTED))),
    ),
    Mutant(
        "relay: records of handlers passed over",
        (BOTH,),
        (
            store(
                "undispatched",
                replace(
                    condition("older_than"),
                    "stored.record.identity not in dict(world.claims) and old",
                    stored=root(left(_IS_OLD)),
                ),
            ),
        ),
    ),
    Mutant("relay: record in a second transaction", (RELAYED_TWO,), TWO_COMMITS),
    Mutant(
        "relay by watermark",
        (RELAYED_TWO,),
        (
            store("OpenUnit", add_field("number: int = 0", after="claims")),
            store("StoreWorld", add_field("seen: int = 0", after="open"), add_field("begun: int = 0", after="open")),
            store(
                "begin",
                add_argument("replace", "begun", "unit.number", unit=result_of("OpenUnit")),
                insert_before("replace", "unit = replace(unit, number=world.begun + 1)", unit=result_of("OpenUnit")),
            ),
            store(
                "commit",
                replace(argument("StoredRecord", 1), "unit.number", unit=result_of("next")),
            ),
            store("undispatched", compare(_IS_OLD, ">", "world.seen")),
            store(
                "forget",
                insert_before(
                    "replace",
                    "seen = max([world.seen, *(stored.at for stored in world.records if stored.record.identity in gone)])",
                    gone=result_of("frozenset"),
                ),
                add_argument("replace", "seen", "seen"),
            ),
        ),
    ),
    Mutant(
        "relay: claim deleted with the record",
        (BOTH,),
        (
            relay("relay", add_argument("store.forget", "claims", "True")),
            store(
                "MemoryStore.forget",
                add_parameter("*, claims: bool = False"),
                replace(argument(point("forget"), 2), "_forget_all if claims else old"),
            ),
            store(
                "",
                define("""
def _forget_all(world, identities):
    claims = frozenset(claim for claim in world.claims if claim[0] not in identities)
    return replace(forget(world, identities)[0], claims=claims), None
"""),
            ),
        ),
    ),
)
