"""Broken versions of tokens for several messages and endpoints, of relays that send them, and of sweepers that share them."""

from onceonly_verify.mutants.known_bad import Mutant, relay
from onceonly_verify.mutants.stored_elsewhere import admission
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import (
    always,
    drop_operand,
    first_only,
    insert_before,
    insert_first,
    replace,
)
from onceonly_verify.mutations.places import argument, call, comparison, condition, returned

SHARED, PAGES = "a chain with tokens, and a sweeper at each endpoint", "tokens elsewhere, and a sweeper whose page is full"
CHAIN, HANDED_ON = "a chain with tokens, two effects", "a chain with tokens, and attributes that are handed on"
BATCH = "tokens, two messages in one batch, and a crash"
RELAYED, BESIDE = "tokens elsewhere, two transactions, and a relay that sends both", "tokens elsewhere, a worker and a relay"
SAME, MARKED = "tokens in the same database, two messages in one batch", "a dedup store, two messages in one batch"


def sweeper(function: str, *operations: EditOperation) -> CodeChange:
    """Change the sweeper."""
    return change("algorithms.sweeper", function, *operations)


SHARED_TOKENS: tuple[Mutant, ...] = (
    Mutant(
        "sweeper removes tokens of other endpoints",
        (SHARED,),
        (sweeper("sweep.sweep_one", drop_operand(comparison("ports.endpoint"))),),
    ),
    Mutant("sweeper never gets behind its first page", (PAGES,), (sweeper("sweep_each", always(condition("limit"))),)),
    Mutant(
        "one token for all messages of a record",
        (CHAIN,),
        (admission("issue", replace("ids.new_id", "shared"), insert_first("shared = ids.new_id()")),),
    ),
    Mutant(
        "attributes that are handed on lost beside a token",
        (HANDED_ON,),
        (admission("issue", replace(argument(call("replace", passing="extensions"), "extensions"), "old[-1:]")),),
    ),
    Mutant(
        "only the first token prepared",
        (BATCH,),
        (admission("TokenAdmission.prepare", replace(argument("_tokens.prepare", 0), "dict([*old.items()][:1])")),),
    ),
    Mutant(
        "only the first token made live", (BATCH,), (admission("TokenAdmission.activate", first_only(argument("activate", 0))),)
    ),
    Mutant("only the first token consumed", (BATCH,), (admission("TokenAdmission.retire", first_only(argument("remove", 0))),)),
    Mutant(
        "relay: only the first record's tokens made live",
        (RELAYED,),
        (relay("relay", first_only(argument("admission.activate", 0))),),
    ),
    Mutant(
        "relay: tokens consumed before dispatch",
        (BESIDE,),
        (relay("relay", insert_before("dispatch", "await ports.admission.retire(records)")),),
    ),
    Mutant(
        "same database: only the first record committed",
        (SAME,),
        (admission("TokensInStore.prepare", first_only(returned())),),
    ),
    Mutant(
        "only the first message of a batch looked up in the dedup store",
        (MARKED,),
        (admission("DedupStoreAdmission.admits", first_only(argument("contains", 0))),),
    ),
)
