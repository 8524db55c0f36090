"""Broken versions of what makes things, and of the register of attempts."""

from onceonly_verify.mutants.known_bad import Mutant
from onceonly_verify.programs import Patch

ATTEMPTS, CRASHED, OVERTAKEN = (
    "a thing, two attempts",
    "a thing, a crash and a failed call",
    "a thing, and a sweeper that overtakes",
)
EARLY = "a thing, and early sweeps"
_CLEANED = "        if await self._register.cancel(row):\n"
_OPEN = "        await self._register.open(rows)\n"
_DISCARDED = "                await self._register.cancel(row)\n"
_CREATE = "                await self._things[thing.kind].create(thing)\n"


def effects(old: str, new: str) -> Patch:
    """Change the effects."""
    return Patch("algorithms.effects", old, new)


def register(old: str, new: str) -> Patch:
    """Change the register of documents."""
    return Patch("documents.register", old, new)


THINGS: tuple[Mutant, ...] = (
    Mutant(
        "created before registered",
        (CRASHED,),
        (
            effects("import Row\n", "import Row, Thing\n"),
            effects(
                _OPEN,
                "        for row in rows:\n"
                "            await self._things['blob'].create(Thing(kind='blob', name=f'{row.attempt}/0', data=b'reserved'))\n"
                + _OPEN,
            ),
            effects(_CREATE, "                await self._things[thing.kind].delete(thing.name)\n" + _CREATE),
        ),
    ),
    Mutant(
        "fixed names",
        (ATTEMPTS,),
        (effects("attempt=self._ids.fresh(), at=now)", "attempt=message.identity.id, at=now)"),),
    ),
    Mutant(
        "a row written before it is listed",
        (CRASHED,),
        (
            register(
                "opened, listing)\n",
                "opened)\n        await listing([Change(key=u, body=None) for u in {r.unit for r in rows}])\n",
            ),
        ),
    ),
    Mutant(
        "a listing removed while its row may be written",
        (OVERTAKEN,),
        (register(".seen != version:", ".seen != version or True:"),),
    ),
    Mutant("cancel's answer not looked at", (OVERTAKEN,), (effects(_CLEANED, _CLEANED.replace(":\n", " or True:\n")),)),
    Mutant(
        "sweeper without cancel",
        (OVERTAKEN,),
        (
            effects(
                _CLEANED + "            await self._unmake(row)\n            await self._register.remove(row)\n",
                "        await self._unmake(row)\n",
            ),
        ),
    ),
    Mutant(
        "rows of other attempts removed at once",
        (CRASHED,),
        (
            effects(
                "(self._register.remove(row) if row.attempt in own else self._unmake(row))  # its own made nothing\n",
                "self._unmake(row)\n                    await self._register.remove(row)\n",
            ),
        ),
    ),
    Mutant(
        "an attempt whose row was swept taken for committed",
        (EARLY,),
        (
            effects(
                _DISCARDED + "                await self._unmake(row)\n",
                f"                if not {_DISCARDED.strip()}:\n                    return\n"
                "                await self._unmake(row)\n",
            ),
        ),
    ),
)
