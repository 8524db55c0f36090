"""Broken versions of what makes artifacts, and of the register of attempts."""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

ATTEMPTS, CRASHED, OVERTAKEN = (
    "an artifact, two attempts",
    "an artifact, a crash and a failed call",
    "an artifact, and a sweeper that overtakes",
)
EARLY = "an artifact, and early sweeps"
REPEATED = "an artifact in a store with claims, and two failed calls"
FENCED = "an artifact, a fence for another message, and an early sweep"
LISTED_AGAIN = "an artifact, and two fences for other messages"
_EXPECTED = at.argument("_listing", 2)
_IS_CANCELLED = at.condition("_register.cancel")


effects = partial(change, "algorithms.effects")
register = partial(change, "documents.register")
FIXED_NAMES = effects(
    "RegisteredEffects.register",
    do.replace(
        at.argument("Reservation", "attempt"), "message.identity.id", message=at.root(at.argument("Reservation", "identity"))
    ),
)

ARTIFACTS = {
    "created before registered": mutant(
        (CRASHED,),
        effects("", do.imports("onceonly.model.artifact", "Artifact")),
        effects(
            "RegisteredEffects.register",
            do.insert_before(
                "_register.open",
                """
for row in rows:
    await self._things['blob'].create(Artifact(kind='blob', name=f'{row.attempt}/0', data=b'reserved'))
""",
                rows=at.argument("_register.open", 0),
            ),
        ),
        effects(
            "RegisteredEffects.create",
            do.insert_before(
                "create", "await self._artifacts[artifact.kind].delete(artifact.name)", artifact=at.argument("create", 0)
            ),
        ),
    ),
    "fixed names": mutant((ATTEMPTS,), FIXED_NAMES),
    "a row written before it is listed": mutant(
        (CRASHED,),
        register(
            "DocumentRegister.open",
            do.drop_argument("_store.edit", 2),
            do.insert_after("_store.edit", "await listing([Change(key=u, body=None) for u in {r.unit for r in rows}])"),
        ),
    ),
    "a listing removed while its row may be written": mutant(
        (OVERTAKEN,), register("DocumentRegister._cannot_be_written", do.replace(at.condition("seen"), "old or True"))
    ),
    "a listing read after the search for its row": mutant(
        (FENCED,),
        register(
            "DocumentRegister.cancel",
            do.insert_after("_store.edit", "listing = await self._entry(row.attempt)", listing=at.result_of("_entry", 0)),
        ),
    ),
    "the version of a row's first listing expected for ever": mutant(
        (LISTED_AGAIN,),
        register(
            "DocumentRegister.open",
            do.replace(
                _EXPECTED,
                "listed.setdefault(f'first of {row.attempt}', old) if old else old",
                listed=at.receiver(at.call("get", within=_EXPECTED)),
                row=at.argument("_listing", 0),
            ),
        ),
        needs_log=True,
    ),
    "cancel's answer not looked at": mutant(
        (OVERTAKEN,), effects("RegisteredEffects._clean", do.replace(_IS_CANCELLED, "old or True"))
    ),
    "sweeper without cancel": mutant(
        (OVERTAKEN,),
        effects("RegisteredEffects._clean", do.replace_statement(at.branch(_IS_CANCELLED), "await self._delete(row, {})")),
    ),
    "rows of other attempts removed at once": mutant(
        (CRASHED,),
        effects(
            "RegisteredEffects.clean",
            do.replace_statement(
                "_register.remove",
                "await self._delete(row, {})\nawait self._register.remove(row)",
                row=at.argument("_register.remove", 0),
            ),
        ),
    ),
    "the row of an attempt that has lost removed at once": mutant(
        (REPEATED,),
        effects(
            "RegisteredEffects.discard",
            do.insert_after("_delete", "await self._register.remove(row)", row=at.argument("_delete", 0)),
        ),
    ),
    "an attempt whose row was swept taken for committed": mutant(
        (EARLY,),
        effects(
            "RegisteredEffects.discard",
            do.replace_statement(
                "_register.cancel",
                "if not await self._register.cancel(row):\n    return",
                row=at.argument("_register.cancel", 0),
            ),
        ),
    ),
}
