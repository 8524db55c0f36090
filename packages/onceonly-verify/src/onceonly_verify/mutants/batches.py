"""Broken versions that treat one message well, and confuse it with the others of its batch."""

from onceonly_verify.mutants.artifacts import effects
from onceonly_verify.mutants.known_bad import ISOLATED_FAILING, REFUSED_COMMIT, Mutant, delivery, intake, outbox
from onceonly_verify.mutants.stored_elsewhere import admission
from onceonly_verify.mutations.operations import define, drop, drop_argument, drop_filter, first_only, insert_after, replace
from onceonly_verify.mutations.places import (
    argument,
    call,
    condition,
    handler,
    iterated,
    loop,
    produced,
    receiver,
    result_of,
    returned,
    source_of,
)

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

_FINISHED, _UNDISPATCHED = argument("UnitResult", "finished"), argument("UnitResult", "undispatched")
_PENDING = source_of(argument("dispatch", 0))
_FIRST_EFFECT = """
def _first_effect(record):
    return replace(record, effects=record.effects[:1])
"""

_ELSEWHERE = """
def _elsewhere(record):
    return replace(record, effects=tuple(replace(each, to='sink') for each in record.effects))
"""

BATCHES: tuple[Mutant, ...] = (
    Mutant(
        "only the first effect sent again",
        (EFFECTS,),
        (outbox("process", replace(produced(_PENDING), "_first_effect(old)")), outbox("", define(_FIRST_EFFECT))),
    ),
    Mutant(
        "all of a batch finished as its first message is",
        (EFFECTS,),
        (
            outbox(
                "process",
                replace(argument(call("get", within=_FINISHED), 0), "settled[0].identity", settled=iterated(_FINISHED)),
            ),
        ),
    ),
    Mutant(
        "all of a batch fail when one effect is refused",
        (EFFECTS,),
        (delivery("_failures", drop_filter(condition("Answer.REFUSED"))),),
    ),
    Mutant(
        "only the first that is not dispatched comes again",
        (REFUSED,),
        (outbox("process", first_only(iterated(_UNDISPATCHED))),),
    ),
    Mutant(
        "only the first record of a batch forgotten",
        (EFFECTS,),
        (outbox("_forget_and_ack", first_only(argument("store.forget", 0))),),
    ),
    Mutant(
        "a message that cannot be finished left to its lease",
        (EFFECTS,),
        (delivery("_finish", drop(call("release", within=handler("RetryableError")))),),
    ),
    Mutant(
        "a message whose copy may not be taken left to its lease",
        (FAILING,),
        (delivery("retry", drop("release")),),
    ),
    Mutant(
        "a message whose dead letter may not be stored left to its lease",
        (FAILING,),
        (delivery("give_up", drop(call("_release", within=handler("RetryableError")))),),
    ),
    Mutant(
        "dead letters after one that is not stored left out",
        (FAILING,),
        (delivery("give_up", insert_after(call("_release", within=handler("RetryableError")), "break")),),
    ),
    Mutant(
        "a copy has the history of the first message of its batch",
        (FAILING, COUNTS),
        (delivery("retry", replace(argument("_copy", 1), "replace(old, history=decided[0][1].history)")),),
    ),
    Mutant(
        "a copy has the count of the first message of its batch",
        (COUNTS,),
        (delivery("retry", replace(argument("_copy", 1), "replace(old, attempts=decided[0][1].attempts)")),),
    ),
    Mutant(
        "a copy is no longer marked as one that must run alone",
        (ALONE,),
        (delivery("_copy", replace(argument("Send", "alone"), "alone")),),
    ),
    Mutant(
        "the history of the first copy of a batch, whatever the others know",
        (FAILING_COPIES,),
        (intake("PendingMessage.history", replace(returned(), "self.deliveries[0].history")),),
    ),
    Mutant(
        "the count of the first copy of a batch, whatever the others know",
        (FAILING_COPIES,),
        (intake("PendingMessage.attempts", replace(returned(), "self.deliveries[0].attempts")),),
    ),
    Mutant(
        "only the first unreadable message of a batch stored",
        (FLAWED,),
        (delivery("deliver", first_only(argument("give_up", 0))),),
    ),
    Mutant(
        "the identity of an unreadable message lost",
        (FLAWED,),
        (intake("sort", replace(argument(call("letter_for"), 1), "None")),),
    ),
    Mutant(
        "only the first other body of a batch given back",
        (OTHERS,),
        (delivery("deliver", first_only(argument("_release", 0))),),
    ),
    Mutant(
        "only the first message of a batch marked as done",
        (DEDUP,),
        (outbox("finish", first_only(argument("admission.retire", 0))),),
    ),
    Mutant(
        "only the first token of a batch consumed", (TOKENS,), (outbox("finish", first_only(argument("admission.retire", 0))),)
    ),
    Mutant(
        "only the first token of a batch made live",
        (TOKENS, SUBSCRIBED),
        (admission("TokenAdmission.activate", first_only(argument("_tokens.activate", 0))),),
    ),
    Mutant(
        "a token for the first subscriber only",
        (SUBSCRIBED,),
        (admission("issue", replace("subscribers.get", "(old or ())[:1]")),),
    ),
    Mutant(
        "all of a batch admitted when one token is live",
        (TOKENS,),
        (
            admission(
                "TokenAdmission.admits",
                replace(
                    argument("AdmissionResult", 0),
                    "frozenset(asked) if live else old",
                    asked=receiver("items"),
                    live=result_of("_tokens.live"),
                ),
            ),
        ),
    ),
    Mutant(
        "only the artifacts of the first message of a batch made",
        (ARTIFACTS,),
        (outbox("process", first_only(argument("effects.create", 0))),),
    ),
    Mutant(
        "only the first artifact of a message made",
        (ARTIFACTS,),
        (effects("RegisteredEffects.create", first_only(iterated(loop("artifacts")))),),
    ),
    Mutant(
        "the first part of a batch reported only",
        (OTHERS,),
        (delivery("BatchReport.__add__", replace(returned("BatchReport"), "self")),),
        needs_log=True,
    ),
    Mutant(
        "a batch begun without isolation in which a handler may fail",
        (ISOLATED_FAILING,),
        (delivery("_take_through", drop_argument("run", "isolated")),),
        needs_log=True,
    ),
    Mutant(
        "what is released for an unknown outcome not reported",
        (EFFECTS,),
        (delivery("_leave", drop_argument("BatchReport", "unknown")),),
        needs_log=True,
    ),
    Mutant(
        "what is unknown of the second half of a batch left to its lease",
        (REFUSED_COMMIT,),
        (delivery("RunResult.__add__", replace(argument("RunResult", "unknown"), "self.unknown")),),
    ),
    Mutant(
        "what an attempt decided is sent elsewhere when it is sent again",
        (VARYING,),
        (outbox("process", replace(produced(_PENDING), "_elsewhere(old)")), outbox("", define(_ELSEWHERE))),
    ),
)
