"""Broken versions of tokens: in a store of their own, and in the database of the business data."""

from onceonly_verify.mutants.kept import ASKED_FIRST, DISPATCHED, FORGOTTEN_FIRST, RETIRED_FIRST, SWEPT, documents
from onceonly_verify.mutants.known_bad import Mutant, outbox, relay, store
from onceonly_verify.programs import Patch

AHEAD = "tokens elsewhere, a relay, and a sweeper whose clock is ahead"
ASKED = "tokens elsewhere, asked by another service, and an early sweep"
KEY_ALONE = "tokens, a control message, a key without an entity, and an early sweep"
TWO, LATE = "tokens, two copies", "tokens, a lease that ends early"
LATE_FAILING, CHAIN = "tokens, a lease that ends early, and a failed call", "a chain with tokens, a crash and a failed call"
SAME, SAME_RELAYED = "tokens in the same database, one message", "tokens in the same database, and a relay"
_ACTIVATE = "    await ports.admission.activate(owed)\n"
_PREPARED = (
    "        owners = {token: Owner(self._endpoint, each.unit, each.identity) for each in minted for token in each.minted}\n"
    "        if owners:\n"
    "            await self._tokens.prepare(owners)\n"
)
_COMMIT = "            await _commit(unit, records)\n"
_BEGIN = '        found = await self._perform("begin", begin, (tuple(messages), token, self._endpoint))\n'


def admission(old: str, new: str) -> Patch:
    """Change the admissions."""
    return Patch("algorithms.admission", old, new)


def database(old: str, new: str) -> Patch:
    """Change the memory database."""
    return Patch("adapters.memory.database", old, new)


TOKENS: tuple[Mutant, ...] = (
    Mutant(
        "no confirmation in the commit",
        (TWO,),
        (
            documents(
                "        return Kept.of(fingerprint, record)\n",
                "        return Kept.of(fingerprint, replace(record, minted=()))\n",
            ),
        ),
    ),
    Mutant(
        "deterministic token ids",
        (TWO,),
        (admission("        id_ = ids.fresh()\n", "        id_ = f'{record.identity.id} {len(effects)}'\n"),),
    ),
    Mutant("own token removed before dispatch", (TWO,), RETIRED_FIRST),
    Mutant("token check before load", (LATE,), ASKED_FIRST),
    Mutant("record removed before token", (TWO,), FORGOTTEN_FIRST),
    Mutant("dispatch before tokens exist", (CHAIN,), (outbox(_ACTIVATE, ""), outbox(DISPATCHED, DISPATCHED + _ACTIVATE))),
    Mutant(
        "tokens confirmed before created",
        (TWO,),
        (
            admission(
                _PREPARED + "        return minted\n",
                "        return minted\n\n    async def create(self, minted):\n" + _PREPARED,
            ),
            outbox(_COMMIT, _COMMIT + "            await ports.admission.create(records)\n"),
        ),
    ),
    Mutant(
        "Unknown at confirmation treated as failure, with tokens removed",
        (LATE_FAILING,),
        (
            outbox(
                "    except BaseException:\n        unit.abandon()  #",
                "    except BaseException:\n        await ports.admission.discard(records)\n        unit.abandon()  #",
            ),
        ),
    ),
    Mutant(
        "unfenced sweeper",
        (SWEPT,),
        (documents("        if (await self.documents.save([change]))[0] is None:\n", "        if change is None:\n"),),
    ),
    Mutant(
        "sweeper does not fence a transaction",
        (AHEAD,),
        (store("        if longest_commit(unit) is not None:\n", "        if False:\n"),),
    ),
    Mutant(
        "a fenced transaction is committed all the same",
        (AHEAD,),
        (
            Patch(
                "adapters.memory.transactions",
                "    if any(record.identity in world.buried for record in final.changes.records):\n",
                "    if False:\n",
            ),
        ),
    ),
    Mutant(
        "sweeper does not fence an execution",
        (ASKED,),
        (Patch("algorithms.remote_execution", "unit=attempt_unit(opening.max_commit)", "unit=''"),),
    ),
    Mutant(
        "a key's document fenced by its version alone",
        (KEY_ALONE,),
        (documents("        if unit.startswith((KEY, ATTEMPT)):\n", "        if False:\n"),),
    ),
    Mutant(
        "unconditional activation",
        (CHAIN,),
        (
            Patch(
                "adapters.memory.tokens",
                "world.live.union(each.token for each in ready)), None\n",
                "world.live.union(tokens)), None\n",
            ),
        ),
    ),
    Mutant(
        "same database: no record",
        (SAME,),
        (database("        records=world.records + stored,\n", "        records=world.records,\n"),),
    ),
    Mutant(
        "same database: record before a snapshot read",
        (SAME,),
        (
            database(
                _BEGIN,
                "        known = await self.find([message.identity for message in messages])\n"
                + _BEGIN
                + "        missed = {record.identity for record in found.owed if record not in known}\n"
                "        gone = tuple(message for message in messages if message.identity in missed)\n"
                "        owed = tuple(record for record in found.owed if record in known)\n"
                "        found = replace(found, owed=owed, done=(*found.done, *gone))\n",
            ),
        ),
    ),
    Mutant(
        "same database: janitor deletes without dispatch",
        (SAME_RELAYED,),
        (
            relay(
                "    answers = await dispatch(records, ports)\n",
                "    answers = {record.identity: Answer.TAKEN for record in records}\n",
            ),
        ),
    ),
)
