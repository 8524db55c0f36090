"""Broken ports: stores and transports that do not keep their contracts."""

from onceonly_verify.mutants.known_bad import COPIES, CRASHING, ONE, OPTIMISTIC, UNSTEADY, Mutant, store
from onceonly_verify.programs import Patch

_STORE_COMMIT = '        await self._perform("commit", commit, (token, changes, self._clock.now()))\n'
_CONFLICT = "    if {identity for identity, _ in kept} & {identity for identity, _ in world.claims}:\n"
_BEFORE_ABANDON = "def abandon(world: StoreWorld, token: Hashable) -> Step:\n"
_NO_CONFLICT = store(_CONFLICT, "    if False:\n")

TWO_COMMITS = (
    store(
        _STORE_COMMIT,
        "        bare = tuple(Record(record.identity) for record in changes.records)\n"
        + _STORE_COMMIT.replace("(token, changes,", "(token, replace(changes, records=bare),")
        + '        await self._perform("record", _add_records, (changes.records,))\n',
    ),
    store(
        _BEFORE_ABANDON,
        "def _add_records(world, records):\n"
        "    return replace(world, records=world.records + tuple(Stored(record, 0) for record in records)), None\n\n\n"
        + _BEFORE_ABANDON,
    ),
)

ADAPTERS: tuple[Mutant, ...] = (
    Mutant(
        "check before load",
        (COPIES,),
        (
            store(
                '        found = await self._perform("begin", begin, (tuple(messages), token, self._blocking))\n',
                '        found = await self._perform("look", _look_only, (tuple(messages), token))\n'
                '        await self._perform("begin", begin, (tuple(messages), token, self._blocking))\n',
            ),
            store(
                _BEFORE_ABANDON,
                "def _look_only(world, messages, token):\n    return world, begin(world, messages, token, False)[1]\n\n\n"
                + _BEFORE_ABANDON,
            ),
        ),
    ),
    Mutant(
        "claim of a failed or postponed handler committed",
        (UNSTEADY,),
        (store("kept = frozenset(claim for claim in unit.claims if claim[0] in handled)", "kept = frozenset(unit.claims)"),),
    ),
    Mutant("no version check", (OPTIMISTIC,), (_NO_CONFLICT,)),
    Mutant(
        "none on first insert",
        (OPTIMISTIC,),
        (store(_CONFLICT, _CONFLICT.replace("    if {", "    if len(world.claims) > 1 and {")),),
    ),
    Mutant("state and record in two commits", (ONE, COPIES), TWO_COMMITS),
    Mutant(
        "claim in another transaction",
        (ONE, COPIES),
        (
            store(
                "    return replace(world, open=(*world.open, unit)), found\n",
                "    return replace(world, open=(*world.open, unit), claims=world.claims | frozenset(unit.claims)), found\n",
            ),
            _NO_CONFLICT,
        ),
    ),
    Mutant(
        "overwrite with the fresh version on conflict",
        (OPTIMISTIC,),
        (
            store(
                '        return closed, Raises(Conflict, "another unit committed a claim of this one first")\n',
                "        kept = frozenset()\n",
            ),
        ),
    ),
    Mutant(
        "Unknown retried in place",
        (COPIES,),
        (
            store("import CommitRefused, Conflict, Failed", "import CommitRefused, Conflict, Failed, Unknown"),
            store(
                _STORE_COMMIT,
                "        try:\n    "
                + _STORE_COMMIT
                + "        except Unknown:\n"
                + '            await self._perform("again", _write_again, (changes,))\n',
            ),
            store(
                _BEFORE_ABANDON,
                "def _write_again(world, changes):\n"
                "    stored = tuple(Stored(record, 0) for record in changes.records)\n"
                "    return replace(world, records=world.records + stored, notes=world.notes + changes.notes), None\n\n\n"
                + _BEFORE_ABANDON,
            ),
        ),
    ),
    Mutant(
        "multi-ack past an unfinished delivery",
        (CRASHING,),
        (
            Patch(
                "adapters.memory.transport",
                "    gone = _settled(world, receipts, rules)\n",
                "    last = max((receipt.number for receipt in receipts), default=0)\n"
                "    gone = {entry.number for entry in world.entries if entry.held_until and entry.number <= last}\n",
            ),
        ),
    ),
    Mutant(
        "a failed pass's effects kept",
        (UNSTEADY,),
        (store("            if self._isolated:\n", "            if False:\n"),),
    ),
    Mutant(
        "a failed handler undoes the rows of the others",
        (UNSTEADY,),
        (store("        del self._rows[length:]\n", "        self._rows.clear()\n"),),
    ),
)
