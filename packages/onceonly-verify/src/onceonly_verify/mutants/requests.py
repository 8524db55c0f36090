"""Broken versions of requests that are executed once, on the side that asks and on the side that is asked."""

from onceonly_verify.mutants.artifacts import FIXED_NAMES, effects
from onceonly_verify.mutants.known_bad import Mutant, delivery, outbox
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import (
    add_argument,
    add_parameter,
    define,
    drop,
    imports,
    insert_after,
    insert_before,
    insert_first,
    keep_only,
    never,
    replace,
    replace_answer,
    replace_body,
    swallow,
    swap,
)
from onceonly_verify.mutations.places import (
    argument,
    branch,
    call,
    condition,
    each,
    left,
    loop,
    point,
    result_of,
    returned,
)

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
_BURIED = argument("RequestsWorld", 1)


def execution(function: str, *operations: EditOperation) -> CodeChange:
    """Change what executes requests."""
    return change("algorithms.remote_execution", function, *operations)


def stored_requests(function: str, *operations: EditOperation) -> CodeChange:
    """Change where requests are kept."""
    return change("adapters.memory.remote_requests", function, *operations)


def remote_call(function: str, *operations: EditOperation) -> CodeChange:
    """Change the calls of other services."""
    return change("algorithms.remote_call", function, *operations)


EXECUTION: tuple[Mutant, ...] = (
    Mutant(
        "callee checks request before response",
        (ASKED,),
        (
            stored_requests(
                "MemoryRemoteRequests.open",
                insert_before("_transactions.open", "early = await self.perform('call-request', request, (opening.key,))"),
                add_argument("OpenMemoryRequest", "", "early"),
            ),
            stored_requests("OpenMemoryRequest.__init__", add_parameter("early"), insert_first("self._early = early")),
            stored_requests("OpenMemoryRequest.request", replace_body("return self._early")),
        ),
    ),
    Mutant("response deleted first", (ASKED,), (execution("bury", swap("requests.bury", "requests.remove")),)),
    Mutant("POST answered before dispatch", (ASKED,), (execution("execute", drop(call("_dispatch", nth=-1))),)),
    Mutant(
        "a response given again with its messages undispatched",
        (ASKED_CRASHING,),
        (execution("execute", drop(call("_dispatch", having="pending.find"))),),
    ),
    Mutant("no tombstone on DELETE", (DELETED,), (stored_requests("bury", keep_only(left(_BURIED), of=_BURIED)),)),
    Mutant("executed without a request", (ASKED,), (execution("execute", drop(branch(condition(result_of("request"))))),)),
    Mutant(
        "request and tombstone in two writes",
        (DELETED,),
        (
            stored_requests(
                "MemoryRemoteRequests.bury", insert_before(point("call-bury"), "await self.perform('call-bury', unput, (key,))")
            ),
            stored_requests(
                "",
                define("""
def unput(world, key):
    return replace(world, requests=frozenset(e for e in world.requests if e[0] != key)), None
"""),
            ),
            stored_requests("bury", replace(argument("RequestsWorld", 0), "world.requests")),
        ),
    ),
)

CALLING: tuple[Mutant, ...] = (
    Mutant(
        "a service that is away counted as a failure",
        (AWAY, AWAY_FROM_TWO),
        (delivery("_away", replace(argument("Failure", "kind"), "FailureKind.COMMIT")),),
    ),
    Mutant(
        "the others of a batch left behind when a service is away",
        (AWAY_FROM_TWO,),
        (delivery("_without_peer", replace_answer("_run", "RunResult()")),),
    ),
    Mutant(
        "a committed request acknowledged while its service is away",
        (AWAY,),
        (
            delivery(
                "_await_peers",
                insert_first("await _ack([d for i in of.values() for d in i.deliveries], ports)\nreturn BatchReport()"),
            ),
        ),
    ),
    Mutant(
        "the row of a request removed while its service is away",
        (AWAY_CRASHING,),
        (effects("RegisteredEffects._delete", replace(returned(), "None")),),
    ),
    Mutant(
        "PUT OutcomeUnknown taken as success",
        (FAILING,),
        (
            effects("", imports("onceonly.model.errors", "OutcomeUnknown")),
            effects("RegisteredEffects.create", swallow("create", "OutcomeUnknown")),
        ),
    ),
    Mutant(
        "POST before the commit",
        (FAILING,),
        (
            effects(
                "RegisteredEffects.create",
                insert_after(loop("artifacts"), "await self._remote.perform(record.requests)", record=each(loop("records"))),
            ),
        ),
    ),
    Mutant(
        "followed up before POST is answered",
        (ATTEMPTS, FAILING),
        (
            outbox(
                "dispatch",
                insert_after("transport.send", "called = await ports.effects.call(records)", called=result_of("effects.call")),
                replace_answer(call("effects.call", nth=0), "{}"),
            ),
        ),
    ),
    Mutant(
        "no answer to POST taken for one",
        (FAILING,),
        (
            effects(
                "RegisteredEffects.call",
                replace_body("""
try:
    await perform(records, self._remote)
except Exception:
    pass
return dict.fromkeys((record.identity for record in records if record.requests), Answer.TAKEN)
"""),
            ),
        ),
    ),
    Mutant("requests under fixed names", (ATTEMPTS,), (FIXED_NAMES,)),
    Mutant(
        "a response that is not there taken for lost at once",
        (FOLLOWED,),
        (remote_call("gone", never(condition("admission.admits"))),),
    ),
    Mutant(
        "response deleted before what follows it up is committed",
        (FAILING,),
        (
            outbox(
                "process",
                insert_after(
                    "effects.create",
                    "await ports.effects.call([r for r in records if any(c.verb == 'DELETE' for c in r.requests)])",
                    records=argument("effects.create", 0),
                ),
            ),
        ),
    ),
    Mutant("request and response left for ever", (FAILING,), (remote_call("forgetting", replace(returned(), "()")),)),
)
