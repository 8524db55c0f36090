"""Known-bad versions of the algorithm and its ports: each must be caught, or the checks prove nothing.

Each is a change of the shipping source. Names are those of the protocols' section 10 where it has one.
"""

from typing import NamedTuple

from onceonly.verify.programs import Patch

ONE, COPIES, OPTIMISTIC = "one message", "two copies, blocking store", "two copies, optimistic store"
DUPLICATE = "a duplicate within a batch"
UNSTEADY, CRASHING = "two messages in one unit, one is unsteady", "two messages in one unit, and a crash"
FAILING, KILLING = "a handler that fails: retry, then dead letter", "a message that kills its process"
CLASH, REFUSED, HOPELESS = "the same id with another body", "an effect that is always refused", "given up with its effects owed"


class Mutant(NamedTuple):
    """A broken version, and the checks that may catch it, in the order in which they are tried."""

    name: str
    checks: tuple[str, ...]
    patches: tuple[Patch, ...]


def _outbox(old: str, new: str) -> Patch:
    return Patch("algorithms.outbox", old, new)


def _delivery(old: str, new: str) -> Patch:
    return Patch("algorithms.delivery", old, new)


def _intake(old: str, new: str) -> Patch:
    return Patch("algorithms.intake", old, new)


def _store(old: str, new: str) -> Patch:
    return Patch("stores.memory", old, new)


_COMMIT = "            await unit.commit(records)\n"
_STORE_COMMIT = '        await self._perform("commit", commit, (token, changes, self._clock.now()))\n'
_CONFLICT = "    if {identity for identity, _ in kept} & {identity for identity, _ in world.claims}:\n"
_BEFORE_ABANDON = "def abandon(world: StoreWorld, token: Hashable) -> Step:\n"
_KNOWN = "*(record for record in known if record.identity in admitted)"
_TAKEN_ONLY = "if answers.get(r.identity, Answer.TAKEN) is Answer.TAKEN),\n        kept="
_NO_CONFLICT = _store(_CONFLICT, "    if False:\n")

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "check before load",
        (COPIES,),
        (
            _store(
                '        found = await self._perform("begin", begin, (tuple(messages), token, self._blocking))\n',
                '        found = await self._perform("look", _look_only, (tuple(messages), token))\n'
                '        await self._perform("begin", begin, (tuple(messages), token, self._blocking))\n',
            ),
            _store(
                _BEFORE_ABANDON,
                "def _look_only(world, messages, token):\n    return world, begin(world, messages, token, False)[1]\n\n\n"
                + _BEFORE_ABANDON,
            ),
        ),
    ),
    Mutant(
        "claim of a failed or postponed handler committed",
        (UNSTEADY,),
        (_store("kept = frozenset(claim for claim in unit.claims if claim[0] in handled)", "kept = frozenset(unit.claims)"),),
    ),
    Mutant(
        "forgotten before dispatch",
        (ONE, COPIES),
        (
            _outbox(
                "    answers = await dispatch(",
                "    if records:\n"
                "        await ports.store.forget([record.identity for record in records])\n"
                "    answers = await dispatch(",
            ),
        ),
    ),
    Mutant(
        "forget before the send is answered",
        (ONE, COPIES),
        (_outbox(_TAKEN_ONLY, _TAKEN_ONLY.replace("is Answer.TAKEN", "is not Answer.REFUSED")),),
    ),
    Mutant(
        "refused effect forgotten",
        (REFUSED,),
        (_outbox(_TAKEN_ONLY, _TAKEN_ONLY.replace("is Answer.TAKEN", "is not Answer.UNKNOWN")),),
    ),
    Mutant(
        "no re-dispatch for a known record",
        (ONE, COPIES),
        (_outbox(f"dispatch((*records, {_KNOWN}), ports)", "dispatch(records, ports)"),),
    ),
    Mutant(
        "ack before processing",
        (ONE, COPIES),
        (
            _delivery(
                "    intake = sort(deliveries, ports)\n",
                "    intake = sort(deliveries, ports)\n    await _ack(deliveries, ports)\n",
            ),
        ),
    ),
    Mutant(
        "ack before forget",
        (ONE, COPIES),
        (_outbox("    recorded = [", "    await ports.transport.ack(deliveries)\n    recorded = ["),),
    ),
    Mutant(
        "conflict swallowed, then acked",
        (ONE,),
        (
            _delivery(
                "        return Ran(contended=tuple(items))\n",
                "        finished = tuple(Record(item.message.identity) for item in items)\n"
                "        return Ran(processed=(Processed(finished=finished),))\n",
            ),
        ),
    ),
    Mutant("no version check", (OPTIMISTIC,), (_NO_CONFLICT,)),
    Mutant(
        "none on first insert",
        (OPTIMISTIC,),
        (_store(_CONFLICT, _CONFLICT.replace("    if {", "    if len(world.claims) > 1 and {")),),
    ),
    Mutant(
        "dispatch before commit",
        (COPIES,),
        (_outbox(_COMMIT, "            await dispatch(records, ports)\n" + _COMMIT),),
    ),
    Mutant(
        "state and record in two commits",
        (ONE, COPIES),
        (
            _store(
                _STORE_COMMIT,
                "        bare = tuple(Record(record.identity) for record in changes.records)\n"
                + _STORE_COMMIT.replace("(token, changes,", "(token, replace(changes, records=bare),")
                + '        await self._perform("record", _add_records, (changes.records,))\n',
            ),
            _store(
                _BEFORE_ABANDON,
                "def _add_records(world, records):\n"
                "    return replace(world, records=world.records + tuple(Stored(record, 0) for record in records)), None\n\n\n"
                + _BEFORE_ABANDON,
            ),
        ),
    ),
    Mutant(
        "claim in another transaction",
        (ONE, COPIES),
        (
            _store(
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
            _store(
                '        return closed, Raises(Conflict, "another unit committed a claim of this one first")\n',
                "        kept = frozenset()\n",
            ),
        ),
    ),
    Mutant(
        "Unknown taken as success",
        (COPIES,),
        (
            _outbox("import Conflict, HandlerFailed, NotNow", "import Conflict, HandlerFailed, NotNow, Unknown"),
            _outbox(
                _COMMIT,
                "            try:\n    " + _COMMIT + "            except Unknown:\n                pass\n",
            ),
        ),
    ),
    Mutant(
        "Unknown retried in place",
        (COPIES,),
        (
            _store("import CommitRefused, Conflict, Failed", "import CommitRefused, Conflict, Failed, Unknown"),
            _store(
                _STORE_COMMIT,
                "        try:\n    "
                + _STORE_COMMIT
                + "        except Unknown:\n"
                + '            await self._perform("again", _write_again, (changes,))\n',
            ),
            _store(
                _BEFORE_ABANDON,
                "def _write_again(world, changes):\n"
                "    stored = tuple(Stored(record, 0) for record in changes.records)\n"
                "    return replace(world, records=world.records + stored, notes=world.notes + changes.notes), None\n\n\n"
                + _BEFORE_ABANDON,
            ),
        ),
    ),
    Mutant(
        "compensation after Unknown",
        (ONE, COPIES),
        (
            _outbox(
                "    except BaseException:\n        unit.abandon()  #",
                "    except BaseException:\n"
                "        if records:\n"
                "            await ports.store.forget([record.identity for record in records])\n"
                "        unit.abandon()  #",
            ),
        ),
    ),
    Mutant(
        "send failure swallowed",
        (ONE, COPIES),
        (
            _outbox("import Conflict, HandlerFailed, NotNow", "import Conflict, HandlerFailed, NotNow, TryAgain"),
            _outbox(
                "    answers = iter(await ports.transport.send(sends)) if sends else iter(())\n",
                "    try:\n"
                "        answers = iter(await ports.transport.send(sends)) if sends else iter(())\n"
                "    except TryAgain:\n"
                "        answers = iter([Answer.TAKEN for _ in sends])\n",
            ),
        ),
    ),
    Mutant(
        "claim by delivery instead of identity",
        (COPIES,),
        (
            _intake("        message = ports.handlers.read(delivery)\n", "        message = _renamed(delivery, ports)\n"),
            _intake(
                "def letter_for(",
                "def _renamed(delivery, ports):\n"
                "    from msgspec.structs import replace\n"
                "    message = ports.handlers.read(delivery)\n"
                "    return replace(message, id=f'{message.id} {delivery.receipt.number}')\n\n\n"
                "def letter_for(",
            ),
        ),
    ),
    Mutant(
        "a duplicate within a batch handled twice",
        (DUPLICATE,),
        (
            _intake(
                "copies.setdefault(message.identity, []).append(delivery)",
                "copies.setdefault((message.identity, delivery.receipt), []).append(delivery)",
            ),
            _intake("[Item(messages[identity], tuple(found))", "[Item(messages[identity[0]], tuple(found))"),
        ),
    ),
    Mutant(
        "a copy within a batch left out of the ack",
        (DUPLICATE,),
        (_intake("copies.setdefault(message.identity, []).append(delivery)", "copies[message.identity] = [delivery]"),),
    ),
    Mutant(
        "batch acked when one failed",
        (UNSTEADY,),
        (
            _delivery(
                "    report = await _finish(",
                "    if finished:\n"
                "        await _ack([delivery for item in items for delivery in item.deliveries], ports)\n"
                "    report = await _finish(",
            ),
        ),
    ),
    Mutant(
        "multi-ack past an unfinished delivery",
        (CRASHING,),
        (
            Patch(
                "transports.memory",
                "    gone = _settled(world, receipts, rules)\n",
                "    last = max((receipt.number for receipt in receipts), default=0)\n"
                "    gone = {entry.number for entry in world.entries if entry.held_until and entry.number <= last}\n",
            ),
        ),
    ),
    Mutant(
        "a failed pass's effects kept",
        (UNSTEADY,),
        (_store("            if self._isolated:\n", "            if False:\n"),),
    ),
    Mutant(
        "a failed handler committed with the others",
        (UNSTEADY,),
        (_outbox("            if not isolated:\n                raise\n", ""),),
    ),
    Mutant(
        "delayed copy acked before taken",
        (FAILING,),
        (
            _delivery(
                "    try:\n        answers = await ports.transport.send([_copy(",
                "    await _ack([delivery for item, _ in judged for delivery in item.deliveries], ports)\n"
                "    try:\n        answers = await ports.transport.send([_copy(",
            ),
        ),
    ),
    Mutant(
        "original acked though its copy was not taken",
        (FAILING,),
        (
            _delivery(
                "    taken = [item for (item, _), answer in zip(judged, answers, strict=True) if answer is Answer.TAKEN]\n",
                "    taken = [item for item, _ in judged]\n",
            ),
        ),
    ),
    Mutant(
        "dead letter acked before stored",
        (FAILING,),
        (
            _delivery(
                "        try:\n            await ports.dead_letters.add(",
                "        await _ack(letter.deliveries, ports)\n        try:\n            await ports.dead_letters.add(",
            ),
        ),
    ),
    Mutant(
        "attempt count lost",
        (FAILING,),
        (_delivery("        due=verdict.due,\n        attempts=verdict.attempts,\n", "        due=verdict.due,\n"),),
    ),
    Mutant(
        "an outage counted as a failure",
        (ONE, COPIES),
        (
            _delivery(
                "        return Ran(unsure=tuple(items))\n",
                "        failed = tuple((item.message.identity, KILLED) for item in items)\n"
                "        return Ran(processed=(Processed(failed=failed),))\n",
            ),
        ),
    ),
    Mutant(
        "suspects run with the others, uncounted",
        (KILLING,),
        (_intake("if any(delivery.suspect for delivery in item.deliveries))", "if False)"),),
    ),
    Mutant(
        "those that must run alone held together",
        (KILLING,),
        (
            _intake(
                "    units = (tuple(together), tuple(alone[:1]))\n", "    units = (tuple(together), *((i,) for i in alone))\n"
            ),
            _intake("for item in alone[1:] for", "for item in () for"),
        ),
    ),
    Mutant(
        "given up without asking the store",
        (HOPELESS,),
        (
            _delivery(
                "            report += await settle([item], await run((item,), hopeless), hopeless)\n",
                "            report += await give_up([_final(item, KILLED, verdict, ports)], hopeless)\n",
            ),
        ),
    ),
    Mutant(
        "another body given up without asking the store",
        (CLASH,),
        (
            _intake(
                "            back.append(delivery)\n",
                "            letters.append(letter_for(delivery, message, OTHER_BODY, ports))\n",
            ),
        ),
    ),
    Mutant(
        "another body taken for a copy",
        (CLASH,),
        (_intake(".fingerprint != message.fingerprint:", ".fingerprint != message.fingerprint and False:"),),
    ),
    Mutant(
        "early return without clean-up",
        (ONE, COPIES),
        (
            _outbox(
                "    settled = (*records, *known,", "    settled = (*records, *(Record(record.identity) for record in known),"
            ),
        ),
    ),
    Mutant(
        "fresh ids on re-dispatch",
        (ONE, COPIES),
        (
            _outbox(_KNOWN, "*(_renamed(record) for record in known if record.identity in admitted)"),
            _outbox(
                "async def finish(",
                "def _renamed(record):\n"
                "    from msgspec.structs import replace\n"
                "    fresh = [replace(e, message=replace(e.message, id=e.message.id + ' again')) for e in record.effects]\n"
                "    return Record(record.identity, tuple(fresh))\n\n\n"
                "async def finish(",
            ),
        ),
    ),
)
