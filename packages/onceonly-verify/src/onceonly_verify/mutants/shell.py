"""Broken versions of the delivery shell and of sorting."""

from onceonly_verify.mutants.known_bad import (
    ACROSS,
    AHEAD,
    BESIDE,
    CLASH,
    COPIES,
    DUPLICATE,
    EARLY,
    FAILING,
    FAILING_ALONE,
    HASTY,
    HOPELESS,
    KILLING,
    LOCKED,
    LOCKED_OUT,
    NO_COPY,
    NO_COPY_UNSTEADY,
    ONE,
    OUTAGE,
    REFUSED_COMMIT,
    RUINOUS,
    UNANSWERED,
    UNSEEN,
    UNSEEN_KILL,
    UNSEEN_TWO,
    UNSTEADY,
    Mutant,
    delivery,
    intake,
    starts,
)

_TOGETHER = "    together = items if is_calm else [item for item in items if not (item.alone or item.suspect)]\n"
_ALONE = "        report += await _run_alone(item, ports)\n    return report\n"

LATE = "given up while an earlier save may land, history"
_FENCE = "        return await ports.store.fence(ports.store.unit_key(message), message.identity, message) is not None\n"

SHELL: tuple[Mutant, ...] = (
    Mutant(
        "a message whose copy is refused is released",
        (NO_COPY,),
        (
            delivery("        if answer is Answer.REFUSED:\n", "        if answer is Answer.REFUSED and item.alone:\n"),
            delivery(
                "strict=True) if answer is Answer.UNKNOWN]\n    await release(left, ports)\n",
                "strict=True) if answer is not Answer.TAKEN]\n    await release(left, ports)\n",
            ),
        ),
    ),
    Mutant(
        "a message whose copy is refused is acked",
        (NO_COPY,),
        (
            delivery(
                'if answer is Answer.TAKEN]\n    # Crash here, "after-retry',
                'if answer is not Answer.UNKNOWN]\n    # Crash here, "after-retry',
            ),
        ),
    ),
    Mutant(
        "an innocent suspect given up when no copy can be made",
        (NO_COPY_UNSTEADY,),
        (
            delivery(", held=True, uncopied=now)\n", ", held=True)\n"),
            delivery(", alone=True, uncopied=now)\n", ", alone=True)\n"),
        ),
    ),
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
                "        return Ran(contended=them, outrun=them if isinstance(error, Outrun) else (), trouble=trouble)\n",
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
        (delivery("await _run(items[half:], ports", "await _run(items[half + 1 :], ports"),),
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
                "            await ports.dead_letters.add(",
                "            await _ack(letter.deliveries, ports)\n            await ports.dead_letters.add(",
            ),
        ),
    ),
    Mutant("no fence before the dead letter", (LATE,), (delivery("    if message is None:\n", "    if True:\n"),)),
    Mutant("the fence's record ignored", (LATE,), (delivery(_FENCE, _FENCE.replace("is not None", "is None and False")),)),
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
                "    return Ran(unsure=them, newer=them if isinstance(error, LeftToNewer) else (), trouble=trouble)\n",
                "    failed = tuple((item.message.identity, KILLED) for item in items)\n"
                "    return Ran(processed=(Processed(failed=failed),))\n",
            ),
        ),
    ),
    Mutant(
        "a ruined unit counted though nothing is committed without its handler",
        (OUTAGE,),
        (delivery("    if not is_its_own:\n", "    if False:\n"),),
    ),
    Mutant(
        "a ruined unit counted because its message cannot be copied",
        (UNANSWERED,),
        (
            delivery(
                "    report += await retry(put_off, ports, uncopied=partial(_put_back, ports=ports))\n",
                "    report += await retry(put_off, ports)\n",
            ),
        ),
    ),
    Mutant(
        "a ruined unit never counted",
        (RUINOUS,),
        (delivery("    if not is_its_own:\n", "    if True:\n"),),
    ),
    Mutant(
        "those beside a message that ruins its unit left behind",
        (RUINOUS,),
        (delivery("    others = [item for item in items if item is not suspect]\n", "    others = []\n"),),
    ),
    Mutant(
        "those beside a message that waits for a lock given back",
        (LOCKED,),
        (delivery("    if isinstance(error, LockTimeout) and not isolated and len(items) > 1:\n", "    if False:\n"),),
    ),
    Mutant(
        "a lock time-out counted",
        (LOCKED,),
        (delivery("    locked = Failure(kind=FailureKind.LOCKED, ", "    locked = Failure(kind=FailureKind.COMMIT, "),),
    ),
    Mutant(
        "those beside a lock time-out that ends its unit left behind",
        (LOCKED_OUT,),
        (
            delivery(
                "        return _nobodys(others, error) + _locked(suspect, error)\n", "        return _locked(suspect, error)\n"
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
        (delivery("deaths.counted.get(item.message.identity, -1)", "item.attempts"),),
    ),
    Mutant(
        "a redelivered copy that would run alone counted without a record",
        (UNANSWERED, AHEAD, BESIDE),
        (
            delivery(
                "    if started.died is not None:\n        return await _count_death(item, started.died, ports)\n",
                "    if started.died is not None or item.suspect:\n"
                "        await ports.starts.ended(identity)\n"
                "        return await _count_death(item, item.attempts if started.died is None else started.died, ports)\n",
            ),
        ),
    ),
    Mutant(
        "a run that ended left recorded",
        (UNSEEN, EARLY),
        (delivery("    await ports.starts.ended(identity)  # before its delivery is settled", "    # not ended"),),
    ),
    Mutant(
        "a run left recorded whose recording was not answered",
        (UNSEEN, EARLY),
        (
            delivery(
                "        await ports.starts.ended(identity)  # it may have been recorded, and nothing else would end it\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a run recorded when it is over",
        (UNSEEN,),
        (
            delivery(
                "    ran = await run((item,), ports)\n    await ports.starts.ended(identity)",
                "    await ports.starts.ended(identity)\n    ran = await run((item,), ports)\n"
                "    await ports.starts.begin(identity, item.attempts)\n    await ports.starts.ended(identity)",
            ),
        ),
    ),
    Mutant(
        "a death counted twice",
        (UNSEEN, KILLING),
        (delivery("KILLED, attempts=attempts, history", "KILLED, attempts=attempts + 1, history"),),
    ),
    Mutant(
        "a suspect taken for one that was only held although nobody saw its process die",
        (UNSEEN_KILL,),
        (delivery("    most = MOST_HELD if deaths.explained else 0\n", "    most = MOST_HELD\n"),),
    ),
    Mutant(
        "a message that a dead process only held is dropped",
        (KILLING, BESIDE),
        (
            delivery(
                "    return report + await retry([(item, _uncounted(item)) for item in unclear]",
                "    await _ack([each for item in held for each in item.deliveries], ports)\n"
                "    return report + await retry([(item, _uncounted(item)) for item in unclear]",
            ),
            delivery(
                "    report += await retry([(item, _uncounted(item)) for item in held]",
                "    report += await retry([(item, _uncounted(item)) for item in held[:0]]",
            ),
        ),
    ),
    Mutant(
        "a run that is in progress taken for one that died",
        (EARLY,),
        (starts("run.until > span.now", "False"),),
    ),
    Mutant(
        "those that must run alone run without a record",
        (KILLING, BESIDE),
        (delivery(_ALONE, "        report += await settle((item,), await run((item,), ports), ports)\n    return report\n"),),
    ),
    Mutant(
        "those that must run alone run in one unit",
        (KILLING, BESIDE),
        (intake(_TOGETHER, "    together = [item for item in items if item.alone or not item.suspect]\n    alone = ()\n"),),
    ),
    Mutant(
        "only the first that must run alone is settled",
        (UNSEEN_TWO,),
        (delivery("    for item in intake.alone:", "    for item in intake.alone[:1]:"),),
    ),
    Mutant(
        "given up without asking the store",
        (HOPELESS,),
        (
            delivery(
                "GivenUp(ports.handlers, verdict))\n    return await settle([item], await run((item,), hopeless), hopeless)\n",
                "GivenUp(ports.handlers, verdict))\n"
                "    letter = Letter(_final(item, KILLED, verdict, ports).letter, item.deliveries)\n"
                "    return await give_up([letter], hopeless)\n",
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
