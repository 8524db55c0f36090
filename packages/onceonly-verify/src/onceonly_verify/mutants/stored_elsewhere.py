"""Broken versions of what is kept in entities, and in a dedup store."""

from onceonly_verify.mutants.known_bad import Mutant, delivery, outbox
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import (
    add_argument,
    add_field,
    always,
    drop,
    drop_argument,
    insert_after,
    insert_before,
    keep_only,
    never,
    replace,
    replace_answer,
)
from onceonly_verify.mutations.places import argument, assigned, call, comparison, condition, left, result_of, right

OTHER_BODY, OTHER_ENTITY = "a dedup store, another body", "a dedup store, another body about another entity"
HISTORY, DEDUP = "an entity and its history, two copies", "a dedup store, two copies"
DEDUP_LATE, SWEPT = "a dedup store, a lease that ends early", "tokens and a sweeper, a failed call"
_ADMITTED = result_of("admission.admits")
_ALL_ADMITTED = assigned("mismatched.intersection")
_SAVED = left(condition("documents.save"))

FORGOTTEN_FIRST = (
    outbox("finish", drop("admission.retire")),
    outbox("_forget_and_ack", insert_before("transport.ack", "await ports.admission.retire(records)")),
)
RETIRED_FIRST = (
    outbox("process", insert_before("dispatch", "await ports.admission.retire(records)", records=argument("dispatch", 0))),
)
ASKED_FIRST = (
    outbox(
        "process",
        replace_answer("admission.admits", "asked_before"),
        insert_before("store.begin", "asked_before = await ports.admission.admits(messages)"),
    ),
)


def documents(function: str, *operations: EditOperation) -> CodeChange:
    """Change the store on documents."""
    return change("documents.store", function, *operations)


def memory_documents(function: str, *operations: EditOperation) -> CodeChange:
    """Change the documents themselves."""
    return change("adapters.memory.documents", function, *operations)


def admission(function: str, *operations: EditOperation) -> CodeChange:
    """Change the admissions."""
    return change("algorithms.admission", function, *operations)


def dedup(function: str, *operations: EditOperation) -> CodeChange:
    """Change the memory dedup store."""
    return change("adapters.memory.dedup", function, *operations)


ENTITIES: tuple[Mutant, ...] = (
    Mutant(
        "record deleted instead of emptied", (HISTORY,), (documents("DocumentStore._without", always(condition("history"))),)
    ),
    Mutant("documents: no version check", (HISTORY,), (memory_documents("save", never(condition("expected"))),)),
    Mutant(
        "documents: version repeats with the content",
        (SWEPT,),
        (memory_documents("WrittenDocument.version", replace(argument("str", 0), "self.body")),),
    ),
    Mutant(
        "documents: version repeats across delete",
        (SWEPT,),
        (
            documents(
                "DocumentStore.fence",
                insert_before(
                    "documents.save",
                    """
saved = written
if saved is not None and loaded is None:
    await self.documents.save([Change(key=unit, body=None, expected=saved)])
""",
                    written=_SAVED,
                    loaded=result_of("documents.load"),
                ),
                replace(_SAVED, "saved"),
            ),
        ),
    ),
    Mutant(
        "documents: early return without clean-up",
        (DEDUP,),
        (
            outbox(
                "process",
                insert_after(
                    "admission.admits",
                    "known = tuple(r if r.identity in told.messages else replace(r, unit='entity/nowhere') for r in known)",
                    known=result_of("_known"),
                    told=_ADMITTED,
                ),
            ),
        ),
    ),
    Mutant(
        "what is done elsewhere only acknowledged",
        (DEDUP_LATE,),
        (outbox("drop", replace("_forget_and_ack", "ports.transport.ack(deliveries)")),),
    ),
    Mutant(
        "stale dedup store",
        (DEDUP,),
        (
            dedup("DedupWorld", add_field("before: frozenset[bytes] = frozenset()", after="fingerprints")),
            dedup("add", add_argument("DedupWorld", "", "world.keys")),
            dedup("contains", replace(right(comparison("world.keys")), "world.before")),
        ),
    ),
    Mutant(
        "fingerprint not compared in the dedup store",
        (OTHER_BODY,),
        (admission("DedupStoreAdmission.admits", never(condition("fingerprint"))),),
    ),
    Mutant(
        "fingerprint not stored in the dedup store",
        (OTHER_BODY,),
        (admission("DedupStoreAdmission.retire", drop_argument("_done.add", 1)),),
    ),
    Mutant(
        "fingerprint of a pending record lost",
        (OTHER_BODY,),
        (outbox("_known", replace(argument(call("replace", passing="fingerprint"), "fingerprint"), "b''")),),
    ),
    Mutant(
        "another body given up without a fence",
        (OTHER_ENTITY,),
        (delivery("_mismatches", replace(argument("replace", "gives_up"), "None")),),
    ),
    Mutant(
        "what is pending not sent where another body is marked",
        (OTHER_ENTITY,),
        (outbox("process", keep_only(left(_ALL_ADMITTED), of=_ALL_ADMITTED)),),
    ),
    Mutant("record removed before ADD", (DEDUP,), FORGOTTEN_FIRST),
    Mutant("ADD before dispatch", (DEDUP,), RETIRED_FIRST),
    Mutant("dedup store asked before load", (DEDUP_LATE,), ASKED_FIRST),
)
