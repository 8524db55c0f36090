"""Broken versions of clients' transactions, of their control messages, and of the documents they are kept in."""

from functools import partial

from onceonly_verify.mutants.known_bad import delivery, mutant, relay
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

RELAYED, REUSED = "a relay, and two attempts with one key", "one key, two requests"
UNSHAKEN = "a control message, two workers"
CONTROL, KEYED = "a control message", "a control message, and a client's key"
WITHOUT, BOTH = "a control message, and a key without an entity", "a control message, and two attempts with one key"
ELSEWHERE, THREE = "one key, two entities", "one key, three attempts on two entities"

_SAVED = {
    "transactions": at.receiver("save"),
    "document": at.argument("_changed", 0),
    "version": at.argument("save", 2),
    "after": at.argument("save", 1),
}
"""The variables of a commit on documents, where new code saves in two steps."""
_KEPT = at.result_of("attempts.entry")
_CHECKED = at.argument("_checked", 1)


transaction = partial(change, "algorithms.transaction")
control = partial(change, "algorithms.control")
documents = partial(change, "documents.transactions")
memory = partial(change, "adapters.memory.transactions")
IN_TABLES, IN_TABLES_KEYED = "a control message in tables", "a control message in tables, and a client's key"
WITH_RELAY = "a control message in tables, and a relay"
SEARCHED = {
    "control message in tables after commit": mutant(
        (IN_TABLES,),
        transaction(
            "complete",
            do.move_before(at.branch(at.condition("ports.controls")), at.call("TransactionResult", passing="records")),
        ),
    ),
    "no tombstone in tables": mutant((IN_TABLES,), control("check_transaction", do.drop("attempts.bury"))),
    "tombstone in tables that stops no commit": mutant((IN_TABLES,), memory("commit", do.never(at.condition("world.buried")))),
    "tombstone in tables over a record": mutant((IN_TABLES,), memory("bury_attempt", do.never(at.condition("world.buried")))),
    "record in tables read before key": mutant(
        (IN_TABLES_KEYED,), control("check_transaction", do.swap("attempts.entry", "attempts.record"))
    ),
    "mark of an attempt taken for its dispatch": mutant(
        (IN_TABLES,),
        memory(
            "attempt",
            do.replace(
                at.element(at.returned(), 1),
                "Record(identity, unit=unit) if any(key == mark_of(identity.id) for key, _ in world.keys) else found",
                found=at.result_of("next"),
            ),
        ),
    ),
    "mark of an attempt committed before its record": mutant(
        (IN_TABLES, WITH_RELAY),
        memory("", do.define("def keep(world, key):\n    return replace(world, keys=world.keys + key), None")),
        memory(
            "MemoryTransaction.commit",
            do.insert_before(
                "_transactions.commit",
                "await self._transactions.perform('mark', keep, (key,))",
                key=at.argument("TransactionCommit", 1),
            ),
            do.replace(at.argument("TransactionCommit", 1), "()"),
        ),
    ),
}
TRANSACTIONS = {
    "control message after commit": mutant(
        (CONTROL,),
        transaction(
            "complete",
            do.move_before(at.branch(at.condition("ports.controls")), at.call("TransactionResult", passing="records")),
        ),
    ),
    "no tombstone": mutant((CONTROL,), control("check_transaction", do.drop("attempts.bury"))),
    "tombstone as upsert": mutant((CONTROL,), documents("DocumentTransactions.bury", do.drop(at.raised("ConflictError")))),
    "tombstone on the client's key": mutant(
        (KEYED,),
        control("check_transaction", do.add_argument("attempts.bury", "key", "control.key")),
        documents(
            "DocumentTransactions.bury",
            do.add_parameter("key: str = ''"),
            do.insert_before(
                "self.save",
                "taken = ClientKey.of(IdempotencyEntry(identity.id, b''), until=tombstone.until)",
                tombstone=at.result_of("KeptRecord"),
            ),
            do.replace(
                at.argument("self.save", 1),
                "replace(document, keys={**document.keys, self.name_of(key): taken})",
                document=at.result_of("self.load", 0),
            ),
        ),
    ),
    "found tombstone not acked": mutant(
        (UNSHAKEN,), control("check_transaction", do.keep_only(at.comparison(_KEPT), of=at.condition(_KEPT)))
    ),
    "key of a transaction not read by a control message": mutant(
        (KEYED,), control("check_transaction", do.replace_answer("attempts.entry", "None")), needs_log=True
    ),
    "record read before key": mutant((KEYED,), control("check_transaction", do.swap("attempts.entry", "attempts.record"))),
    "fingerprint compared only once": mutant(
        (REUSED,), transaction("_winner", do.keep_only(_CHECKED, of=at.returned("_checked")))
    ),
    "fingerprint not compared at the beginning": mutant(
        (REUSED,), transaction("begin", do.keep_only(_CHECKED, of=at.returned("_checked")))
    ),
    "answer stored after commit": mutant(
        (BOTH,),
        documents(
            "DocumentTransaction.commit",
            do.replace_statement(
                "save",
                """
await transactions.save(self.unit, self._changed(document, record, None), version)
document, version = await transactions.load(self.unit)
name = transactions.name_of(opening.key)
keys = {**document.keys, name: after.keys[name]}
await transactions.save(self.unit, replace(document, keys=keys), version)
""",
                opening=at.root(at.argument("bind", 0)),
                **_SAVED,
            ),
        ),
    ),
    "dispatch after OutcomeUnknown commit": mutant(
        (CONTROL,), transaction("complete", do.add_handler(at.attempt("commit"), "OutcomeUnknown"))
    ),
    "unanswered commit reported as CommitFailed": mutant(
        (CONTROL, RELAYED), transaction("complete", do.enclose("commit", "before_commit()"))
    ),
    "done before dispatch": mutant(
        (CONTROL,), relay("relay", do.insert_before("dispatch", "await ports.store.forget(records)"))
    ),
    "record in a second transaction": mutant(
        (CONTROL,),
        documents(
            "DocumentTransaction.commit",
            do.replace_statement(
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
    "tombstone evicted before the deadline": mutant(
        (WITHOUT,),
        documents(
            "DocumentTransactions.bury",
            do.insert_after(
                "self.save",
                """
left, version = await self.load(unit)
records = {other: each for other, each in left.records.items() if other != name}
await self.save(unit, replace(left, records=records), version)
""",
                version=at.argument("self.save", 2),
                records=at.argument("replace", "records"),
                name=at.result_of("attempt_name"),
            ),
        ),
    ),
    "commit whose tombstone nobody looks for": mutant(
        (WITHOUT,), documents("DocumentTransaction.commit", do.never(at.condition("attempt_name")))
    ),
    "refused control message taken for sent": mutant(
        (CONTROL,), control("announce", do.compare(at.comparison("Answer.TAKEN"), "is", "Answer.UNKNOWN"))
    ),
    "key led elsewhere without a fence": mutant((ELSEWHERE,), documents("DocumentTransactions._is_free", do.drop("self.save"))),
    "key led elsewhere without a look": mutant(
        (ELSEWHERE,), documents("DocumentTransactions._is_free", do.drop(at.branch(at.condition("name_of"))))
    ),
    "key bound without a write": mutant(
        (THREE,),
        documents(
            "DocumentTransactions.bind",
            do.insert_before(
                "change_of", "if document.leads_to == unit:\n    return None", document=at.result_of("decode_entity")
            ),
            do.insert_after(
                "compare_and_set",
                "if own not in settled.versions:\n    return document, settled.seen[own].version",
                own=at.result_of("unit_of"),
                settled=at.result_of("compare_and_set"),
                document=at.result_of("decode_entity"),
            ),
        ),
    ),
    "key bound after the commit": mutant(
        (ELSEWHERE,),
        documents(
            "DocumentTransaction.commit",
            do.insert_after(
                "save",
                "if opening.key:\n    await transactions.bind(opening.key, self.unit)",
                opening=at.root(at.argument("bind", 0)),
                transactions=at.receiver("save"),
            ),
            do.replace_answer(at.call("bind", nth=0), "None"),
        ),
    ),
}


UNRELAYED = "a client that retries until its messages are sent, no relay"
RETRYING, FAILING = "a client that retries", "a block that fails, and two attempts with one key"
TWO_EFFECTS, CONTROLLED = "tokens elsewhere, a transaction with two effects", "a control message, two effects"
ANOTHER = "a control message that another endpoint processes"
STRAY, BESIDE = "stray control messages next to a good message, and a crash", "a control message next to a good message"
TWO = "two control messages in one batch"
_OPENED = at.result_of("transactions.open")

CLIENTS = {
    "a key that was used for the same request reported as reused": mutant(
        (RETRYING,), transaction("_checked", do.always(at.condition("fingerprint")))
    ),
    "known without dispatch": mutant(
        (UNRELAYED,), transaction("known", do.replace(at.argument("TransactionResult", "records"), "()"))
    ),
    "key outside of the commit": mutant(
        (RETRYING, UNRELAYED),
        memory(
            "MemoryTransaction.commit",
            do.replace_statement(
                "commit",
                """
await self._transactions.commit(token, TransactionCommit(changes), now)
if key:
    await self._transactions.perform("open", open_, ("", (token, "key"), False))
    await self._transactions.commit((token, "key"), TransactionCommit(UnitChanges(()), key), now)
""",
                token=at.argument("commit", 0),
                changes=at.argument("TransactionCommit", 0),
                key=at.argument("TransactionCommit", 1),
                now=at.argument("commit", 2),
            ),
        ),
    ),
    "a committed key reported as a conflict": mutant(
        (RETRYING,),
        transaction(
            "begin",
            do.insert_before(
                at.returned("_checked"),
                "if isinstance(opened, IdempotencyEntry):\n    raise ConflictError('committed by another attempt')",
                opened=_OPENED,
            ),
        ),
    ),
    "a failed block leaves its transaction open": mutant(
        (FAILING,), transaction("enclosed", do.drop(at.call("abandon", within=at.handler("HandlerFailed"))))
    ),
    "a block that was interrupted leaves its transaction open": mutant(
        (FAILING,), transaction("enclosed", do.drop(at.call("abandon", within=at.handler("BaseException"))))
    ),
    "only the first effect of a transaction stored": mutant(
        (TWO_EFFECTS,), transaction("complete", do.first_only(at.argument("Record", 1)))
    ),
    "tokens of a transaction prepared without an answer reported as OutcomeUnknown": mutant(
        (TWO_EFFECTS,),
        transaction("", do.imports("contextlib", "nullcontext")),
        transaction("complete", do.replace("before_commit", "nullcontext()")),
    ),
    "unanswered control message reported as OutcomeUnknown": mutant(
        (CONTROLLED,), control("announce", do.add_handler(at.attempt("transport.send"), "OutcomeUnknown", "raise"))
    ),
    "the attempt of another endpoint looked for among one's own": mutant(
        (ANOTHER,),
        control("", do.imports("onceonly.model.identity", "Identity")),
        control(
            "check_transaction", do.replace(at.argument("attempts.record", 0), "Identity(ports.endpoint, control.attempt)")
        ),
    ),
    "messages next to a control message left out of the batch": mutant(
        (STRAY, BESIDE),
        control(
            "split_controls",
            do.replace(
                at.element(at.returned(), 1), "() if any(not _HEADERS.isdisjoint(each.headers) for each in deliveries) else old"
            ),
        ),
    ),
    "only the first control message of a batch looked at": mutant(
        (STRAY, TWO), control("split_controls", do.first_only(at.element(at.returned(), 0)))
    ),
    "an unreadable control message acknowledged": mutant(
        (STRAY,),
        delivery(
            "_settle_control",
            do.replace_statement(at.call("give_up"), "await ack([delivery], ports)\nreturn BatchReport(known=1)"),
        ),
    ),
}
