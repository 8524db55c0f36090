"""Broken ports: stores and transports that do not keep their contracts."""

from onceonly_verify.mutants.known_bad import (
    COPIES,
    CRASHING,
    ISOLATED_FAILING,
    ONE,
    OPTIMISTIC,
    UNSTEADY,
    mutant,
    store,
    transport,
)
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

_CONFLICT = at.condition("world.claims")
_COMMITTED = at.point("commit")
_NO_CONFLICT = store("commit", do.never(_CONFLICT))

TWO_COMMITS = (
    store(
        "MemoryStore.commit",
        do.insert_before(_COMMITTED, "bare = tuple(Record(record.identity) for record in changes.records)"),
        do.replace(at.element(at.argument(_COMMITTED, 2), 1), "replace(old, records=bare)"),
        do.insert_after(_COMMITTED, "await self._perform('record', _add_records, (changes.records,))"),
    ),
    store(
        "",
        do.define("""
def _add_records(world, records):
    return replace(world, records=world.records + tuple(StoredRecord(record, 0) for record in records)), None
"""),
    ),
)

ADAPTERS = {
    "check before load": mutant(
        (COPIES,),
        store(
            "MemoryStore.begin",
            do.insert_before(
                at.point("begin"),
                "found = await self._perform('look', _look_only, (tuple(messages), token))",
                found=at.result_of(at.point("begin")),
                token=at.element(at.argument(at.point("begin"), 2), 1),
            ),
            do.ignore_answer(at.point("begin")),
        ),
        store(
            "",
            do.define("""
def _look_only(world, messages, token):
    return world, begin(world, messages, token, False)[1]
"""),
        ),
    ),
    "claim of a failed or postponed handler committed": mutant(
        (UNSTEADY,), store("commit", do.replace(at.argument("frozenset", 0), "claims", claims=at.iterated("frozenset")))
    ),
    "no version check": mutant((OPTIMISTIC,), _NO_CONFLICT),
    "none on first insert": mutant((OPTIMISTIC,), store("commit", do.replace(_CONFLICT, "len(world.claims) > 1 and old"))),
    "state and record in two commits": mutant((ONE, COPIES), *TWO_COMMITS),
    "claim in another transaction": mutant(
        (ONE, COPIES),
        store(
            "begin",
            do.add_argument("replace", "claims", "world.claims | frozenset(unit.claims)", unit=at.result_of("OpenUnit")),
        ),
        _NO_CONFLICT,
    ),
    "overwrite with the fresh version on conflict": mutant(
        (OPTIMISTIC,),
        store(
            "commit",
            do.replace_statement(
                at.call("Raises", within=at.then(_CONFLICT)), "kept = frozenset()", kept=at.result_of("frozenset")
            ),
        ),
    ),
    "OutcomeUnknown retried in place": mutant(
        (COPIES,),
        store(
            "MemoryStore.commit",
            do.swallow(_COMMITTED, "OutcomeUnknown", "await self._perform('again', _write_again, (changes,))"),
        ),
        store(
            "",
            do.imports("onceonly.model.errors", "OutcomeUnknown"),
            do.define("""
def _write_again(world, changes):
    stored = tuple(StoredRecord(record, 0) for record in changes.records)
    return replace(world, records=world.records + stored, notes=world.notes + changes.notes), None
"""),
        ),
    ),
    "multi-ack past an unfinished delivery": mutant(
        (CRASHING,),
        transport(
            "ack",
            do.insert_before("_settled", "last = max((receipt.number for receipt in receipts), default=0)"),
            do.replace("_settled", "{entry.number for entry in world.entries if entry.held_until and entry.number <= last}"),
        ),
    ),
    "a failed pass's effects kept": mutant((UNSTEADY,), store("MemoryResources._attempt", do.never(at.guard("undo")))),
    "the row and the claim of a failed handler committed": mutant(
        (ISOLATED_FAILING,),
        store("MemoryResources._attempt", do.never(at.guard("undo"))),
        store("commit", do.replace(at.argument("frozenset", 0), "claims", claims=at.iterated("frozenset"))),
    ),
    "a failed handler undoes the rows of the others": mutant(
        (UNSTEADY,), store("Notebook.undo", do.replace_statement(at.named("_rows"), "self._rows.clear()"))
    ),
}
