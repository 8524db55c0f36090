"""Broken versions of tokens: in a store of their own, and in the database of the business data."""

from onceonly_verify.mutants.known_bad import Mutant, outbox, relay, store
from onceonly_verify.mutants.stored_elsewhere import ASKED_FIRST, FORGOTTEN_FIRST, RETIRED_FIRST, SWEPT, admission, documents
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import (
    define,
    drop,
    insert_after,
    insert_before,
    insert_first,
    keep_only,
    never,
    replace,
    replace_answer,
    swap,
)
from onceonly_verify.mutations.places import (
    argument,
    branch,
    condition,
    guard,
    handler,
    left,
    point,
    receiver,
    result_of,
    statement,
)

AHEAD = "tokens elsewhere, a relay, and a sweeper whose clock is ahead"
ASKED = "tokens elsewhere, asked by another service, and an early sweep"
KEY_ALONE = "tokens, a control message, a key without an entity, and an early sweep"
TWO, LATE = "tokens, two copies", "tokens, a lease that ends early"
LATE_FAILING, CHAIN = "tokens, a lease that ends early, and a failed call", "a chain with tokens, a crash and a failed call"
SAME, SAME_RELAYED = "tokens in the same database, one message", "tokens in the same database, and a relay"
_SAVED = left(condition("documents.save"))
_STORED = argument("DatabaseWorld", "records")


def database(function: str, *operations: EditOperation) -> CodeChange:
    """Change the memory database."""
    return change("adapters.memory.database", function, *operations)


TOKENS: tuple[Mutant, ...] = (
    Mutant(
        "no confirmation in the commit",
        (TWO,),
        (documents("DocumentUnit._kept", replace(argument("MessageState.of", 1), "replace(old, issued=())")),),
    ),
    Mutant(
        "deterministic token ids",
        (TWO,),
        (admission("issue", replace("ids.new_id", "f'{record.identity.id} {len(effects)}'", effects=receiver("append"))),),
    ),
    Mutant("own token removed before dispatch", (TWO,), RETIRED_FIRST),
    Mutant("token check before load", (LATE,), ASKED_FIRST),
    Mutant("record removed before token", (TWO,), FORGOTTEN_FIRST),
    Mutant("dispatch before tokens exist", (CHAIN,), (outbox("process", swap("admission.activate", "dispatch")),)),
    Mutant(
        "tokens confirmed before created",
        (TWO,),
        (
            admission("TokenAdmission.prepare", drop(branch(guard("_tokens.prepare"))), drop(statement("Owner"))),
            admission(
                "TokenAdmission",
                define("""
async def create(self, issued):
    owners = {token: Owner(self._endpoint, each.unit, each.identity) for each in issued for token in each.issued}
    if owners:
        await self._tokens.prepare(owners)
"""),
            ),
            outbox("process", insert_after("_commit", "await ports.admission.create(records)", records=argument("_commit", 1))),
        ),
    ),
    Mutant(
        "OutcomeUnknown at confirmation treated as failure, with tokens removed",
        (LATE_FAILING,),
        (
            outbox(
                "process",
                insert_first(
                    "await ports.admission.discard(records)",
                    inside=handler("BaseException"),
                    records=result_of("admission.prepare"),
                ),
            ),
        ),
    ),
    Mutant(
        "unfenced sweeper",
        (SWEPT,),
        (
            documents(
                "DocumentStore.fence", replace(left(condition("documents.save")), "change", change=result_of("change_of"))
            ),
        ),
    ),
    Mutant(
        "sweeper does not fence a transaction",
        (AHEAD,),
        (store("MemoryStore.fence", never(condition("longest_commit"))),),
    ),
    Mutant(
        "a fenced transaction is committed all the same",
        (AHEAD,),
        (change("adapters.memory.transactions", "commit", never(condition("world.buried"))),),
    ),
    Mutant(
        "sweeper does not fence an execution",
        (ASKED,),
        (change("algorithms.remote_execution", "execute", replace(argument("Record", "unit"), "''")),),
    ),
    Mutant(
        "a key's document fenced by its version alone",
        (KEY_ALONE,),
        (documents("DocumentStore.fence", never(condition("unit.startswith"))),),
    ),
    Mutant(
        "unconditional activation",
        (CHAIN,),
        (change("adapters.memory.tokens", "activate", replace(argument("live.union", 0), "tokens")),),
    ),
    Mutant("same database: no record", (SAME,), (database("commit", keep_only(left(_STORED), of=_STORED)),)),
    Mutant(
        "same database: record before a snapshot read",
        (SAME,),
        (
            database(
                "MemoryDatabase.begin",
                insert_before(point("begin"), "known = await self.find([message.identity for message in messages])"),
                insert_after(
                    point("begin"),
                    """
missed = {record.identity for record in found.pending if record not in known}
gone = tuple(message for message in messages if message.identity in missed)
pending = tuple(record for record in found.pending if record in known)
found = replace(found, pending=pending, done=(*found.done, *gone))
""",
                    found=result_of(point("begin")),
                ),
            ),
        ),
    ),
    Mutant(
        "same database: janitor deletes without dispatch",
        (SAME_RELAYED,),
        (relay("relay", replace_answer("dispatch", "{record.identity: Answer.TAKEN for record in records}")),),
    ),
)
