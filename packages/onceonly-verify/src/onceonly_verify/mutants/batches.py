"""Broken versions that treat one message well, and confuse it with the others of its batch."""

from onceonly_verify.mutants.artifacts import effects
from onceonly_verify.mutants.known_bad import (
    ISOLATED_FAILING,
    REFUSED_COMMIT,
    blame,
    delivery,
    intake,
    mutant,
    outbox,
    settlement,
)
from onceonly_verify.mutants.stored_elsewhere import admission
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

EFFECTS, REFUSED = (
    "two messages with two effects each, and a failed call",
    "two messages with two effects each, one is always refused",
)
FAILING, COUNTS, FAILING_COPIES = (
    "two messages that fail in one unit, and a failed call",
    "two messages that sometimes fail, with different counts",
    "two copies of a message that fails, and a crash",
)
ALONE = "a message that must run alone and fails"
VARYING = "two messages whose handlers decide differently on each run, and a crash"
FLAWED, OTHERS = "unreadable messages beside two good ones", "another body and another time under one id, beside a good message"
SUBSCRIBED = "an event with two subscribers, tokens and a failed call"
DEDUP, TOKENS, ARTIFACTS = (
    "two messages of one entity in a batch, a dedup store, and a failed call",
    "two messages and one without a token in a batch, and a failed call",
    "two messages with two artifacts each",
)

_FINISHED, _UNDISPATCHED = at.argument("UnitResult", "finished"), at.argument("UnitResult", "undispatched")
_PENDING = at.source_of(at.argument("dispatch", 0))
_FIRST_EFFECT = """
def _first_effect(record):
    return replace(record, effects=record.effects[:1])
"""

_ELSEWHERE = """
def _elsewhere(record):
    return replace(record, effects=tuple(replace(each, to='sink') for each in record.effects))
"""

BATCHES = {
    "only the first effect sent again": mutant(
        (EFFECTS,),
        outbox("process", do.replace(at.produced(_PENDING), "_first_effect(old)")),
        outbox("", do.define(_FIRST_EFFECT)),
    ),
    "all of a batch finished as its first message is": mutant(
        (EFFECTS,),
        outbox(
            "process",
            do.replace(at.argument(at.call("get", within=_FINISHED), 0), "settled[0].identity", settled=at.iterated(_FINISHED)),
        ),
    ),
    "all of a batch fail when one effect is refused": mutant(
        (EFFECTS,), settlement("_failures", do.drop_filter(at.condition("Answer.REFUSED")))
    ),
    "only the first that is not dispatched comes again": mutant(
        (REFUSED,), outbox("process", do.first_only(at.iterated(_UNDISPATCHED)))
    ),
    "only the first record of a batch forgotten": mutant(
        (EFFECTS,), outbox("_forget_and_ack", do.first_only(at.argument("store.forget", 0)))
    ),
    "a message that cannot be finished left to its lease": mutant(
        (EFFECTS,), settlement("_finish", do.drop(at.call("release_messages", within=at.handler("RetryableError"))))
    ),
    "a message whose copy may not be taken left to its lease": mutant(
        (FAILING,), settlement("retry", do.drop("release_messages"))
    ),
    "a message whose dead letter may not be stored left to its lease": mutant(
        (FAILING,), settlement("give_up", do.drop(at.call("release", within=at.handler("RetryableError"))))
    ),
    "dead letters after one that is not stored left out": mutant(
        (FAILING,), settlement("give_up", do.insert_after(at.call("release", within=at.handler("RetryableError")), "break"))
    ),
    "a copy has the history of the first message of its batch": mutant(
        (FAILING, COUNTS),
        settlement("retry", do.replace(at.argument("_copy", 1), "replace(old, history=decided[0][1].history)")),
    ),
    "a copy has the count of the first message of its batch": mutant(
        (COUNTS,), settlement("retry", do.replace(at.argument("_copy", 1), "replace(old, attempts=decided[0][1].attempts)"))
    ),
    "a copy is no longer marked as one that must run alone": mutant(
        (ALONE,), settlement("_copy", do.replace(at.argument("Send", "alone"), "alone"))
    ),
    "the history of the first copy of a batch, whatever the others know": mutant(
        (FAILING_COPIES,), intake("PendingMessage.history", do.replace(at.returned(), "self.deliveries[0].history"))
    ),
    "the count of the first copy of a batch, whatever the others know": mutant(
        (FAILING_COPIES,), intake("PendingMessage.attempts", do.replace(at.returned(), "self.deliveries[0].attempts"))
    ),
    "only the first unreadable message of a batch stored": mutant(
        (FLAWED,), delivery("deliver", do.first_only(at.argument("give_up", 0)))
    ),
    "the identity of an unreadable message lost": mutant(
        (FLAWED,), intake("sort", do.replace(at.argument(at.call("letter_for"), 1), "None"))
    ),
    "only the first other body of a batch given back": mutant(
        (OTHERS,), delivery("deliver", do.first_only(at.argument("release", 0)))
    ),
    "only the first message of a batch marked as done": mutant(
        (DEDUP,), outbox("finish", do.first_only(at.argument("admission.retire", 0)))
    ),
    "only the first token of a batch consumed": mutant(
        (TOKENS,), outbox("finish", do.first_only(at.argument("admission.retire", 0)))
    ),
    "only the first token of a batch made live": mutant(
        (TOKENS, SUBSCRIBED), admission("TokenAdmission.activate", do.first_only(at.argument("_tokens.activate", 0)))
    ),
    "a token for the first subscriber only": mutant(
        (SUBSCRIBED,), admission("issue", do.replace("subscribers.get", "(old or ())[:1]"))
    ),
    "all of a batch admitted when one token is live": mutant(
        (TOKENS,),
        admission(
            "TokenAdmission.admits",
            do.replace(
                at.argument("AdmissionResult", 0),
                "frozenset(asked) if live else old",
                asked=at.receiver("items"),
                live=at.result_of("_tokens.live"),
            ),
        ),
    ),
    "only the artifacts of the first message of a batch made": mutant(
        (ARTIFACTS,), outbox("process", do.first_only(at.argument("effects.create", 0)))
    ),
    "only the first artifact of a message made": mutant(
        (ARTIFACTS,), effects("RegisteredEffects.create", do.first_only(at.iterated(at.loop("artifacts"))))
    ),
    "the first part of a batch reported only": mutant(
        (OTHERS,), settlement("BatchReport.__add__", do.replace(at.returned("BatchReport"), "self")), needs_log=True
    ),
    "a batch begun without isolation in which a handler may fail": mutant(
        (ISOLATED_FAILING,), delivery("_take_through", do.drop_argument("run", "isolated")), needs_log=True
    ),
    "what is released for an unknown outcome not reported": mutant(
        (EFFECTS,), settlement("_leave", do.drop_argument("BatchReport", "unknown")), needs_log=True
    ),
    "what is unknown of the second half of a batch left to its lease": mutant(
        (REFUSED_COMMIT,), blame("RunResult.__add__", do.replace(at.argument("RunResult", "unknown"), "self.unknown"))
    ),
    "what an attempt decided is sent elsewhere when it is sent again": mutant(
        (VARYING,), outbox("process", do.replace(at.produced(_PENDING), "_elsewhere(old)")), outbox("", do.define(_ELSEWHERE))
    ),
}


TWO_FAIL, TWO_FAIL_ISOLATED, TWO_SET_ASIDE_ISOLATED = (
    "a full batch of a batch handler that fails as a whole, two of five fail",
    "a full isolated batch of a batch handler that fails as a whole, two of five fail",
    "a full isolated batch of a batch handler that says which of them have failed, two of five fail",
)
ANY, ANY_ISOLATED = (
    "a full batch of a batch handler that fails as a whole, messages end in any way",
    "a full isolated batch of a batch handler that fails as a whole, messages end in any way",
)
HANDLED_AT_ONCE = "a batch handler with two effects for each message, and a failed call"

_POSTPONED = at.argument(at.call("tuple", having="identity"), 0)

BATCH_HANDLERS = {
    "a batch that fails counted as a failure of all its messages": mutant(
        (TWO_FAIL, TWO_FAIL_ISOLATED),
        outbox("_blamed", do.replace(at.returned(), "{each.identity: error.failure for each in batch}")),
    ),
    "a batch that fails counted as a failure of its first message": mutant(
        (TWO_FAIL_ISOLATED,), outbox("_blamed", do.always(at.condition("len")))
    ),
    "only the first half of a batch that fails run again": mutant(
        (TWO_FAIL_ISOLATED,), outbox("_rerun_batches", do.first_only(at.returned("len")))
    ),
    "the others of a batch left out when it is known which messages fail": mutant(
        (TWO_SET_ASIDE_ISOLATED,),
        outbox("_rerun_batches", do.replace(at.assigned(at.condition("identity")), "[]")),
        needs_log=True,
    ),
    "a message that was set aside run again with the others": mutant(
        (TWO_SET_ASIDE_ISOLATED,), outbox("_rerun_batches", do.drop_filter(at.condition("identity")))
    ),
    "the decisions of a batch confused": mutant(
        (HANDLED_AT_ONCE,), outbox("_handle", do.replace(at.argument("zip", 1), "old[::-1]"))
    ),
    "only the first message of a postponed batch left for later": mutant(
        (ANY, ANY_ISOLATED),
        outbox("_handle", do.replace(_POSTPONED, "[each[0].identity for each in waiting]", waiting=at.iterated(_POSTPONED))),
        needs_log=True,
    ),
    "what ends the unit of a batch blamed on its first message": mutant(
        (ANY,), outbox("_handle", do.always(at.condition("len", within=at.handler("ConflictError")))), needs_log=True
    ),
}
