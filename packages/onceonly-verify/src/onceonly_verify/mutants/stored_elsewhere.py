"""Broken versions of what is kept in entities, and in a dedup store."""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant, outbox, settlement
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

OTHER_BODY, OTHER_ENTITY = "a dedup store, another body", "a dedup store, another body about another entity"
HISTORY, DEDUP = "an entity and its history, two copies", "a dedup store, two copies"
HISTORY_TWO = "an entity and its history, two messages"
DEDUP_LATE, SWEPT = "a dedup store, a lease that ends early", "tokens and a sweeper, a failed call"
_ADMITTED = at.result_of("admission.admits")
_SAVED = at.left(at.condition("documents.save"))
_GUESSES = at.argument("_load", 2)
_UNWRITTEN = at.condition("key")

FORGOTTEN_FIRST = (
    outbox("finish", do.drop("admission.retire")),
    outbox("_forget_and_ack", do.insert_before("transport.ack", "await ports.admission.retire(records)")),
)
RETIRED_FIRST = (
    outbox(
        "process", do.insert_before("dispatch", "await ports.admission.retire(records)", records=at.argument("dispatch", 0))
    ),
)
ASKED_FIRST = (
    outbox(
        "process",
        do.replace_answer("admission.admits", "asked_before"),
        do.insert_before(at.call("store.begin", nth=0), "asked_before = await ports.admission.admits(messages)"),
    ),
)


documents = partial(change, "documents.store")
compare_and_set = partial(change, "documents.compare_and_set")
memory_documents = partial(change, "adapters.memory.documents")
admission = partial(change, "algorithms.admission")
dedup = partial(change, "onceonly_verify.memory_ports.dedup")
ENTITIES = {
    "record deleted instead of emptied": mutant(
        (HISTORY,), documents("DocumentStore._without", do.always(at.condition("history")))
    ),
    "documents: no version check": mutant((HISTORY,), memory_documents("_saved", do.never(at.condition("expected")))),
    "documents: version repeats with the content": mutant(
        (SWEPT,), memory_documents("WrittenDocument.version", do.replace(at.argument("str", 0), "self.body"))
    ),
    "documents: version repeats across delete": mutant(
        (SWEPT,),
        documents(
            "DocumentStore.fence",
            do.insert_before(
                "documents.save",
                """
saved = written
if saved is not None and loaded is None:
    await self.documents.save([Change(key=unit, body=None, expected=saved)])
""",
                written=_SAVED,
                loaded=at.result_of("documents.load"),
            ),
            do.replace(_SAVED, "saved"),
        ),
    ),
    "documents: a guess written over what others saved": mutant(
        (HISTORY_TWO,),
        compare_and_set("", do.imports("msgspec.structs", "replace")),
        compare_and_set(
            "compare_and_set",
            do.insert_before(
                "documents.save",
                "there = await documents.load([each.key for each in changes]) if guesses else {}",
                changes=at.argument("documents.save", 0),
                guesses=_GUESSES,
            ),
            do.replace(
                at.argument("documents.save", 0),
                "[replace(each, expected=there[each.key].version) if each.key in there else each for each in old]",
            ),
        ),
    ),
    "documents: a refused guess taken for written": mutant(
        (HISTORY_TWO,),
        compare_and_set(
            "compare_and_set",
            do.replace(_UNWRITTEN, "old and key not in guesses", key=at.left(_UNWRITTEN), guesses=_GUESSES),
        ),
    ),
    "documents: early return without clean-up": mutant(
        (DEDUP,),
        outbox(
            "process",
            do.insert_after(
                "admission.admits",
                "known = tuple(r if r.identity in told.messages else replace(r, unit='entity/nowhere') for r in known)",
                known=at.result_of("_known"),
                told=_ADMITTED,
            ),
        ),
    ),
    "what is done elsewhere only acknowledged": mutant(
        (DEDUP_LATE,), outbox("drop", do.replace("_forget_and_ack", "ports.transport.ack(deliveries)"))
    ),
    "stale dedup store": mutant(
        (DEDUP,),
        dedup("DedupWorld", do.add_field("before: frozenset[bytes] = frozenset()", after="fingerprints")),
        dedup("add", do.add_argument("DedupWorld", "", "world.keys")),
        dedup("contains", do.replace(at.right(at.comparison("world.keys")), "world.before")),
    ),
    "fingerprint not compared in the dedup store": mutant(
        (OTHER_BODY,), admission("DedupStoreAdmission.admits", do.never(at.condition("fingerprint")))
    ),
    "fingerprint not stored in the dedup store": mutant(
        (OTHER_BODY,), admission("DedupStoreAdmission.retire", do.drop_argument("_done.add", 1))
    ),
    "fingerprint of a pending record lost": mutant(
        (OTHER_BODY,),
        outbox("_known", do.replace(at.argument(at.call("replace", passing="fingerprint"), "fingerprint"), "b''")),
    ),
    "another body given up without a fence": mutant(
        (OTHER_ENTITY,), settlement("_mismatches", do.replace(at.argument("replace", "gives_up"), "None"))
    ),
    "what is pending not sent where another body is marked": mutant(
        (OTHER_ENTITY,), outbox("process", do.replace("intersection", "frozenset()"))
    ),
    "record removed before ADD": mutant((DEDUP,), *FORGOTTEN_FIRST),
    "ADD before dispatch": mutant((DEDUP,), *RETIRED_FIRST),
    "dedup store asked before load": mutant((DEDUP_LATE,), *ASKED_FIRST),
}
