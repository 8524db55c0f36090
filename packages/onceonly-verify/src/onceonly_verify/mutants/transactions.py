"""Broken versions of clients' transactions, of their control messages, and of the documents they are kept in."""

from onceonly_verify.mutants.known_bad import Mutant, relay
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import (
    add_argument,
    add_handler,
    add_parameter,
    compare,
    drop,
    enclose,
    insert_after,
    insert_before,
    keep_only,
    move_before,
    never,
    replace,
    replace_answer,
    replace_statement,
    swap,
)
from onceonly_verify.mutations.places import (
    argument,
    attempt,
    branch,
    call,
    comparison,
    condition,
    raised,
    receiver,
    result_of,
    returned,
    root,
)

RELAYED, REUSED = "a relay, and two attempts with one key", "one key, two requests"
UNSHAKEN = "a control message, two workers"
CONTROL, KEYED = "a control message", "a control message, and a client's key"
WITHOUT, BOTH = "a control message, and a key without an entity", "a control message, and two attempts with one key"
ELSEWHERE, THREE = "one key, two entities", "one key, three attempts on two entities"

_SAVED = {
    "transactions": receiver("save"),
    "document": argument("_changed", 0),
    "version": argument("save", 2),
    "after": argument("save", 1),
}
"""The variables of a commit on documents, where new code saves in two steps."""
_KEPT = result_of("attempts.entry")
_CHECKED = argument("_checked", 1)


def transaction(function: str, *operations: EditOperation) -> CodeChange:
    """Change the page of transactions."""
    return change("algorithms.transaction", function, *operations)


def control(function: str, *operations: EditOperation) -> CodeChange:
    """Change the page of control messages."""
    return change("algorithms.control", function, *operations)


def documents(function: str, *operations: EditOperation) -> CodeChange:
    """Change transactions on documents."""
    return change("documents.transactions", function, *operations)


TRANSACTIONS: tuple[Mutant, ...] = (
    Mutant(
        "control message after commit",
        (CONTROL,),
        (
            transaction(
                "complete", move_before(branch(condition("ways.controls")), call("TransactionResult", passing="records"))
            ),
        ),
    ),
    Mutant("no tombstone", (CONTROL,), (control("look", drop("attempts.bury")),)),
    Mutant("tombstone as upsert", (CONTROL,), (documents("DocumentTransactions.bury", drop(raised("ConflictError"))),)),
    Mutant(
        "tombstone on the client's key",
        (KEYED,),
        (
            control("look", add_argument("attempts.bury", "key", "control.key")),
            documents(
                "DocumentTransactions.bury",
                add_parameter("key: str = ''"),
                insert_before(
                    "self.save",
                    "taken = ClientKey.of(IdempotencyEntry(identity.id, b''), until=tombstone.until)",
                    tombstone=result_of("KeptRecord"),
                ),
                replace(
                    argument("self.save", 1),
                    "replace(document, keys={**document.keys, self.name_of(key): taken})",
                    document=result_of("self.load", 0),
                ),
            ),
        ),
    ),
    Mutant(
        "found tombstone not acked",
        (UNSHAKEN,),
        (control("look", keep_only(comparison(_KEPT), of=condition(_KEPT))),),
    ),
    Mutant(
        "key of a transaction not read by a control message",
        (KEYED,),
        (control("look", replace_answer("attempts.entry", "None")),),
        needs_log=True,
    ),
    Mutant("record read before key", (KEYED,), (control("look", swap("attempts.entry", "attempts.record")),)),
    Mutant(
        "fingerprint compared only once",
        (REUSED,),
        (transaction("_winner", keep_only(_CHECKED, of=returned("_checked"))),),
    ),
    Mutant(
        "fingerprint not compared at the beginning",
        (REUSED,),
        (transaction("begin", keep_only(_CHECKED, of=returned("_checked"))),),
    ),
    Mutant(
        "answer stored after commit",
        (BOTH,),
        (
            documents(
                "DocumentTransaction.commit",
                replace_statement(
                    "save",
                    """
await transactions.save(self.unit, self._changed(document, record, None), version)
document, version = await transactions.load(self.unit)
name = transactions.name_of(opening.key)
keys = {**document.keys, name: after.keys[name]}
await transactions.save(self.unit, replace(document, keys=keys), version)
""",
                    opening=root(argument("bind", 0)),
                    **_SAVED,
                ),
            ),
        ),
    ),
    Mutant(
        "dispatch after OutcomeUnknown commit",
        (CONTROL,),
        (transaction("complete", add_handler(attempt("commit"), "OutcomeUnknown")),),
    ),
    Mutant(
        "unanswered commit reported as CommitFailed",
        (CONTROL, RELAYED),
        (transaction("complete", enclose("commit", "before_commit()")),),
    ),
    Mutant(
        "done before dispatch",
        (CONTROL,),
        (relay("relay", insert_before("dispatch", "await ports.store.forget(records)")),),
    ),
    Mutant(
        "record in a second transaction",
        (CONTROL,),
        (
            documents(
                "DocumentTransaction.commit",
                replace_statement(
                    "save",
                    """
await transactions.save(self.unit, self._changed(document, None, answer), version)
document, version = await transactions.load(self.unit)
records = {**document.records, **after.records}
await transactions.save(self.unit, replace(document, records=records), version)
""",
                    **_SAVED,
                ),
            ),
        ),
    ),
    Mutant(
        "tombstone evicted before the deadline",
        (WITHOUT,),
        (
            documents(
                "DocumentTransactions.bury",
                insert_after(
                    "self.save",
                    """
left, version = await self.load(unit)
records = {other: each for other, each in left.records.items() if other != name}
await self.save(unit, replace(left, records=records), version)
""",
                    version=argument("self.save", 2),
                    records=argument("replace", "records"),
                    name=result_of("attempt_name"),
                ),
            ),
        ),
    ),
    Mutant(
        "commit whose tombstone nobody looks for",
        (WITHOUT,),
        (documents("DocumentTransaction.commit", never(condition("attempt_name"))),),
    ),
    Mutant(
        "refused control message taken for sent",
        (CONTROL,),
        (control("announce", compare(comparison("Answer.TAKEN"), "is", "Answer.UNKNOWN")),),
    ),
    Mutant(
        "key led elsewhere without a fence",
        (ELSEWHERE,),
        (documents("DocumentTransactions._is_free", drop("self.save")),),
    ),
    Mutant(
        "key led elsewhere without a look",
        (ELSEWHERE,),
        (documents("DocumentTransactions._is_free", drop(branch(condition("name_of")))),),
    ),
    Mutant(
        "key bound without a write",
        (THREE,),
        (
            documents(
                "DocumentTransactions.bind",
                insert_before(
                    "change_of", "if document.leads_to == unit:\n    return None", document=result_of("decode_entity")
                ),
                insert_after(
                    "compare_and_set",
                    "if own not in settled.versions:\n    return document, settled.seen[own].version",
                    own=result_of("unit_of"),
                    settled=result_of("compare_and_set"),
                    document=result_of("decode_entity"),
                ),
            ),
        ),
    ),
    Mutant(
        "key bound after the commit",
        (ELSEWHERE,),
        (
            documents(
                "DocumentTransaction.commit",
                insert_after(
                    "save",
                    "if opening.key:\n    await transactions.bind(opening.key, self.unit)",
                    opening=root(argument("bind", 0)),
                    transactions=receiver("save"),
                ),
                replace_answer(call("bind", nth=0), "None"),
            ),
        ),
    ),
)
