"""Broken versions of clients' transactions, of their control messages, and of the documents they are kept in."""

from onceonly_verify.mutants.known_bad import Mutant, relay
from onceonly_verify.programs import Patch

RELAYED, REUSED = "a relay, and two attempts with one key", "one key, two requests"
UNSHAKEN = "a control message, two workers"
CONTROL, KEYED = "a control message", "a control message, and a client's key"
WITHOUT, BOTH = "a control message, and a key without an entity", "a control message, and two attempts with one key"
ELSEWHERE, THREE = "one key, two entities", "one key, three attempts on two entities"

_DISPATCH = "    answers = await dispatch(records, ports)\n"
_ANNOUNCE = (
    "        if records and ways.controls and ways.transport:\n"
    "            await announce(opening, opened.unit, ways.controls, ways.transport)\n"
)
_CONFLICT = "    except Conflict as lost:\n        opened.abandon()\n"
_COMMITTED = (
    '    # Crash here, "after-commit": 1 committed, 2 nothing sent, 3 a relay finds it, or the control message leads to it'
)
_KEPT = "    kept = await controls.attempts.kept(control.key, control.endpoint) if control.key else None\n"
_RECORD = "    record = await controls.attempts.record(control.identity, control.unit)\n"
_BURY = "    await controls.attempts.bury(control.identity, control.unit)\n"
_ENDED = '            raise Conflict("this attempt has ended already")\n'
_BURIED = "        await self.save(unit, self.store.trimmed(replace(document, records=records)), version)\n"
_SAVED = "            await transactions.save(self.unit, after, version)\n"
_FENCE = "        await self.save(leads_to, document, version)\n        return True\n"
_BOUND = "                bound = replace(document, leads_to=unit)\n"


def transaction(old: str, new: str) -> Patch:
    """Change the page of transactions."""
    return Patch("algorithms.transaction", old, new)


def control(old: str, new: str) -> Patch:
    """Change the page of control messages."""
    return Patch("algorithms.control", old, new)


def documents(old: str, new: str) -> Patch:
    """Change transactions on documents."""
    return Patch("documents.transactions", old, new)


TRANSACTIONS: tuple[Mutant, ...] = (
    Mutant(
        "control message after commit",
        (CONTROL,),
        (
            transaction(_ANNOUNCE, ""),
            transaction(_COMMITTED, _ANNOUNCE.replace("        ", "    ", 1).replace("            ", "        ") + _COMMITTED),
        ),
    ),
    Mutant("no tombstone", (CONTROL,), (control(_BURY, ""),)),
    Mutant("tombstone as upsert", (CONTROL,), (documents(_ENDED, "            pass\n"),)),
    Mutant(
        "tombstone on the client's key",
        (KEYED,),
        (
            control(_BURY, _BURY.replace("control.unit)", "control.unit, key=control.key)")),
            documents(
                "    async def bury(self, identity: Identity, unit: str) -> None:\n",
                "    async def bury(self, identity: Identity, unit: str, key: str = '') -> None:\n",
            ),
            documents(
                _BURIED,
                "        taken = ClientKey.of(Kept(identity.id, b''), until=tombstone.until)\n"
                "        await self.save(unit, replace(document, keys={**document.keys, self.name_of(key): taken}), version)\n",
            ),
        ),
    ),
    Mutant(
        "found tombstone not acked",
        (UNSHAKEN,),
        (control("    if record is not None or kept is not None:\n", "    if kept is not None:\n"),),
    ),
    Mutant("record read before key", (KEYED,), (control(_KEPT + _RECORD, _RECORD + _KEPT),)),
    Mutant(
        "fingerprint compared only once",
        (REUSED,),
        (transaction("    return _checked(opening, kept)\n", "    return kept\n"),),
    ),
    Mutant(
        "fingerprint not compared at the beginning",
        (REUSED,),
        (
            transaction(
                "    return _checked(opening, opened) if isinstance(opened, Kept) else opened\n",
                "    return opened\n",
            ),
        ),
    ),
    Mutant(
        "answer stored after commit",
        (BOTH,),
        (
            documents(
                _SAVED,
                "            await transactions.save(self.unit, self._changed(document, record, None), version)\n"
                "            document, version = await transactions.load(self.unit)\n"
                "            name = transactions.name_of(opening.key)\n"
                "            keys = {**document.keys, name: after.keys[name]}\n"
                "            await transactions.save(self.unit, replace(document, keys=keys), version)\n",
            ),
        ),
    ),
    Mutant(
        "dispatch after Unknown commit",
        (CONTROL,),
        (transaction(_CONFLICT, "    except Unknown:\n        pass\n" + _CONFLICT),),
    ),
    Mutant(
        "unanswered commit called Failed",
        (CONTROL, RELAYED),
        (
            transaction(
                "        await opened.commit(next(iter(records), None), decided.answer)\n",
                "        with before_commit():\n            await opened.commit(next(iter(records), None), decided.answer)\n",
            ),
        ),
    ),
    Mutant(
        "done before dispatch",
        (CONTROL,),
        (relay(_DISPATCH, "    await ports.store.forget(records)\n" + _DISPATCH),),
    ),
    Mutant(
        "record in a second transaction",
        (CONTROL,),
        (
            documents(
                _SAVED,
                "            await transactions.save(self.unit, self._changed(document, None, answer), version)\n"
                "            document, version = await transactions.load(self.unit)\n"
                "            records = {**document.records, **after.records}\n"
                "            await transactions.save(self.unit, replace(document, records=records), version)\n",
            ),
        ),
    ),
    Mutant(
        "tombstone evicted before the deadline",
        (WITHOUT,),
        (
            documents(
                _BURIED,
                _BURIED + "        left, version = await self.load(unit)\n"
                "        records = {other: each for other, each in left.records.items() if other != name}\n"
                "        await self.save(unit, replace(left, records=records), version)\n",
            ),
        ),
    ),
    Mutant(
        "commit whose tombstone nobody looks for",
        (WITHOUT,),
        (documents("        if attempt_name(opening.identity) in document.records:\n", "        if False:\n"),),
    ),
    Mutant(
        "refused control message taken for sent",
        (CONTROL,),
        (control("    if answer is not Answer.TAKEN:\n", "    if answer is Answer.UNKNOWN:\n"),),
    ),
    Mutant("key led elsewhere without a fence", (ELSEWHERE,), (documents(_FENCE, "        return True\n"),)),
    Mutant(
        "key led elsewhere without a look",
        (ELSEWHERE,),
        (documents("        if self.name_of(key) in document.keys:\n            return False\n", ""),),
    ),
    Mutant(
        "key bound without a write",
        (THREE,),
        (
            documents(
                _BOUND, "                if document.leads_to == unit:\n                    return document, version\n" + _BOUND
            ),
        ),
    ),
    Mutant(
        "key bound after the commit",
        (ELSEWHERE,),
        (
            documents("            own = await transactions.bind(opening.key, self.unit)\n", "            own = None\n"),
            documents(
                _SAVED,
                _SAVED + "            if opening.key:\n                await transactions.bind(opening.key, self.unit)\n",
            ),
        ),
    ),
)
