"""Broken versions of executions with tokens, of their responses, and of attempts that make two things."""

from onceonly_verify.mutants.artifacts import effects
from onceonly_verify.mutants.known_bad import Mutant
from onceonly_verify.mutants.requests import execution, remote_call, stored_requests
from onceonly_verify.mutations.operations import compare, insert_after, insert_first, replace
from onceonly_verify.mutations.places import argument, call, comparison, handler, loop, result_of, returned

TOKENS, TWO_THINGS = "tokens elsewhere, asked by another service, and a failed call", "asked by another service for two things"
DEADLINE, TWO_REQUESTS = "asked by another service at the deadline", "two requests in one batch, and a failed call"
TWO_KINDS, TWO_ARTIFACTS = "an artifact and a request, and a failed call", "two artifacts, and an early sweep"
TWO_EFFECTS = "asked by another service, two effects, and a failed call"

EXECUTIONS: tuple[Mutant, ...] = (
    Mutant(
        "tokens of an execution removed after OutcomeUnknown",
        (TOKENS,),
        (
            execution(
                "execute",
                insert_first(
                    "await ports.admission.discard(records)",
                    inside=handler("BaseException"),
                    records=result_of("admission.prepare"),
                ),
            ),
        ),
    ),
    Mutant(
        "only the first effect of an execution stored",
        (TWO_EFFECTS,),
        (execution("execute", replace(argument("Record", 1), "old[:1]")),),
    ),
    Mutant(
        "an earlier response not returned",
        (TWO_EFFECTS,),
        (execution("execute", replace(returned(result_of("requests.open")), "None")),),
    ),
    Mutant(
        "one response for all requests",
        (TWO_THINGS,),
        (stored_requests("MemoryRemoteRequests.open", replace(argument("replace", "key"), "RESPONSE")),),
    ),
    Mutant("a request stored at its deadline", (DEADLINE,), (execution("keep", compare(comparison("now"), ">=", "now")),)),
    Mutant(
        "answers of calls given to other records",
        (TWO_REQUESTS,),
        (remote_call("perform", replace(argument(call("iter", having="perform"), 0), "[*old][::-1]")),),
    ),
    Mutant(
        "only the first artifact created",
        (TWO_ARTIFACTS,),
        (effects("RegisteredEffects.create", insert_after("create", "break")),),
    ),
    Mutant(
        "only the first artifact deleted",
        (TWO_ARTIFACTS,),
        (effects("RegisteredEffects._delete", insert_after("delete", "break")),),
    ),
    Mutant(
        "only artifacts of the first kind deleted",
        (TWO_KINDS,),
        (effects("RegisteredEffects._delete", insert_after(loop("names"), "break")),),
    ),
)
