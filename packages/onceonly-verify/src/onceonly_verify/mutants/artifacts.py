"""Broken versions of what makes artifacts, and of the register of attempts."""

from onceonly_verify.mutants.known_bad import Mutant
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import (
    drop_argument,
    imports,
    insert_after,
    insert_before,
    replace,
    replace_statement,
)
from onceonly_verify.mutations.places import argument, branch, call, condition, receiver, result_of, root

ATTEMPTS, CRASHED, OVERTAKEN = (
    "an artifact, two attempts",
    "an artifact, a crash and a failed call",
    "an artifact, and a sweeper that overtakes",
)
EARLY = "an artifact, and early sweeps"
REPEATED = "an artifact in a store with claims, and two failed calls"
FENCED = "an artifact, a fence for another message, and an early sweep"
LISTED_AGAIN = "an artifact, and two fences for other messages"
_EXPECTED = argument("_listing", 2)
_IS_CANCELLED = condition("_register.cancel")


def effects(function: str, *operations: EditOperation) -> CodeChange:
    """Change the effects."""
    return change("algorithms.effects", function, *operations)


def register(function: str, *operations: EditOperation) -> CodeChange:
    """Change the register of documents."""
    return change("documents.register", function, *operations)


FIXED_NAMES = effects(
    "RegisteredEffects.register",
    replace(argument("Reservation", "attempt"), "message.identity.id", message=root(argument("Reservation", "identity"))),
)

ARTIFACTS: tuple[Mutant, ...] = (
    Mutant(
        "created before registered",
        (CRASHED,),
        (
            effects("", imports("onceonly.model.artifact", "Artifact")),
            effects(
                "RegisteredEffects.register",
                insert_before(
                    "_register.open",
                    """
for row in rows:
    await self._things['blob'].create(Artifact(kind='blob', name=f'{row.attempt}/0', data=b'reserved'))
""",
                    rows=argument("_register.open", 0),
                ),
            ),
            effects(
                "RegisteredEffects.create",
                insert_before(
                    "create", "await self._artifacts[artifact.kind].delete(artifact.name)", artifact=argument("create", 0)
                ),
            ),
        ),
    ),
    Mutant("fixed names", (ATTEMPTS,), (FIXED_NAMES,)),
    Mutant(
        "a row written before it is listed",
        (CRASHED,),
        (
            register(
                "DocumentRegister.open",
                drop_argument("_store.edit", 2),
                insert_after("_store.edit", "await listing([Change(key=u, body=None) for u in {r.unit for r in rows}])"),
            ),
        ),
    ),
    Mutant(
        "a listing removed while its row may be written",
        (OVERTAKEN,),
        (register("DocumentRegister._will_not_come", replace(condition("seen"), "old or True")),),
    ),
    Mutant(
        "a listing read after the search for its row",
        (FENCED,),
        (
            register(
                "DocumentRegister.cancel",
                insert_after("_store.edit", "listing = await self._entry(row.attempt)", listing=result_of("_entry", 0)),
            ),
        ),
    ),
    Mutant(
        "the version of a row's first listing expected for ever",
        (LISTED_AGAIN,),
        (
            register(
                "DocumentRegister.open",
                replace(
                    _EXPECTED,
                    "listed.setdefault(f'first of {row.attempt}', old) if old else old",
                    listed=receiver(call("get", within=_EXPECTED)),
                    row=argument("_listing", 0),
                ),
            ),
        ),
        needs_log=True,
    ),
    Mutant(
        "cancel's answer not looked at",
        (OVERTAKEN,),
        (effects("RegisteredEffects._clean", replace(_IS_CANCELLED, "old or True")),),
    ),
    Mutant(
        "sweeper without cancel",
        (OVERTAKEN,),
        (effects("RegisteredEffects._clean", replace_statement(branch(_IS_CANCELLED), "await self._delete(row, {})")),),
    ),
    Mutant(
        "rows of other attempts removed at once",
        (CRASHED,),
        (
            effects(
                "RegisteredEffects.clean",
                replace_statement(
                    "_register.remove",
                    "await self._delete(row, {})\nawait self._register.remove(row)",
                    row=argument("_register.remove", 0),
                ),
            ),
        ),
    ),
    Mutant(
        "the row of an attempt that has lost removed at once",
        (REPEATED,),
        (
            effects(
                "RegisteredEffects.discard",
                insert_after("_delete", "await self._register.remove(row)", row=argument("_delete", 0)),
            ),
        ),
    ),
    Mutant(
        "an attempt whose row was swept taken for committed",
        (EARLY,),
        (
            effects(
                "RegisteredEffects.discard",
                replace_statement(
                    "_register.cancel",
                    "if not await self._register.cancel(row):\n    return",
                    row=argument("_register.cancel", 0),
                ),
            ),
        ),
    ),
)
