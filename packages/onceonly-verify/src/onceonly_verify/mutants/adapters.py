"""Broken ports: stores and transports that do not keep their contracts."""

from onceonly_verify.mutants.known_bad import (
    COPIES,
    CRASHING,
    ISOLATED_FAILING,
    ONE,
    OPTIMISTIC,
    UNSTEADY,
    Mutant,
    store,
    transport,
)
from onceonly_verify.mutations.operations import (
    add_argument,
    define,
    ignore_answer,
    imports,
    insert_after,
    insert_before,
    never,
    replace,
    replace_statement,
    swallow,
)
from onceonly_verify.mutations.places import (
    argument,
    call,
    condition,
    element,
    guard,
    iterated,
    named,
    point,
    result_of,
    then,
)

_CONFLICT = condition("world.claims")
_COMMITTED = point("commit")
_NO_CONFLICT = store("commit", never(_CONFLICT))

TWO_COMMITS = (
    store(
        "MemoryStore.commit",
        insert_before(_COMMITTED, "bare = tuple(Record(record.identity) for record in changes.records)"),
        replace(element(argument(_COMMITTED, 2), 1), "replace(old, records=bare)"),
        insert_after(_COMMITTED, "await self._perform('record', _add_records, (changes.records,))"),
    ),
    store(
        "",
        define("""
def _add_records(world, records):
    return replace(world, records=world.records + tuple(StoredRecord(record, 0) for record in records)), None
"""),
    ),
)

ADAPTERS: tuple[Mutant, ...] = (
    Mutant(
        "check before load",
        (COPIES,),
        (
            store(
                "MemoryStore.begin",
                insert_before(
                    point("begin"),
                    "found = await self._perform('look', _look_only, (tuple(messages), token))",
                    found=result_of(point("begin")),
                    token=element(argument(point("begin"), 2), 1),
                ),
                ignore_answer(point("begin")),
            ),
            store(
                "",
                define("""
def _look_only(world, messages, token):
    return world, begin(world, messages, token, False)[1]
"""),
            ),
        ),
    ),
    Mutant(
        "claim of a failed or postponed handler committed",
        (UNSTEADY,),
        (store("commit", replace(argument("frozenset", 0), "claims", claims=iterated("frozenset"))),),
    ),
    Mutant("no version check", (OPTIMISTIC,), (_NO_CONFLICT,)),
    Mutant(
        "none on first insert",
        (OPTIMISTIC,),
        (store("commit", replace(_CONFLICT, "len(world.claims) > 1 and old")),),
    ),
    Mutant("state and record in two commits", (ONE, COPIES), TWO_COMMITS),
    Mutant(
        "claim in another transaction",
        (ONE, COPIES),
        (
            store(
                "begin",
                add_argument("replace", "claims", "world.claims | frozenset(unit.claims)", unit=result_of("OpenUnit")),
            ),
            _NO_CONFLICT,
        ),
    ),
    Mutant(
        "overwrite with the fresh version on conflict",
        (OPTIMISTIC,),
        (
            store(
                "commit",
                replace_statement(call("Raises", within=then(_CONFLICT)), "kept = frozenset()", kept=result_of("frozenset")),
            ),
        ),
    ),
    Mutant(
        "OutcomeUnknown retried in place",
        (COPIES,),
        (
            store(
                "MemoryStore.commit",
                swallow(_COMMITTED, "OutcomeUnknown", "await self._perform('again', _write_again, (changes,))"),
            ),
            store(
                "",
                imports("onceonly.model.errors", "OutcomeUnknown"),
                define("""
def _write_again(world, changes):
    stored = tuple(StoredRecord(record, 0) for record in changes.records)
    return replace(world, records=world.records + stored, notes=world.notes + changes.notes), None
"""),
            ),
        ),
    ),
    Mutant(
        "multi-ack past an unfinished delivery",
        (CRASHING,),
        (
            transport(
                "ack",
                insert_before("_settled", "last = max((receipt.number for receipt in receipts), default=0)"),
                replace("_settled", "{entry.number for entry in world.entries if entry.held_until and entry.number <= last}"),
            ),
        ),
    ),
    Mutant(
        "a failed pass's effects kept",
        (UNSTEADY,),
        (store("MemoryResources._attempt", never(guard("undo"))),),
    ),
    Mutant(
        "the row and the claim of a failed handler committed",
        (ISOLATED_FAILING,),
        (
            store("MemoryResources._attempt", never(guard("undo"))),
            store("commit", replace(argument("frozenset", 0), "claims", claims=iterated("frozenset"))),
        ),
    ),
    Mutant(
        "a failed handler undoes the rows of the others",
        (UNSTEADY,),
        (store("Notebook.undo", replace_statement(named("_rows"), "self._rows.clear()")),),
    ),
)
