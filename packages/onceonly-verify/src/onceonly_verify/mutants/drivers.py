"""Broken versions that show when a relay, a control message and an incoming message are at work on one record."""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant
from onceonly_verify.mutants.outbox import OUTBOX
from onceonly_verify.mutants.relay import RELAY
from onceonly_verify.mutants.stored_elsewhere import ENTITIES, documents
from onceonly_verify.mutants.transactions import control
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

TABLES, KEYED = (
    "three drivers at once in tables, a message and a transaction",
    "three drivers at once in tables, two attempts with one key",
)
DOCUMENTS, ONE_DOCUMENT = (
    "three drivers at once on documents, a message and a transaction",
    "three drivers at once on one document, a message and a transaction",
)
CONTROLLED = "a control message and a relay on documents"
LISTED, LISTED_TWO = (
    "a relay on documents, two messages that do not come again",
    "two relays on documents, a message that does not come again",
)

LEASED = "two relays on documents that lease what they take"

pending = partial(change, "documents.pending")
casting = partial(change, "documents.compare_and_set")

_RENAMED = (
    control("check_transaction", do.replace(at.argument("relay", 0), "[_renamed(each) for each in old]")),
    control(
        "",
        do.define("""
def _renamed(record):
    again = [replace(e, message=replace(e.message, id=e.message.id + ' again')) for e in record.effects]
    return replace(record, effects=tuple(again))
"""),
    ),
)

DRIVERS = {
    "a document leaves the list when one of its records is sent": mutant(
        (LISTED,),
        documents(
            "DocumentStore.change_of",
            do.replace(
                at.argument("Change", "pending_for"),
                "() if any(not each.pending for each in document.records.values()) else old",
            ),
        ),
    ),
    "a document whose commit does not list it": mutant(
        (LISTED,), documents("DocumentStore.change_of", do.replace(at.argument("Change", "pending_for"), "()"))
    ),
    "a lease of a relay that never ends": mutant(
        (LEASED,), pending("DocumentPending._leases", do.always(at.condition("LONGEST_LEASE_MS")))
    ),
    "a record of the list without its document": mutant(
        (LISTED_TWO,), pending("DocumentPending._read", do.replace(at.argument("record", 1), "''"))
    ),
    "a relay on documents: record emptied before dispatch": RELAY["relay: forgotten before dispatch"]._replace(
        checks=(LISTED,)
    ),
    "two relays on documents: fresh ids each time": RELAY["relay: fresh ids each time"]._replace(checks=(LISTED_TWO,)),
    "a document emptied as it was read, whatever it is now": mutant(
        (ONE_DOCUMENT,),
        casting("", do.imports("msgspec.structs", "replace")),
        casting(
            "compare_and_set",
            do.insert_before(
                "documents.save",
                """
now = await documents.load([each.key for each in changes])
changes = [replace(each, expected=now[each.key].version if each.key in now else "") for each in changes]
""",
                changes=at.argument("documents.save", 0),
            ),
        ),
    ),
    "a record that another driver has emptied deleted": ENTITIES["record deleted instead of emptied"]._replace(
        checks=(DOCUMENTS,)
    ),
    "three drivers at once: fresh ids each time": RELAY["relay: fresh ids each time"]._replace(checks=(TABLES, DOCUMENTS)),
    "three drivers at once: record deleted before dispatch": OUTBOX["forgotten before dispatch"]._replace(checks=(TABLES,)),
    "a control message sends under other ids than the other drivers": mutant((KEYED,), *_RENAMED),
    "a control message on documents sends under other ids than the other drivers": mutant((CONTROLLED,), *_RENAMED),
}
