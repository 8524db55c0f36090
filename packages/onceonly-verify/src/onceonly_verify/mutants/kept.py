"""Broken versions of what is kept in entities, and in a dedup store."""

from onceonly_verify.mutants.known_bad import Mutant, delivery, outbox
from onceonly_verify.programs import Patch

OTHER_BODY, OTHER_ENTITY = "a dedup store, another body", "a dedup store, another body about another entity"
HISTORY, DEDUP = "an entity and its history, two copies", "a dedup store, two copies"
DEDUP_LATE, SWEPT = "a dedup store, a lease that ends early", "tokens and a sweeper, a failed call"
RETIRE = "    await ports.admission.retire(finished)\n"
DISPATCHED = "    answers = await dispatch(owed, ports)\n"
BEGIN = "    unit = await ports.store.begin(messages, isolated=isolated)  # fences everything below\n"
ADMITS = "        told = await ports.admission.admits(asked)  # only now: an earlier answer may be stale\n"
_AFTER_FORGET = '    # Crash here, "after-forget"'
_FENCED = "        if (await self.documents.save([change]))[0] is None:\n"

FORGOTTEN_FIRST = (outbox(RETIRE, ""), outbox(_AFTER_FORGET, RETIRE.replace("finished", "records") + _AFTER_FORGET))
RETIRED_FIRST = (outbox(DISPATCHED, "    await ports.admission.retire(owed)\n" + DISPATCHED),)
ASKED_FIRST = (
    outbox(BEGIN, "    asked_before = await ports.admission.admits(messages)\n" + BEGIN),
    outbox(ADMITS, "        told = asked_before\n"),
)


def documents(old: str, new: str) -> Patch:
    """Change the store on documents."""
    return Patch("documents.store", old, new)


def memory_documents(old: str, new: str) -> Patch:
    """Change the documents themselves."""
    return Patch("adapters.memory.documents", old, new)


def admission(old: str, new: str) -> Patch:
    """Change the admissions."""
    return Patch("algorithms.admission", old, new)


def dedup(old: str, new: str) -> Patch:
    """Change the memory dedup store."""
    return Patch("adapters.memory.dedup", old, new)


ENTITIES: tuple[Mutant, ...] = (
    Mutant(
        "record deleted instead of emptied",
        (HISTORY,),
        (
            documents(
                "            if before.until <= now if before.until else self.history is None:\n"
                "                del records[name]\n",
                "            if True:\n                del records[name]\n",
            ),
        ),
    ),
    Mutant(
        "documents: no version check",
        (HISTORY,),
        (memory_documents("        if change.expected != now.version:\n", "        if False:\n"),),
    ),
    Mutant(
        "documents: version repeats with the content",
        (SWEPT,),
        (memory_documents("else str(self.count)\n", "else str(self.body)\n"),),
    ),
    Mutant(
        "documents: version repeats across delete",
        (SWEPT,),
        (
            documents(
                _FENCED,
                "        saved = (await self.documents.save([change]))[0]\n"
                "        if saved is not None and loaded is None:\n"
                "            await self.documents.save([Change(key=unit, body=None, expected=saved)])\n"
                "        if saved is None:\n",
            ),
        ),
    ),
    Mutant(
        "documents: early return without clean-up",
        (DEDUP,),
        (
            outbox(
                ADMITS,
                ADMITS + "        known = tuple(\n"
                "            r if r.identity in told.messages else replace(r, unit='entity/nowhere') for r in known\n"
                "        )\n",
            ),
        ),
    ),
    Mutant(
        "what is done elsewhere only acknowledged",
        (DEDUP_LATE,),
        (outbox("    await _forget_and_ack(dropped, deliveries, ports)\n", "    await ports.transport.ack(deliveries)\n"),),
    ),
    Mutant(
        "stale dedup store",
        (DEDUP,),
        (
            dedup(
                "    fingerprints: frozenset[tuple[bytes, bytes]] = frozenset()\n",
                "    fingerprints: frozenset[tuple[bytes, bytes]] = frozenset()\n    before: frozenset[bytes] = frozenset()\n",
            ),
            dedup(
                "    return DedupWorld(world.keys.union(keys), world.fingerprints | first), None\n",
                "    return DedupWorld(world.keys.union(keys), world.fingerprints | first, world.keys), None\n",
            ),
            dedup("for key in keys if key in world.keys)\n", "for key in keys if key in world.before)\n"),
        ),
    ),
    Mutant(
        "fingerprint not compared in the dedup store",
        (OTHER_BODY,),
        (admission("if body and body != by_key[key].fingerprint),\n", "if False),\n"),),
    ),
    Mutant(
        "fingerprint not stored in the dedup store",
        (OTHER_BODY,),
        (
            admission(
                "            await self._done.add(list(keys.values()), bodies)\n",
                "            await self._done.add(list(keys.values()))\n",
            ),
        ),
    ),
    Mutant(
        "fingerprint of an owed record lost",
        (OTHER_BODY,),
        (outbox("(replace(record, fingerprint=bodies[record.identity]) for", "(replace(record, fingerprint=b'') for"),),
    ),
    Mutant(
        "another body given up without a fence",
        (OTHER_ENTITY,),
        (delivery("gives_up=item.message) for item in elsewhere", "gives_up=None) for item in elsewhere"),),
    ),
    Mutant(
        "what is owed not sent where another body is marked",
        (OTHER_ENTITY,),
        (
            outbox(
                "told.messages | told.clashing.intersection(record.identity for record in known)  # committed: it is sent\n",
                "told.messages\n",
            ),
        ),
    ),
    Mutant("record removed before ADD", (DEDUP,), FORGOTTEN_FIRST),
    Mutant("ADD before dispatch", (DEDUP,), RETIRED_FIRST),
    Mutant("dedup store asked before load", (DEDUP_LATE,), ASKED_FIRST),
)
