"""Broken versions of requests that are executed once, on the side that asks and on the side that is asked."""

from onceonly_verify.mutants.known_bad import Mutant, outbox
from onceonly_verify.programs import Patch

ASKED, ASKED_CRASHING, DELETED = (
    "asked by another service, late and duplicated",
    "asked by another service, and a crash",
    "asked by another service, and deleted before it is executed",
)
FAILING, ATTEMPTS, FOLLOWED = "a request, a failed call", "a request, two attempts", "a response, two attempts, a dedup store"
_CALLED = (
    "    called = await ports.effects.call(records)  # a message that announces a response is sent only when there is one\n"
)
_SENT = "    answers = iter(await ports.transport.send(sends)) if sends else iter(())\n"
_CREATE = "                await self._things[thing.kind].create(thing)\n"


def execution(old: str, new: str) -> Patch:
    """Change what executes requests."""
    return Patch("algorithms.remote_execution", old, new)


def calls(old: str, new: str) -> Patch:
    """Change where requests are kept."""
    return Patch("adapters.memory.calls", old, new)


def effects(old: str, new: str) -> Patch:
    """Change the effects."""
    return Patch("algorithms.effects", old, new)


EXECUTION: tuple[Mutant, ...] = (
    Mutant(
        "callee checks request before response",
        (ASKED,),
        (
            calls(
                "        found = await self._transactions.open(",
                '        early = await self.perform("call-request", request, (opening.key,))\n'
                "        found = await self._transactions.open(",
            ),
            calls("else MemoryCall(self, opening.key, found)\n", "else MemoryCall(self, opening.key, found, early)\n"),
            calls(
                "def __init__(self, calls: MemoryCalls, key: str, transaction: MemoryTransaction) -> None:\n",
                "def __init__(self, calls, key, transaction, early) -> None:\n        self._early = early\n",
            ),
            calls(
                '        found: Request | None = await self._calls.perform("call-request", request, (self._key,))\n'
                "        return found\n",
                "        return self._early\n",
            ),
        ),
    ),
    Mutant(
        "response deleted first",
        (ASKED,),
        (
            execution("    await calls.remove(key)\n", "    await calls.bury(key, until)\n"),
            execution("    await calls.bury(key, until)\n    # Crash", "    await calls.remove(key)\n    # Crash"),
        ),
    ),
    Mutant(
        "POST answered before dispatch",
        (ASKED,),
        (execution("    await _dispatch(records, ports)\n    return decided.answer\n", "    return decided.answer\n"),),
    ),
    Mutant(
        "a response given again with its messages undispatched",
        (ASKED_CRASHING,),
        (
            execution(
                "        await _dispatch(await ports.store.find([Identity(opening.endpoint, opened.attempt)]), ports)\n", ""
            ),
        ),
    ),
    Mutant(
        "no tombstone on DELETE",
        (DELETED,),
        (calls("others | {(key, until)}), None\n", "others), None\n"),),
    ),
    Mutant(
        "executed without a request",
        (ASKED,),
        (execution("        if request is None:\n            opened.abandon()\n            return None\n", ""),),
    ),
    Mutant(
        "request and tombstone in two writes",
        (DELETED,),
        (
            calls(
                '        await self.perform("call-bury", bury, (key, until, self._transactions.clock.now()))\n',
                '        await self.perform("call-bury", unput, (key,))\n'
                '        await self.perform("call-bury", bury, (key, until, self._transactions.clock.now()))\n',
            ),
            calls(
                "def remove(world: StoreWorld",
                "def unput(world, key):\n"
                "    return replace(world, requests=frozenset(e for e in world.requests if e[0] != key)), None\n\n\n"
                "def remove(world: StoreWorld",
            ),
            calls(
                "    return RequestsWorld(frozenset(each for each in world.requests if each[0] != key), others",
                "    return RequestsWorld(world.requests, others",
            ),
        ),
    ),
)

CALLING: tuple[Mutant, ...] = (
    Mutant(
        "PUT Unknown taken as success",
        (FAILING,),
        (
            effects("import CommitRefused\n", "import CommitRefused, Unknown\n"),
            effects(
                _CREATE,
                "                try:\n    " + _CREATE + "                except Unknown:\n                    pass\n",
            ),
        ),
    ),
    Mutant(
        "POST before the commit",
        (FAILING,),
        (effects(_CREATE, _CREATE + "            await self._remote.perform(record.calls)\n"),),
    ),
    Mutant(
        "followed up before POST is answered",
        (FAILING,),
        (
            outbox(_CALLED, "    called = {}\n"),
            outbox(_SENT, _SENT + "    called = await ports.effects.call(records)\n"),
        ),
    ),
    Mutant(
        "no answer to POST taken for one",
        (FAILING,),
        (
            effects(
                "        return await (NoThings().call(records) if self._remote is None else perform(records, self._remote))\n",
                "        try:\n            await perform(records, self._remote)\n        except Exception:\n            pass\n"
                "        return dict.fromkeys((record.identity for record in records if record.calls), Answer.TAKEN)\n",
            ),
        ),
    ),
    Mutant(
        "requests under fixed names",
        (ATTEMPTS,),
        (effects("attempt=self._ids.fresh(), at=now)", "attempt=message.identity.id, at=now)"),),
    ),
    Mutant(
        "a response that is not there taken for lost at once",
        (FOLLOWED,),
        (
            Patch(
                "algorithms.remote_call",
                "    if not is_new or not (await ports.admission.admits([message])).messages:\n",
                "    if False:\n",
            ),
        ),
    ),
    Mutant(
        "response deleted before what follows it up is committed",
        (FAILING,),
        (
            outbox(
                "        await ports.effects.make(records)\n",
                "        await ports.effects.make(records)\n"
                "        await ports.effects.call([r for r in records if any(c.verb == 'DELETE' for c in r.calls)])\n",
            ),
        ),
    ),
    Mutant(
        "request and response left for ever",
        (FAILING,),
        (Patch("algorithms.remote_call", "    return (Call(Verb.DELETE, url),) if url else ()\n", "    return ()\n"),),
    ),
)
