"""Broken versions of calls to services that are not ours."""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

TWICE, CRASHING, FORGETS = (
    "a call of a third party, two attempts",
    "a call of a third party, two copies, and a crash",
    "time, a call of a third party that forgets keys",
)
ASKED, AWAY = (
    "time, a call of a third party that forgets keys and can be asked",
    "two calls of a third party in a batch, which is away at every step",
)

third_party = partial(change, "algorithms.third_party")

THIRD_PARTY = {
    "a new idempotency key for each attempt": mutant(
        (TWICE, CRASHING),
        third_party("", do.imports("msgspec.structs", "replace")),
        third_party(
            "CallingEffects._execute",
            do.insert_after(
                at.call("_read"), "call = replace(call, key=str(self._services.driver.token()))", call=at.result_of("_read")
            ),
        ),
    ),
    "a request repeated after its key was forgotten": mutant(
        (FORGETS,), third_party("_is_over", do.replace(at.returned(), "False"))
    ),
    "what was executed sent again after its key was forgotten": mutant(
        (ASKED,), third_party("CallingEffects._execute", do.always(at.condition(at.result_of("_services.find"))))
    ),
    "responses of calls given to other messages": mutant(
        (AWAY,), third_party("CallingEffects._execute", do.replace(at.argument("zip", 1), "[*old][::-1]"))
    ),
    "no answer taken for a response": mutant(
        (AWAY,),
        third_party("", do.imports("onceonly.model.remote", "Response")),
        third_party(
            "CallingEffects._execute",
            do.insert_after(
                "_services.execute",
                "responses = [e if isinstance(e, Response) else Response() for e in responses]",
                responses=at.result_of("_services.execute"),
            ),
        ),
    ),
}
