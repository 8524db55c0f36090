"""Broken versions of the delivery loop, of blame, settlement, deaths and sorting."""

from onceonly_verify.mutants.known_bad import (
    ACROSS,
    AHEAD,
    BESIDE,
    BOTH,
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
    MISMATCH,
    NO_COPY,
    NO_COPY_UNSTEADY,
    ONE,
    OUTAGE,
    OUTLASTING,
    REFUSED_COMMIT,
    RUINOUS,
    UNANSWERED,
    UNSEEN,
    UNSEEN_KILL,
    UNSEEN_TWO,
    UNSTEADY,
    blame,
    deaths,
    delivery,
    intake,
    mutant,
    run_markers,
    settlement,
)
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

LATE = "given up while an earlier save may land, history"
_HELD, _ALONE = at.call("retry", passing="held"), at.call("retry", passing="alone")
_COPIED = at.call("append", having="setdefault")
_READ = {"message": at.result_of("handlers.read"), "delivery": at.argument("handlers.read", 0)}
_OTHER_BODY = at.condition("fingerprint")
_IDENTITY = at.argument("run_markers.begin", 0)
_FENCED = at.answer("fence.fence")
_IS_ITS_OWN = at.condition(at.result_of("_is_committed_without"))
_LOCKED = at.returned("_locked")
_ABANDONED = at.returned("_abandoned")

SHELL = {
    "a message whose copy is refused is released": mutant(
        (NO_COPY,),
        settlement(
            "retry",
            do.replace(at.condition("Answer.REFUSED"), "old and item.alone", item=at.argument("uncopied", 0)),
            do.compare(at.comparison("Answer.UNKNOWN"), "is not", "Answer.TAKEN"),
        ),
    ),
    "a message whose copy is refused is acked": mutant(
        (NO_COPY,), settlement("retry", do.compare(at.comparison("Answer.TAKEN"), "is not", "Answer.UNKNOWN"))
    ),
    "an innocent suspect given up when no copy can be made": mutant(
        (NO_COPY_UNSTEADY,),
        deaths("isolate_suspects", do.drop_argument(_HELD, "uncopied"), do.drop_argument(_ALONE, "uncopied")),
    ),
    "ack before processing": mutant(
        (ONE, COPIES), delivery("deliver", do.insert_after("sort", "await ack(deliveries, ports)"))
    ),
    "conflict swallowed, then acked": mutant(
        (ONE,),
        blame(
            "_unattributed",
            do.replace_statement(
                at.call("RunResult", passing="conflicted"),
                """
from onceonly.model.record import Record
finished = tuple(Record(item.message.identity) for item in items)
return RunResult(processed=(UnitResult(finished=finished),))
""",
            ),
        ),
    ),
    "claim by delivery instead of identity": mutant(
        (COPIES,),
        intake("sort", do.replace("handlers.read", "_renamed(delivery, ports)", delivery=_READ["delivery"])),
        intake(
            "",
            do.define("""
def _renamed(delivery, ports):
    from msgspec.structs import replace
    message = ports.handlers.read(delivery)
    return replace(message, id=f'{message.id} {delivery.receipt.number}')
"""),
        ),
    ),
    "a duplicate within a batch handled twice": mutant(
        (DUPLICATE,),
        intake(
            "sort",
            do.replace(at.argument(at.receiver(_COPIED), 0), "(message.identity, delivery.receipt)", **_READ),
            do.replace(at.index_of(at.argument("PendingMessage", 0)), "old[0]"),
        ),
    ),
    "a copy within a batch left out of the ack": mutant(
        (DUPLICATE,),
        intake(
            "sort",
            do.replace_statement(
                _COPIED, "copies[message.identity] = [delivery]", copies=at.receiver(at.receiver(_COPIED)), **_READ
            ),
        ),
    ),
    "copies of a known message left out of the ack": mutant(
        (ACROSS,),
        settlement(
            "_finish",
            do.insert_before(
                "finish",
                "each = [i.deliveries if i.message.identity in done.handled else i.deliveries[:1] for i in items]",
                items=at.argument("release_messages", 0),
            ),
            do.replace(at.argument("finish", 1), "[delivery for deliveries in each for delivery in deliveries]"),
        ),
    ),
    "a message lost where a refused unit is halved": mutant(
        (REFUSED_COMMIT,), blame("_run", do.replace(at.lower_bound(at.argument(at.call("_run", nth=-1), 0)), "old + 1"))
    ),
    "batch acked when one failed": mutant(
        (UNSTEADY,),
        settlement(
            "settle",
            do.insert_before(
                "_finish",
                """
if done.finished:
    await ack([delivery for item in items for delivery in item.deliveries], ports)
""",
                done=at.argument("_finish", 0),
            ),
        ),
    ),
    "delayed copy acked before taken": mutant(
        (FAILING,),
        settlement(
            "retry",
            do.insert_before(
                at.attempt("transport.send"),
                "await ack([delivery for item, _ in decided for delivery in item.deliveries], ports)",
            ),
        ),
    ),
    "original acked though its copy was not taken": mutant(
        (FAILING,), settlement("retry", do.replace(at.assigned(at.comparison("Answer.TAKEN")), "[item for item, _ in decided]"))
    ),
    "the error of an acknowledgement raised": mutant((ONE, FAILING), settlement("ack", do.replace("suppress", "suppress()"))),
    "dead letter acked before stored": mutant(
        (FAILING,),
        settlement(
            "give_up",
            do.insert_before("dead_letters.add", "await ack(letter.deliveries, ports)", letter=at.each(at.loop("letters"))),
        ),
    ),
    "no fence before the dead letter": mutant((LATE,), settlement("_is_committed", do.always(at.condition("message")))),
    "the fence's record ignored": mutant(
        (LATE,), settlement("_is_committed", do.replace(at.returned("fence.fence"), "fenced is None and False", fenced=_FENCED))
    ),
    "the fence's record of a message that is done ignored": mutant(
        (BOTH,),
        settlement(
            "_is_committed",
            do.replace(at.returned("fence.fence"), "(kept := fenced) is not None and kept.is_pending", fenced=_FENCED),
        ),
        needs_log=True,
    ),
    "a failed message kept as one that is handled": mutant(
        (FAILING_ALONE,), settlement("_final", do.replace(at.argument("DeadLetter", "finish_only"), "True"))
    ),
    "the last failure left out of the dead letter": mutant(
        (HASTY,),
        settlement(
            "_final",
            do.replace(at.argument("DeadLetter", "attempts"), "item.attempts"),
            do.replace(at.argument("DeadLetter", "history"), "item.history"),
        ),
    ),
    "attempt count lost": mutant((FAILING_ALONE,), settlement("_copy", do.drop_argument("Send", "attempts"))),
    "an outage counted as a failure": mutant(
        (ONE, COPIES),
        blame(
            "_unattributed",
            do.replace_statement(
                at.call("RunResult", passing="unknown"),
                """
killed = Failure(kind=FailureKind.KILLED, reason="an outage")
failed = tuple((item.message.identity, killed) for item in items)
return RunResult(processed=(UnitResult(failed=failed),))
""",
            ),
        ),
    ),
    "a ruined unit counted though nothing is committed without its handler": mutant(
        (OUTAGE,), blame("_retry_without_handler", do.never(_IS_ITS_OWN))
    ),
    "a ruined unit counted because its message cannot be copied": mutant(
        (UNANSWERED,), settlement("_retry_or_give_up", do.drop_argument(at.call("retry", nth=-1), "uncopied"))
    ),
    "a ruined unit never counted": mutant((RUINOUS,), blame("_retry_without_handler", do.always(_IS_ITS_OWN))),
    "those beside a message that ruins its unit left behind": mutant(
        (RUINOUS,),
        blame("_find_cause", do.replace(at.source_of(at.argument(at.call("_unattributed", within=_LOCKED), 0)), "[]")),
    ),
    "those beside a handler that runs on left behind": mutant(
        (OUTLASTING,), blame("_find_cause", do.keep_only("_abandoned", of=_ABANDONED))
    ),
    "a handler that runs on taken for an outage": mutant(
        (OUTLASTING,),
        blame("_find_cause", do.replace_statement(_ABANDONED, "return _unattributed(items, error)")),
        blame("_retry_without_handler", do.replace_statement(_ABANDONED, "return _unattributed([item], error)")),
    ),
    "those beside a message that waits for a lock given back": mutant(
        (LOCKED,), blame("_find_cause", do.never(at.condition("isolated")))
    ),
    "a lock time-out counted": mutant(
        (LOCKED,), blame("_locked", do.replace(at.argument("Failure", "kind"), "FailureKind.COMMIT"))
    ),
    "those beside a lock time-out that ends its unit left behind": mutant(
        (LOCKED_OUT,), blame("_find_cause", do.keep_only("_locked", of=_LOCKED))
    ),
    "suspects run with the others, uncounted": mutant(
        (KILLING,), intake("PendingMessage.suspect", do.replace(at.returned(), "False"))
    ),
    "a batch's death counted against each of it": mutant(
        (HASTY,),
        deaths("isolate_suspects", do.replace("counted.get", "item.attempts", item=at.root(at.argument("counted.get", 0)))),
    ),
    "a redelivered copy that would run alone counted without a record": mutant(
        (UNANSWERED, AHEAD, BESIDE),
        deaths(
            "run_alone",
            do.replace_statement(
                at.branch(at.condition("died")),
                """
if started.died is not None or item.suspect:
    await ports.run_markers.finish(identity)
    return await _count_death(item, item.attempts if started.died is None else started.died, ports)
""",
                started=at.result_of("run_markers.begin"),
                identity=_IDENTITY,
            ),
        ),
    ),
    "a run that ended left recorded": mutant(
        (UNSEEN, EARLY), deaths("run_alone", do.drop(at.call("run_markers.finish", nth=-1)))
    ),
    "a run left recorded whose recording was not answered": mutant(
        (UNSEEN, EARLY), deaths("run_alone", do.drop(at.call("run_markers.finish", within=at.handler("RetryableError"))))
    ),
    "a run recorded when it is over": mutant(
        (UNSEEN,),
        deaths(
            "run_alone",
            do.insert_after("run", "await ports.run_markers.begin(identity, item.attempts)", identity=_IDENTITY),
            do.insert_before(
                "run", "await ports.run_markers.finish(identity)", identity=at.argument(at.call("run_markers.begin", nth=0), 0)
            ),
        ),
    ),
    "a death counted twice": mutant(
        (UNSEEN, KILLING), deaths("_count_death", do.replace(at.argument("handlers.decide_retry", "attempts"), "old + 1"))
    ),
    "a suspect taken for one that was only held although nobody saw its process die": mutant(
        (UNSEEN_KILL,), deaths("isolate_suspects", do.replace(at.assigned(at.condition("explained")), "MOST_HELD"))
    ),
    "a message that a dead process only held is dropped": mutant(
        (KILLING, BESIDE),
        deaths(
            "isolate_suspects",
            do.insert_before(
                _ALONE,
                "await ports.transport.ack([each for item in held for each in item.deliveries])",
                held=at.iterated(at.argument(_HELD, 0)),
            ),
            do.replace(at.iterated(at.argument(_HELD, 0)), "old[:0]"),
        ),
    ),
    "a run that is in progress taken for one that died": mutant(
        (EARLY,), run_markers("begin", do.replace(at.comparison("until"), "False"))
    ),
    "those that must run alone run without a record": mutant(
        (KILLING, BESIDE),
        delivery(
            "deliver",
            do.replace("run_alone", "settle((item,), await run((item,), ports), ports)", item=at.argument("run_alone", 0)),
        ),
    ),
    "those that must run alone run in one unit": mutant(
        (KILLING, BESIDE),
        intake(
            "sort",
            do.replace(
                at.source_of(at.argument("_by_key", 0)),
                "[item for item in items if item.alone or not item.suspect]",
                items=at.result_of("PendingMessage"),
            ),
            do.insert_before("Intake", "alone = ()", alone=at.argument("Intake", 4)),
        ),
    ),
    "only the first that must run alone is settled": mutant(
        (UNSEEN_TWO,), delivery("deliver", do.first_only(at.iterated(at.loop("alone"))))
    ),
    "given up without asking the store": mutant(
        (HOPELESS,),
        deaths(
            "_count_death",
            do.replace_statement(
                "without_handler",
                """
from onceonly.algorithms.settlement import _final, give_up
from onceonly.algorithms.intake import DeadLetterDraft
hopeless = ports._replace(handlers=GivenUp(ports.handlers, decision, KILLED))
return await give_up([DeadLetterDraft(_final(item, KILLED, decision, ports).letter, item.deliveries)], hopeless)
""",
                decision=at.result_of("handlers.decide_retry"),
            ),
        ),
    ),
    "what could not be acknowledged left to the end of its lease": mutant(
        ("messages that could not be acknowledged and come again",),
        change("runtime.worker.transports", "PatientTransport.ack", do.drop("_keep")),
    ),
    "what could not be released acknowledged later": mutant(
        ("a message that could be neither handled nor released",),
        change("runtime.worker.transports", "PatientTransport.give_back", do.replace("release", "self._acknowledge_left()")),
        change(
            "runtime.worker.transports",
            "PatientTransport",
            do.define(
                """
async def _acknowledge_left(self):
    await self._transport.ack(self.left)
    self._left.clear()
"""
            ),
        ),
    ),
    "another body given up without asking the store": mutant(
        (MISMATCH,),
        intake(
            "sort",
            do.replace(
                at.call("append", within=at.then(_OTHER_BODY)),
                "letters.append(letter_for(delivery, message, OTHER_BODY, ports))",
                letters=at.receiver(at.call("append", having="letter_for")),
                **_READ,
            ),
        ),
    ),
    "another body taken for a copy": mutant((MISMATCH,), intake("sort", do.replace(_OTHER_BODY, "old and False"))),
}
