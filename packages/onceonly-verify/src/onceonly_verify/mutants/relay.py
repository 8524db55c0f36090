"""Broken versions of the relay, and of the store as the relay sees it."""

from onceonly_verify.mutants.adapters import TWO_COMMITS
from onceonly_verify.mutants.known_bad import BOTH, RELAYED, RELAYED_TWO, mutant, relay, store
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

_TAKEN = at.comparison("Answer.TAKEN")
_IS_OLD = at.comparison("older_than")
_UNCOMMITTED = "(*old, *(flushed for unit in world.open for flushed in unit.flushed))"
_FLUSHED = (
    store("OpenUnit", do.add_field("flushed: tuple = ()", after="claims")),
    store(
        "MemoryStore.commit",
        do.insert_before(
            at.point("commit"),
            """
records = tuple(StoredRecord(record, 0) for record in changes.records)
await self._perform('flush', _flush, (token, records))
""",
        ),
    ),
    store(
        "",
        do.define("""
def _flush(world, token, records):
    units = tuple(replace(unit, flushed=records) if unit.token == token else unit for unit in world.open)
    return replace(world, open=units), None
"""),
    ),
)
"""Records reach the store in a call of their own before the commit, as rows that a transaction writes do."""

RELAY = {
    "relay: forgotten before dispatch": mutant(
        (RELAYED,), relay("relay", do.insert_before("dispatch", "await ports.store.forget(records)"))
    ),
    "relay: refused record forgotten": mutant((RELAYED,), relay("relay", do.compare(_TAKEN, "is not", "Answer.UNKNOWN"))),
    "relay: record forgotten before the send is answered": mutant(
        (RELAYED,), relay("relay", do.compare(_TAKEN, "is not", "Answer.REFUSED"))
    ),
    "relay: send failure swallowed": mutant(
        (RELAYED,),
        relay("", do.imports("onceonly.model.errors", "RetryableError")),
        relay(
            "relay",
            do.swallow(
                "dispatch",
                "RetryableError",
                "answers = {record.identity: Answer.TAKEN for record in records}",
                answers=at.result_of("dispatch"),
            ),
        ),
    ),
    "relay: all forgotten when one was taken": mutant(
        (RELAYED_TWO,), relay("relay", do.replace(at.argument("store.forget", 0), "records"))
    ),
    "relay: fresh ids each time": mutant(
        (BOTH,),
        relay("relay", do.insert_before("dispatch", "records = [_renamed(record) for record in records]")),
        relay(
            "",
            do.define("""
def _renamed(record):
    from msgspec.structs import replace
    fresh = [replace(e, message=replace(e.message, id=e.message.id + ' again')) for e in record.effects]
    return Record(record.identity, tuple(fresh))
"""),
        ),
    ),
    "relay: told records sent before their commit": mutant(
        (RELAYED,), *_FLUSHED, store("find", do.replace(at.named("world.records"), _UNCOMMITTED))
    ),
    "relay: uncommitted records seen when looking": mutant(
        (RELAYED_TWO,), *_FLUSHED, store("undispatched", do.replace(at.argument("sorted", 0), _UNCOMMITTED))
    ),
    "relay: records of handlers passed over": mutant(
        (BOTH,),
        store(
            "undispatched",
            do.replace(
                at.condition("older_than"),
                "stored.record.identity not in dict(world.claims) and old",
                stored=at.root(at.left(_IS_OLD)),
            ),
        ),
    ),
    "relay: record in a second transaction": mutant((RELAYED_TWO,), *TWO_COMMITS),
    "relay by watermark": mutant(
        (RELAYED_TWO,),
        store("OpenUnit", do.add_field("number: int = 0", after="claims")),
        store("StoreWorld", do.add_field("seen: int = 0", after="open"), do.add_field("begun: int = 0", after="open")),
        store(
            "begin",
            do.add_argument("replace", "begun", "unit.number", unit=at.result_of("OpenUnit")),
            do.insert_before("replace", "unit = replace(unit, number=world.begun + 1)", unit=at.result_of("OpenUnit")),
        ),
        store("commit", do.replace(at.argument("StoredRecord", 1), "unit.number", unit=at.result_of("next"))),
        store("undispatched", do.compare(_IS_OLD, ">", "world.seen")),
        store(
            "forget",
            do.insert_before(
                "replace",
                "seen = max([world.seen, *(stored.at for stored in world.records if stored.record.identity in gone)])",
                gone=at.result_of("frozenset"),
            ),
            do.add_argument("replace", "seen", "seen"),
        ),
    ),
    "relay: claim deleted with the record": mutant(
        (BOTH,),
        relay("relay", do.add_argument("store.forget", "claims", "True")),
        store(
            "MemoryStore.forget",
            do.add_parameter("*, claims: bool = False"),
            do.replace(at.argument(at.point("forget"), 2), "_forget_all if claims else old"),
        ),
        store(
            "",
            do.define("""
def _forget_all(world, identities):
    claims = frozenset(claim for claim in world.claims if claim[0] not in identities)
    return replace(forget(world, identities)[0], claims=claims), None
"""),
        ),
    ),
}
