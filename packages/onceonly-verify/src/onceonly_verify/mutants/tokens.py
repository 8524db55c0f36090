"""Broken versions of tokens: in a store of their own, and in the database of the business data."""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant, outbox, relay, store
from onceonly_verify.mutants.stored_elsewhere import ASKED_FIRST, FORGOTTEN_FIRST, RETIRED_FIRST, SWEPT, admission, documents
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

AHEAD = "tokens elsewhere, a relay, and a sweeper whose clock is ahead"
ASKED = "tokens elsewhere, asked by another service, and an early sweep"
KEY_ALONE = "tokens, a control message, a key without an entity, and an early sweep"
TWO, LATE = "tokens, two copies", "tokens, a lease that ends early"
LATE_FAILING, CHAIN = "tokens, a lease that ends early, and a failed call", "a chain with tokens, a crash and a failed call"
SAME, SAME_RELAYED = "tokens in the same database, one message", "tokens in the same database, and a relay"
_SAVED = at.left(at.condition("documents.save"))
_STORED = at.argument("DatabaseWorld", "records")


database = partial(change, "onceonly_verify.memory_ports.database")
TOKENS = {
    "no confirmation in the commit": mutant(
        (TWO,),
        documents("DocumentUnit._message_state", do.replace(at.argument("MessageState.of", 1), "replace(old, issued=())")),
    ),
    "deterministic token ids": mutant(
        (TWO,),
        admission("issue", do.replace("ids.new_id", "f'{record.identity.id} {len(effects)}'", effects=at.receiver("append"))),
    ),
    "own token removed before dispatch": mutant((TWO,), *RETIRED_FIRST),
    "token check before load": mutant((LATE,), *ASKED_FIRST),
    "record removed before token": mutant((TWO,), *FORGOTTEN_FIRST),
    "dispatch before tokens exist": mutant((CHAIN,), outbox("process", do.swap("admission.activate", "dispatch"))),
    "tokens confirmed before created": mutant(
        (TWO,),
        admission("TokenAdmission.prepare", do.drop(at.branch(at.guard("_tokens.prepare"))), do.drop(at.statement("Owner"))),
        admission(
            "TokenAdmission",
            do.define("""
async def create(self, issued):
    owners = {token: Owner(self._endpoint, each.unit, each.identity) for each in issued for token in each.issued}
    if owners:
        await self._tokens.prepare(owners)
"""),
        ),
        outbox(
            "process", do.insert_after("_commit", "await ports.admission.create(records)", records=at.argument("_commit", 1))
        ),
    ),
    "OutcomeUnknown at confirmation treated as failure, with tokens removed": mutant(
        (LATE_FAILING,),
        outbox(
            "process",
            do.insert_first(
                "await ports.admission.discard(records)",
                inside=at.handler("BaseException"),
                records=at.result_of("admission.prepare"),
            ),
        ),
    ),
    "unfenced sweeper": mutant(
        (SWEPT,),
        documents(
            "DocumentStore.fence",
            do.replace(at.left(at.condition("documents.save")), "change", change=at.result_of("change_of")),
        ),
    ),
    "sweeper does not fence a transaction": mutant(
        (AHEAD,), store("MemoryStore.fence", do.never(at.condition("longest_commit")))
    ),
    "a fenced transaction is committed all the same": mutant(
        (AHEAD,), change("adapters.memory.transactions", "commit", do.never(at.condition("world.buried")))
    ),
    "sweeper does not fence an execution": mutant(
        (ASKED,), change("algorithms.remote_execution", "execute", do.replace(at.argument("Record", "unit"), "''"))
    ),
    "a key's document fenced by its version alone": mutant(
        (KEY_ALONE,), documents("DocumentStore.fence", do.never(at.condition("unit.startswith")))
    ),
    "unconditional activation": mutant(
        (CHAIN,), change("onceonly_verify.memory_ports.tokens", "activate", do.replace(at.argument("live.union", 0), "tokens"))
    ),
    "same database: no record": mutant((SAME,), database("commit", do.keep_only(at.left(_STORED), of=_STORED))),
    "same database: record before a snapshot read": mutant(
        (SAME,),
        database(
            "MemoryDatabase.begin",
            do.insert_before(at.point("begin"), "known = await self.find([message.identity for message in messages])"),
            do.insert_after(
                at.point("begin"),
                """
missed = {record.identity for record in found.pending if record not in known}
gone = tuple(message for message in messages if message.identity in missed)
pending = tuple(record for record in found.pending if record in known)
found = replace(found, pending=pending, done=(*found.done, *gone))
""",
                found=at.result_of(at.point("begin")),
            ),
        ),
    ),
    "same database: janitor deletes without dispatch": mutant(
        (SAME_RELAYED,), relay("relay", do.replace_answer("dispatch", "{record.identity: Answer.TAKEN for record in records}"))
    ),
}


SHARED, PAGES = "a chain with tokens, and a sweeper at each endpoint", "tokens elsewhere, and a sweeper whose page is full"
CHAIN_TWO_EFFECTS, HANDED_ON = "a chain with tokens, two effects", "a chain with tokens, and attributes that are handed on"
BATCH = "tokens, two messages in one batch, and a crash"
RELAYED, BESIDE = "tokens elsewhere, two transactions, and a relay that sends both", "tokens elsewhere, a worker and a relay"
SAME_TWO_MESSAGES, MARKED = "tokens in the same database, two messages in one batch", "a dedup store, two messages in one batch"


sweeper = partial(change, "algorithms.sweeper")
SHARED_TOKENS = {
    "sweeper removes tokens of other endpoints": mutant(
        (SHARED,), sweeper("sweep.sweep_one", do.drop_operand(at.comparison("ports.endpoint")))
    ),
    "sweeper never gets behind its first page": mutant((PAGES,), sweeper("sweep_each", do.always(at.condition("limit")))),
    "one token for all messages of a record": mutant(
        (CHAIN_TWO_EFFECTS,), admission("issue", do.replace("ids.new_id", "shared"), do.insert_first("shared = ids.new_id()"))
    ),
    "attributes that are handed on lost beside a token": mutant(
        (HANDED_ON,),
        admission("issue", do.replace(at.argument(at.call("replace", passing="extensions"), "extensions"), "old[-1:]")),
    ),
    "only the first token prepared": mutant(
        (BATCH,), admission("TokenAdmission.prepare", do.replace(at.argument("_tokens.prepare", 0), "dict([*old.items()][:1])"))
    ),
    "only the first token made live": mutant(
        (BATCH,), admission("TokenAdmission.activate", do.first_only(at.argument("activate", 0)))
    ),
    "only the first token consumed": mutant(
        (BATCH,), admission("TokenAdmission.retire", do.first_only(at.argument("remove", 0)))
    ),
    "relay: only the first record's tokens made live": mutant(
        (RELAYED,), relay("relay", do.first_only(at.argument("admission.activate", 0)))
    ),
    "relay: tokens consumed before dispatch": mutant(
        (BESIDE,), relay("relay", do.insert_before("dispatch", "await ports.admission.retire(records)"))
    ),
    "same database: only the first record committed": mutant(
        (SAME_TWO_MESSAGES,), admission("TokensInStore.prepare", do.first_only(at.returned()))
    ),
    "only the first message of a batch looked up in the dedup store": mutant(
        (MARKED,), admission("DedupStoreAdmission.admits", do.first_only(at.argument("contains", 0)))
    ),
}


CLIENTS = "tokens in the same database, two attempts with one key, and a relay"
ASKED_IN_DATABASE = "tokens in the same database, asked by another service, and a failed call"
BOTH_DIED = "tokens elsewhere, two messages whose processes died, a relay and a failed call"
ARTIFACT, SWEPT_ARTIFACT = ("an artifact, a relay and a failed call", "an artifact, a relay, and an early sweep")
UNDECLARED = "an event without declared subscribers next to a good message, tokens"
UNDECLARED_SAME = "an event without declared subscribers next to a good message, tokens in the same database"


transactions = partial(change, "onceonly_verify.memory_ports.database_transactions")
IN_DATABASE = {
    "same database: tokens of a transaction not written": mutant(
        (CLIENTS,),
        transactions("commit", do.replace(at.argument(at.call("replace", passing="tokens"), "tokens"), "world.tokens")),
    ),
    "same database: one key committed twice": mutant(
        (CLIENTS,),
        transactions("open_", do.never(at.condition("world.open"))),
        transactions("commit", do.never(at.condition("world.keys"))),
    ),
    "same database: response not stored": mutant(
        (ASKED_IN_DATABASE,),
        transactions("commit", do.replace(at.argument(at.call("replace", passing="keys"), "keys"), "world.keys")),
    ),
    "relay: all records retired when one was taken": mutant(
        (BOTH_DIED,), relay("relay", do.replace(at.argument("admission.retire", 0), "records"))
    ),
    "relay: artifacts of its own records deleted": mutant(
        (ARTIFACT,),
        relay(
            "relay", do.replace("effects.clean", "ports.effects.discard(finished)", finished=at.argument("effects.clean", 0))
        ),
    ),
    "register row left by the commit": mutant(
        (SWEPT_ARTIFACT,), store("commit", do.replace(at.argument("take_rows", 1), "()"))
    ),
    "an event without declared subscribers sent to nobody": mutant(
        (UNDECLARED, UNDECLARED_SAME), admission("issue", do.add_argument("subscribers.get", "", "()"))
    ),
}
