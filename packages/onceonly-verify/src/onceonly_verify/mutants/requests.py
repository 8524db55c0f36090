"""Broken versions of requests that are executed once, on the side that asks and on the side that is asked."""

from functools import partial

from onceonly_verify.mutants.artifacts import FIXED_NAMES, effects
from onceonly_verify.mutants.known_bad import blame, mutant, outbox, settlement
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

ASKED, ASKED_CRASHING, DELETED = (
    "asked by another service, late and duplicated",
    "asked by another service, and a crash",
    "asked by another service, and deleted before it is executed",
)
AWAY, AWAY_CRASHING, AWAY_FROM_TWO = (
    "a request, and the other service away at every step",
    "a request, a crash, and the other service away",
    "two responses in a batch, and the other service away at every step",
)
FAILING, ATTEMPTS, FOLLOWED = "a request, a failed call", "a request, two attempts", "a response, two attempts, a dedup store"
_BURIED = at.argument("RequestsWorld", 1)


execution = partial(change, "algorithms.remote_execution")
stored_requests = partial(change, "adapters.memory.remote_requests")
remote_call = partial(change, "algorithms.remote_call")
EXECUTION = {
    "callee checks request before response": mutant(
        (ASKED,),
        stored_requests(
            "MemoryRemoteRequests.open",
            do.insert_before("_transactions.open", "early = await self.perform('call-request', request, (opening.key,))"),
            do.add_argument("OpenMemoryRequest", "", "early"),
        ),
        stored_requests("OpenMemoryRequest.__init__", do.add_parameter("early"), do.insert_first("self._early = early")),
        stored_requests("OpenMemoryRequest.request", do.replace_body("return self._early")),
    ),
    "response deleted first": mutant((ASKED,), execution("bury", do.swap("requests.bury", "requests.remove"))),
    "POST answered before dispatch": mutant((ASKED,), execution("execute", do.drop(at.call("_dispatch", nth=-1)))),
    "a response given again with its messages undispatched": mutant(
        (ASKED_CRASHING,), execution("execute", do.drop(at.call("_dispatch", having="pending.find")))
    ),
    "no tombstone on DELETE": mutant((DELETED,), stored_requests("bury", do.keep_only(at.left(_BURIED), of=_BURIED))),
    "executed without a request": mutant(
        (ASKED,), execution("execute", do.drop(at.branch(at.condition(at.result_of("request")))))
    ),
    "request and tombstone in two writes": mutant(
        (DELETED,),
        stored_requests(
            "MemoryRemoteRequests.bury",
            do.insert_before(at.point("call-bury"), "await self.perform('call-bury', unput, (key,))"),
        ),
        stored_requests(
            "",
            do.define("""
def unput(world, key):
    return replace(world, requests=frozenset(e for e in world.requests if e[0] != key)), None
"""),
        ),
        stored_requests("bury", do.replace(at.argument("RequestsWorld", 0), "world.requests")),
    ),
}

CALLING = {
    "a service that is away counted as a failure": mutant(
        (AWAY, AWAY_FROM_TWO), blame("peer_away", do.replace(at.argument("Failure", "kind"), "FailureKind.COMMIT"))
    ),
    "the others of a batch left behind when a service is away": mutant(
        (AWAY_FROM_TWO,), blame("_without_peer", do.replace_answer("_run", "RunResult()"))
    ),
    "a committed request acknowledged while its service is away": mutant(
        (AWAY,),
        settlement(
            "_await_peers",
            do.insert_first("await ack([d for i in of.values() for d in i.deliveries], ports)\nreturn BatchReport()"),
        ),
    ),
    "the row of a request removed while its service is away": mutant(
        (AWAY_CRASHING,), effects("RegisteredEffects._delete", do.replace(at.returned(), "None"))
    ),
    "PUT OutcomeUnknown taken as success": mutant(
        (FAILING,),
        effects("", do.imports("onceonly.model.errors", "OutcomeUnknown")),
        effects("RegisteredEffects.create", do.swallow("create", "OutcomeUnknown")),
    ),
    "POST before the commit": mutant(
        (FAILING,),
        effects(
            "RegisteredEffects.create",
            do.insert_after(
                at.loop("artifacts"), "await self._remote.perform(record.requests)", record=at.each(at.loop("records"))
            ),
        ),
    ),
    "followed up before POST is answered": mutant(
        (ATTEMPTS, FAILING),
        outbox(
            "dispatch",
            do.insert_after(
                "transport.send", "called = await ports.effects.call(records)", called=at.result_of("effects.call")
            ),
            do.replace_answer(at.call("effects.call", nth=0), "{}"),
        ),
    ),
    "no answer to POST taken for one": mutant(
        (FAILING,),
        effects(
            "RegisteredEffects.call",
            do.replace_body("""
try:
    await perform(records, self._remote)
except Exception:
    pass
return dict.fromkeys((record.identity for record in records if record.requests), Answer.TAKEN)
"""),
        ),
    ),
    "requests under fixed names": mutant((ATTEMPTS,), FIXED_NAMES),
    "responses asked for after admission": mutant(
        (FOLLOWED,),
        outbox(
            "process",
            do.insert_after(
                "admission.admits",
                "if asking:\n    responses = await ports.effects.responses(asking)",
                asking=at.argument("effects.responses", 0),
                responses=at.result_of("effects.responses"),
            ),
        ),
    ),
    "response deleted before what follows it up is committed": mutant(
        (FAILING,),
        outbox(
            "process",
            do.insert_after(
                "effects.create",
                "await ports.effects.call([r for r in records if any(c.verb == 'DELETE' for c in r.requests)])",
                records=at.argument("effects.create", 0),
            ),
        ),
    ),
    "request and response left for ever": mutant((FAILING,), remote_call("delete_call", do.replace(at.returned(), "()"))),
}


TOKENS, TWO_THINGS = "tokens elsewhere, asked by another service, and a failed call", "asked by another service for two things"
DEADLINE, TWO_REQUESTS = "asked by another service at the deadline", "two requests in one batch, and a failed call"
TWO_KINDS, TWO_ARTIFACTS = "an artifact and a request, and a failed call", "two artifacts, and an early sweep"
TWO_EFFECTS = "asked by another service, two effects, and a failed call"

EXECUTIONS = {
    "tokens of an execution removed after OutcomeUnknown": mutant(
        (TOKENS,),
        execution(
            "execute",
            do.insert_first(
                "await ports.admission.discard(records)",
                inside=at.handler("BaseException"),
                records=at.result_of("admission.prepare"),
            ),
        ),
    ),
    "only the first effect of an execution stored": mutant(
        (TWO_EFFECTS,), execution("execute", do.replace(at.argument("Record", 1), "old[:1]"))
    ),
    "an earlier response not returned": mutant(
        (TWO_EFFECTS,), execution("execute", do.replace(at.returned(at.result_of("requests.open")), "None"))
    ),
    "one response for all requests": mutant(
        (TWO_THINGS,), stored_requests("MemoryRemoteRequests.open", do.replace(at.argument("replace", "key"), "RESPONSE"))
    ),
    "a request stored at its deadline": mutant((DEADLINE,), execution("keep", do.compare(at.comparison("now"), ">=", "now"))),
    "answers of calls given to other records": mutant(
        (TWO_REQUESTS,), remote_call("perform", do.replace(at.argument(at.call("iter", having="perform"), 0), "[*old][::-1]"))
    ),
    "only the first artifact created": mutant(
        (TWO_ARTIFACTS,), effects("RegisteredEffects.create", do.insert_after("create", "break"))
    ),
    "only the first artifact deleted": mutant(
        (TWO_ARTIFACTS,), effects("RegisteredEffects._delete", do.insert_after("delete", "break"))
    ),
    "only artifacts of the first kind deleted": mutant(
        (TWO_KINDS,), effects("RegisteredEffects._delete", do.insert_after(at.loop("names"), "break"))
    ),
}
