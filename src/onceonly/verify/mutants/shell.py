"""Broken versions of the delivery shell and of sorting."""

from onceonly.verify.mutants.known_bad import (
    ACROSS,
    BESIDE,
    CLASH,
    COPIES,
    DUPLICATE,
    FAILING,
    FAILING_ALONE,
    HASTY,
    HOPELESS,
    KILLING,
    ONE,
    REFUSED_COMMIT,
    UNSTEADY,
    Mutant,
    delivery,
    intake,
)

_UNIT = "    unit = next(([item] for item in ready if item.alone), ready)\n"
_RUN = (
    "    # from here on nothing else is held: a message that must run alone is so\n"
    "    return report + await do([partial(_take_through, unit, ports) for unit in intake.units])\n"
)

SHELL: tuple[Mutant, ...] = (
    Mutant(
        "ack before processing",
        (ONE, COPIES),
        (
            delivery(
                "    intake = sort(deliveries, ports)\n",
                "    intake = sort(deliveries, ports)\n    await _ack(deliveries, ports)\n",
            ),
        ),
    ),
    Mutant(
        "conflict swallowed, then acked",
        (ONE,),
        (
            delivery(
                "        return Ran(contended=tuple(items), outrun=outrun, trouble=(_words(error),))\n",
                "        finished = tuple(Record(item.message.identity) for item in items)\n"
                "        return Ran(processed=(Processed(finished=finished),))\n",
            ),
        ),
    ),
    Mutant(
        "claim by delivery instead of identity",
        (COPIES,),
        (
            intake("        message = ports.handlers.read(delivery)\n", "        message = _renamed(delivery, ports)\n"),
            intake(
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
            intake(
                "copies.setdefault(message.identity, []).append(delivery)",
                "copies.setdefault((message.identity, delivery.receipt), []).append(delivery)",
            ),
            intake("[Item(messages[identity], tuple(found))", "[Item(messages[identity[0]], tuple(found))"),
        ),
    ),
    Mutant(
        "a copy within a batch left out of the ack",
        (DUPLICATE,),
        (intake("copies.setdefault(message.identity, []).append(delivery)", "copies[message.identity] = [delivery]"),),
    ),
    Mutant(
        "copies of a known message left out of the ack",
        (ACROSS,),
        (
            delivery(
                "        await finish(finished, [delivery for item in items for delivery in item.deliveries], ports)\n",
                "        fresh = {identity for part in ran.processed for identity in part.handled}\n"
                "        each = [i.deliveries if i.message.identity in fresh else i.deliveries[:1] for i in items]\n"
                "        await finish(finished, [delivery for deliveries in each for delivery in deliveries], ports)\n",
            ),
        ),
    ),
    Mutant(
        "a message lost where a refused unit is halved",
        (REFUSED_COMMIT,),
        (delivery("await run(items[half:], ports", "await run(items[half + 1 :], ports"),),
    ),
    Mutant(
        "batch acked when one failed",
        (UNSTEADY,),
        (
            delivery(
                "    report = await _finish(",
                "    if finished:\n"
                "        await _ack([delivery for item in items for delivery in item.deliveries], ports)\n"
                "    report = await _finish(",
            ),
        ),
    ),
    Mutant(
        "delayed copy acked before taken",
        (FAILING,),
        (
            delivery(
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
            delivery(
                "    taken = [item for (item, _), answer in zip(judged, answers, strict=True) if answer is Answer.TAKEN]\n",
                "    taken = [item for item, _ in judged]\n",
            ),
        ),
    ),
    Mutant(
        "dead letter acked before stored",
        (FAILING,),
        (
            delivery(
                "        try:\n            await ports.dead_letters.add(",
                "        await _ack(letter.deliveries, ports)\n        try:\n            await ports.dead_letters.add(",
            ),
        ),
    ),
    Mutant(
        "a failed message kept as one that is handled",
        (FAILING_ALONE,),
        (delivery("finish_only=failure.kind is FailureKind.REFUSED", "finish_only=True"),),
    ),
    Mutant(
        "the last failure left out of the dead letter",
        (HASTY,),
        (
            delivery(
                "        attempts=verdict.attempts,\n        history=verdict.history,\n        finish_only=",
                "        attempts=item.attempts,\n        history=item.history,\n        finish_only=",
            ),
        ),
    ),
    Mutant(
        "attempt count lost",
        (FAILING_ALONE,),
        (delivery("        due=verdict.due,\n        attempts=verdict.attempts,\n", "        due=verdict.due,\n"),),
    ),
    Mutant(
        "an outage counted as a failure",
        (ONE, COPIES),
        (
            delivery(
                "        return Ran(unsure=tuple(items), newer=newer, trouble=(_words(error),))\n",
                "        failed = tuple((item.message.identity, KILLED) for item in items)\n"
                "        return Ran(processed=(Processed(failed=failed),))\n",
            ),
        ),
    ),
    Mutant(
        "suspects run with the others, uncounted",
        (KILLING,),
        (intake("return True in [delivery.suspect for delivery in self.deliveries]", "return False"),),
    ),
    Mutant(
        "a batch's death counted against each of it",
        (HASTY,),
        (delivery("if item.killed else _uncounted(item))", "if True else _uncounted(item))"),),
    ),
    Mutant(
        "a batch's death counted against the copy that would run alone",
        (BESIDE,),
        (intake("any(delivery.suspect and delivery.alone for", "self.suspect and any(delivery.alone for"),),
    ),
    Mutant(
        "those that must run alone held together",
        (KILLING, BESIDE),
        (
            intake(_UNIT, "    unit = [item for item in ready if item.alone] or ready\n"),
            delivery(
                _RUN,
                "    for item in (item for unit in intake.units for item in unit):\n"
                "        report += await settle([item], await run([item], ports), ports)\n"
                "    return report\n",
            ),
        ),
    ),
    Mutant(
        "one that must run alone held while others run",
        (BESIDE,),
        (
            intake(
                _UNIT, "    unit = [item for item in ready if not item.alone] + [item for item in ready if item.alone][:1]\n"
            ),
            delivery(
                _RUN,
                "    for alone in (False, True):\n"
                "        if chosen := [item for unit in intake.units for item in unit if item.alone is alone]:\n"
                "            report += await settle(chosen, await run(chosen, ports), ports)\n"
                "    return report\n",
            ),
        ),
    ),
    Mutant(
        "one that must run alone run in one unit with others",
        (BESIDE, KILLING),
        (intake(_UNIT, "    unit = ready\n"),),
    ),
    Mutant(
        "given up without asking the store",
        (HOPELESS,),
        (
            delivery(
                "            report += await settle([item], await run((item,), hopeless), hopeless)\n",
                "            report += await give_up([_final(item, KILLED, verdict, ports)], hopeless)\n",
            ),
        ),
    ),
    Mutant(
        "another body given up without asking the store",
        (CLASH,),
        (
            intake(
                "            back.append(delivery)\n",
                "            letters.append(letter_for(delivery, message, OTHER_BODY, ports))\n",
            ),
        ),
    ),
    Mutant(
        "another body taken for a copy",
        (CLASH,),
        (intake(".fingerprint != message.fingerprint:", ".fingerprint != message.fingerprint and False:"),),
    ),
)
