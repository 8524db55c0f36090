"""Broken versions of how messages are given up that can never be handled."""

from onceonly_verify.mutants.artifacts import effects
from onceonly_verify.mutants.known_bad import Mutant
from onceonly_verify.mutants.requests import remote_call
from onceonly_verify.mutations import change
from onceonly_verify.mutations.operations import always, insert_first, never
from onceonly_verify.mutations.places import condition, handler

HOPELESS: tuple[Mutant, ...] = (
    Mutant(
        name="a follow-up message without peers is handled",
        changes=(effects("NoArtifacts.response", never(condition("requested"))),),
        checks=("a message that follows up a request, and an endpoint without peers",),
    ),
    Mutant(
        name="a lost response is waited for",
        changes=(remote_call("gone", always(condition("admission.admits"))),),
        checks=("a message whose response is lost",),
    ),
    Mutant(
        name="a refused fence counts as a failed one",
        changes=(change("algorithms.delivery", "_is_committed", insert_first("raise", inside=handler("CommitRefused"))),),
        checks=("a message about an entity that no document can have",),
    ),
    Mutant(
        name="an artifact under the name of another attempt",
        changes=(effects("RegisteredEffects.create", never(condition("startswith"))),),
        checks=("a handler that names an artifact of another attempt",),
    ),
)
