"""Broken versions of the page itself."""

from onceonly_verify.mutants.known_bad import COPIES, ONE, REFUSED, UNSTEADY, Mutant, outbox

_COMMIT = "            await _commit(unit, records)\n"
_KNOWN = "*(record for record in known if record.identity in admitted)"
_LEFT = "    left = [record for record in records if"
_TAKEN_ONLY = "if answers.get(r.identity, Answer.TAKEN) is Answer.TAKEN),\n        kept="

OUTBOX: tuple[Mutant, ...] = (
    Mutant(
        "forgotten before dispatch",
        (ONE, COPIES),
        (
            outbox(
                "    answers = await dispatch(",
                "    if records:\n        await ports.store.forget(records)\n    answers = await dispatch(",
            ),
        ),
    ),
    Mutant(
        "forget before the send is answered",
        (ONE, COPIES),
        (outbox(_TAKEN_ONLY, _TAKEN_ONLY.replace("is Answer.TAKEN", "is not Answer.REFUSED")),),
    ),
    Mutant(
        "refused effect forgotten",
        (REFUSED,),
        (outbox(_TAKEN_ONLY, _TAKEN_ONLY.replace("is Answer.TAKEN", "is not Answer.UNKNOWN")),),
    ),
    Mutant(
        "no re-dispatch for a known record",
        (ONE, COPIES),
        (outbox(f"    owed = (*records, {_KNOWN})\n", "    owed = records\n"),),
    ),
    Mutant(
        "ack before forget",
        (ONE, COPIES),
        (outbox(_LEFT, "    await ports.transport.ack(deliveries)\n" + _LEFT),),
    ),
    Mutant(
        "dispatch before commit",
        (COPIES,),
        (outbox(_COMMIT, "            await dispatch(records, ports)\n" + _COMMIT),),
    ),
    Mutant(
        "Unknown taken as success",
        (COPIES,),
        (
            outbox("import Conflict, HandlerFailed, NotNow", "import Conflict, HandlerFailed, NotNow, Unknown"),
            outbox(
                _COMMIT,
                "            try:\n    " + _COMMIT + "            except Unknown:\n                pass\n",
            ),
        ),
    ),
    Mutant(
        "compensation after Unknown",
        (ONE, COPIES),
        (
            outbox(
                "    except BaseException:\n        unit.abandon()  #",
                "    except BaseException:\n"
                "        if records:\n"
                "            await ports.store.forget(records)\n"
                "        unit.abandon()  #",
            ),
        ),
    ),
    Mutant(
        "send failure swallowed",
        (ONE, COPIES),
        (
            outbox(
                "    answers = iter(await ports.transport.send(sends)) if sends else iter(())\n",
                "    try:\n"
                "        answers = iter(await ports.transport.send(sends)) if sends else iter(())\n"
                "    except TryAgain:\n"
                "        answers = iter([Answer.TAKEN for _ in sends])\n",
            ),
        ),
    ),
    Mutant(
        "a failed handler committed with the others",
        (UNSTEADY,),
        (outbox("            if not isolated:\n                raise\n", ""),),
    ),
    Mutant(
        "a failed handler takes the records of the others along",
        (UNSTEADY,),
        (outbox("            failed.append(", "            records.clear()\n            failed.append("),),
    ),
    Mutant(
        "a unit without records left open",
        (ONE, COPIES),
        (outbox("        else:\n            unit.abandon()\n", ""),),
    ),
    Mutant(
        "early return without clean-up",
        (ONE, COPIES),
        (
            outbox(
                "    settled = (*records, *known)", "    settled = (*records, *(Record(record.identity) for record in known))"
            ),
        ),
    ),
    Mutant(
        "fresh ids on re-dispatch",
        (ONE, COPIES),
        (
            outbox(_KNOWN, "*(_renamed(record) for record in known if record.identity in admitted)"),
            outbox(
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
