"""Broken versions that confuse the messages of a batch handler's batch, or lose some of them when it fails."""

from onceonly_verify.mutants.known_bad import Mutant, outbox
from onceonly_verify.mutations.operations import always, drop_filter, first_only, replace
from onceonly_verify.mutations.places import argument, assigned, call, condition, handler, iterated, returned

TWO_FAIL, TWO_FAIL_ISOLATED, TWO_SET_ASIDE_ISOLATED = (
    "a full batch of a batch handler that fails as a whole, two of five fail",
    "a full isolated batch of a batch handler that fails as a whole, two of five fail",
    "a full isolated batch of a batch handler that says which of them have failed, two of five fail",
)
ANY, ANY_ISOLATED = (
    "a full batch of a batch handler that fails as a whole, messages end in any way",
    "a full isolated batch of a batch handler that fails as a whole, messages end in any way",
)
EFFECTS = "a batch handler with two effects for each message, and a failed call"

_POSTPONED = argument(call("tuple", having="identity"), 0)

BATCH_HANDLERS: tuple[Mutant, ...] = (
    Mutant(
        "a batch that fails counted as a failure of all its messages",
        (TWO_FAIL, TWO_FAIL_ISOLATED),
        (outbox("_blamed", replace(returned(), "{each.identity: error.failure for each in batch}")),),
    ),
    Mutant(
        "a batch that fails counted as a failure of its first message",
        (TWO_FAIL_ISOLATED,),
        (outbox("_blamed", always(condition("len"))),),
    ),
    Mutant(
        "only the first half of a batch that fails run again",
        (TWO_FAIL_ISOLATED,),
        (outbox("_again", first_only(returned("len"))),),
    ),
    Mutant(
        "the others of a batch left out when it is known which messages fail",
        (TWO_SET_ASIDE_ISOLATED,),
        (outbox("_again", replace(assigned(condition("identity")), "[]")),),
        needs_log=True,
    ),
    Mutant(
        "a message that was set aside run again with the others",
        (TWO_SET_ASIDE_ISOLATED,),
        (outbox("_again", drop_filter(condition("identity"))),),
    ),
    Mutant(
        "the decisions of a batch confused",
        (EFFECTS,),
        (outbox("_handle", replace(argument("zip", 1), "old[::-1]")),),
    ),
    Mutant(
        "only the first message of a postponed batch left for later",
        (ANY, ANY_ISOLATED),
        (outbox("_handle", replace(_POSTPONED, "[each[0].identity for each in waiting]", waiting=iterated(_POSTPONED))),),
        needs_log=True,
    ),
    Mutant(
        "what ends the unit of a batch blamed on its first message",
        (ANY,),
        (outbox("_handle", always(condition("len", within=handler("ConflictError")))),),
        needs_log=True,
    ),
)
