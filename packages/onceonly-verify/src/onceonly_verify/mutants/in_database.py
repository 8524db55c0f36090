"""Broken versions of transactions with tokens in the database, of artifacts with relays, and of events without subscribers."""

from onceonly_verify.mutants.known_bad import Mutant, relay, store
from onceonly_verify.mutants.stored_elsewhere import admission
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import add_argument, never, replace
from onceonly_verify.mutations.places import argument, call, condition

CLIENTS = "tokens in the same database, two attempts with one key, and a relay"
ENLISTED = "tokens in the same database, two enlisted transactions, and a relay"
ASKED = "tokens in the same database, asked by another service, and a failed call"
BOTH_DIED = "tokens elsewhere, two messages whose processes died, a relay and a failed call"
ARTIFACT, SWEPT = (
    "an artifact, a relay and a failed call",
    "an artifact, a relay, and an early sweep",
)
UNDECLARED = "an event without declared subscribers next to a good message, tokens"
UNDECLARED_SAME = "an event without declared subscribers next to a good message, tokens in the same database"


def transactions(function: str, *operations: EditOperation) -> CodeChange:
    """Change the transactions of the memory database."""
    return change("adapters.memory.database_transactions", function, *operations)


IN_DATABASE: tuple[Mutant, ...] = (
    Mutant(
        "same database: tokens of a transaction not written",
        (CLIENTS,),
        (transactions("commit", replace(argument(call("replace", passing="tokens"), "tokens"), "world.tokens")),),
    ),
    Mutant(
        "same database: one key committed twice",
        (CLIENTS,),
        (transactions("open_", never(condition("world.open"))), transactions("commit", never(condition("world.keys")))),
    ),
    Mutant(
        "same database: response not stored",
        (ASKED,),
        (transactions("commit", replace(argument(call("replace", passing="keys"), "keys"), "world.keys")),),
    ),
    Mutant(
        "relay: all records retired when one was taken",
        (BOTH_DIED,),
        (relay("relay", replace(argument("admission.retire", 0), "records")),),
    ),
    Mutant(
        "relay: artifacts of its own records deleted",
        (ARTIFACT,),
        (
            relay(
                "relay",
                replace("effects.clean", "ports.effects.discard(finished)", finished=argument("effects.clean", 0)),
            ),
        ),
    ),
    Mutant(
        "register row left by the commit",
        (SWEPT,),
        (store("commit", replace(argument("take_rows", 1), "()")),),
    ),
    Mutant(
        "an event without declared subscribers sent to nobody",
        (UNDECLARED, UNDECLARED_SAME),
        (admission("issue", add_argument("subscribers.get", "", "()")),),
    ),
)
