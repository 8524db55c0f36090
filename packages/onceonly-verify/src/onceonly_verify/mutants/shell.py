"""Broken versions of the delivery shell and of sorting."""

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
    Mutant,
    delivery,
    intake,
    starts,
)
from onceonly_verify.mutations import change
from onceonly_verify.mutations.operations import (
    always,
    compare,
    define,
    drop,
    drop_argument,
    first_only,
    insert_after,
    insert_before,
    keep_only,
    never,
    replace,
    replace_statement,
)
from onceonly_verify.mutations.places import (
    answer,
    argument,
    assigned,
    attempt,
    branch,
    call,
    comparison,
    condition,
    each,
    handler,
    index_of,
    iterated,
    loop,
    lower_bound,
    receiver,
    result_of,
    returned,
    root,
    source_of,
    then,
)

LATE = "given up while an earlier save may land, history"
_HELD, _ALONE = call("retry", passing="held"), call("retry", passing="alone")
_COPIED = call("append", having="setdefault")
_READ = {"message": result_of("handlers.read"), "delivery": argument("handlers.read", 0)}
_OTHER_BODY = condition("fingerprint")
_IDENTITY = argument("starts.begin", 0)
_FENCED = answer("fence.fence")
_IS_ITS_OWN = condition(result_of("_is_committed_without"))
_LOCKED = returned("_locked")
_ABANDONED = returned("_abandoned")

SHELL: tuple[Mutant, ...] = (
    Mutant(
        "a message whose copy is refused is released",
        (NO_COPY,),
        (
            delivery(
                "retry",
                replace(condition("Answer.REFUSED"), "old and item.alone", item=argument("uncopied", 0)),
                compare(comparison("Answer.UNKNOWN"), "is not", "Answer.TAKEN"),
            ),
        ),
    ),
    Mutant(
        "a message whose copy is refused is acked",
        (NO_COPY,),
        (delivery("retry", compare(comparison("Answer.TAKEN"), "is not", "Answer.UNKNOWN")),),
    ),
    Mutant(
        "an innocent suspect given up when no copy can be made",
        (NO_COPY_UNSTEADY,),
        (delivery("set_apart", drop_argument(_HELD, "uncopied"), drop_argument(_ALONE, "uncopied")),),
    ),
    Mutant(
        "ack before processing",
        (ONE, COPIES),
        (delivery("deliver", insert_after("sort", "await _ack(deliveries, ports)")),),
    ),
    Mutant(
        "conflict swallowed, then acked",
        (ONE,),
        (
            delivery(
                "_nobodys",
                replace_statement(
                    call("RunResult", passing="conflicted"),
                    """
finished = tuple(Record(item.message.identity) for item in items)
return RunResult(processed=(UnitResult(finished=finished),))
""",
                ),
            ),
        ),
    ),
    Mutant(
        "claim by delivery instead of identity",
        (COPIES,),
        (
            intake("sort", replace("handlers.read", "_renamed(delivery, ports)", delivery=_READ["delivery"])),
            intake(
                "",
                define("""
def _renamed(delivery, ports):
    from msgspec.structs import replace
    message = ports.handlers.read(delivery)
    return replace(message, id=f'{message.id} {delivery.receipt.number}')
"""),
            ),
        ),
    ),
    Mutant(
        "a duplicate within a batch handled twice",
        (DUPLICATE,),
        (
            intake(
                "sort",
                replace(argument(receiver(_COPIED), 0), "(message.identity, delivery.receipt)", **_READ),
                replace(index_of(argument("PendingMessage", 0)), "old[0]"),
            ),
        ),
    ),
    Mutant(
        "a copy within a batch left out of the ack",
        (DUPLICATE,),
        (
            intake(
                "sort",
                replace_statement(
                    _COPIED, "copies[message.identity] = [delivery]", copies=receiver(receiver(_COPIED)), **_READ
                ),
            ),
        ),
    ),
    Mutant(
        "copies of a known message left out of the ack",
        (ACROSS,),
        (
            delivery(
                "_finish",
                insert_before(
                    "finish",
                    "each = [i.deliveries if i.message.identity in done.handled else i.deliveries[:1] for i in items]",
                    items=argument("release", 0),
                ),
                replace(argument("finish", 1), "[delivery for deliveries in each for delivery in deliveries]"),
            ),
        ),
    ),
    Mutant(
        "a message lost where a refused unit is halved",
        (REFUSED_COMMIT,),
        (delivery("_run", replace(lower_bound(argument(call("_run", nth=-1), 0)), "old + 1")),),
    ),
    Mutant(
        "batch acked when one failed",
        (UNSTEADY,),
        (
            delivery(
                "settle",
                insert_before(
                    "_finish",
                    """
if done.finished:
    await _ack([delivery for item in items for delivery in item.deliveries], ports)
""",
                    done=argument("_finish", 0),
                ),
            ),
        ),
    ),
    Mutant(
        "delayed copy acked before taken",
        (FAILING,),
        (
            delivery(
                "retry",
                insert_before(
                    attempt("transport.send"),
                    "await _ack([delivery for item, _ in decided for delivery in item.deliveries], ports)",
                ),
            ),
        ),
    ),
    Mutant(
        "original acked though its copy was not taken",
        (FAILING,),
        (delivery("retry", replace(assigned(comparison("Answer.TAKEN")), "[item for item, _ in decided]")),),
    ),
    Mutant(
        "the error of an acknowledgement raised",
        (ONE, FAILING),
        (delivery("_ack", replace("suppress", "suppress()")),),
    ),
    Mutant(
        "dead letter acked before stored",
        (FAILING,),
        (
            delivery(
                "give_up",
                insert_before("dead_letters.add", "await _ack(letter.deliveries, ports)", letter=each(loop("letters"))),
            ),
        ),
    ),
    Mutant("no fence before the dead letter", (LATE,), (delivery("_is_committed", always(condition("message"))),)),
    Mutant(
        "the fence's record ignored",
        (LATE,),
        (delivery("_is_committed", replace(returned("fence.fence"), "fenced is None and False", fenced=_FENCED)),),
    ),
    Mutant(
        "the fence's record of a message that is done ignored",
        (BOTH,),
        (
            delivery(
                "_is_committed",
                replace(returned("fence.fence"), "(kept := fenced) is not None and kept.is_pending", fenced=_FENCED),
            ),
        ),
        needs_log=True,
    ),
    Mutant(
        "a failed message kept as one that is handled",
        (FAILING_ALONE,),
        (delivery("_final", replace(argument("DeadLetter", "finish_only"), "True")),),
    ),
    Mutant(
        "the last failure left out of the dead letter",
        (HASTY,),
        (
            delivery(
                "_final",
                replace(argument("DeadLetter", "attempts"), "item.attempts"),
                replace(argument("DeadLetter", "history"), "item.history"),
            ),
        ),
    ),
    Mutant("attempt count lost", (FAILING_ALONE,), (delivery("_copy", drop_argument("Send", "attempts")),)),
    Mutant(
        "an outage counted as a failure",
        (ONE, COPIES),
        (
            delivery(
                "_nobodys",
                replace_statement(
                    call("RunResult", passing="unknown"),
                    """
failed = tuple((item.message.identity, KILLED) for item in items)
return RunResult(processed=(UnitResult(failed=failed),))
""",
                ),
            ),
        ),
    ),
    Mutant(
        "a ruined unit counted though nothing is committed without its handler",
        (OUTAGE,),
        (delivery("_doubt", never(_IS_ITS_OWN)),),
    ),
    Mutant(
        "a ruined unit counted because its message cannot be copied",
        (UNANSWERED,),
        (delivery("_retry_or_give_up", drop_argument(call("retry", nth=-1), "uncopied")),),
    ),
    Mutant("a ruined unit never counted", (RUINOUS,), (delivery("_doubt", always(_IS_ITS_OWN)),)),
    Mutant(
        "those beside a message that ruins its unit left behind",
        (RUINOUS,),
        (delivery("_find", replace(source_of(argument(call("_nobodys", within=_LOCKED), 0)), "[]")),),
    ),
    Mutant(
        "those beside a handler that runs on left behind",
        (OUTLASTING,),
        (delivery("_find", keep_only("_abandoned", of=_ABANDONED)),),
    ),
    Mutant(
        "a handler that runs on taken for an outage",
        (OUTLASTING,),
        (
            delivery("_find", replace_statement(_ABANDONED, "return _nobodys(items, error)")),
            delivery("_doubt", replace_statement(_ABANDONED, "return _nobodys([item], error)")),
        ),
    ),
    Mutant(
        "those beside a message that waits for a lock given back",
        (LOCKED,),
        (delivery("_find", never(condition("isolated"))),),
    ),
    Mutant(
        "a lock time-out counted",
        (LOCKED,),
        (delivery("_locked", replace(argument("Failure", "kind"), "FailureKind.COMMIT")),),
    ),
    Mutant(
        "those beside a lock time-out that ends its unit left behind",
        (LOCKED_OUT,),
        (delivery("_find", keep_only("_locked", of=_LOCKED)),),
    ),
    Mutant(
        "suspects run with the others, uncounted",
        (KILLING,),
        (intake("PendingMessage.suspect", replace(returned(), "False")),),
    ),
    Mutant(
        "a batch's death counted against each of it",
        (HASTY,),
        (delivery("set_apart", replace("counted.get", "item.attempts", item=root(argument("counted.get", 0)))),),
    ),
    Mutant(
        "a redelivered copy that would run alone counted without a record",
        (UNANSWERED, AHEAD, BESIDE),
        (
            delivery(
                "_run_alone",
                replace_statement(
                    branch(condition("died")),
                    """
if started.died is not None or item.suspect:
    await ports.starts.ended(identity)
    return await _count_death(item, item.attempts if started.died is None else started.died, ports)
""",
                    started=result_of("starts.begin"),
                    identity=_IDENTITY,
                ),
            ),
        ),
    ),
    Mutant(
        "a run that ended left recorded",
        (UNSEEN, EARLY),
        (delivery("_run_alone", drop(call("starts.ended", nth=-1))),),
    ),
    Mutant(
        "a run left recorded whose recording was not answered",
        (UNSEEN, EARLY),
        (delivery("_run_alone", drop(call("starts.ended", within=handler("RetryableError")))),),
    ),
    Mutant(
        "a run recorded when it is over",
        (UNSEEN,),
        (
            delivery(
                "_run_alone",
                insert_after("run", "await ports.starts.begin(identity, item.attempts)", identity=_IDENTITY),
                insert_before("run", "await ports.starts.ended(identity)", identity=argument(call("starts.begin", nth=0), 0)),
            ),
        ),
    ),
    Mutant(
        "a death counted twice",
        (UNSEEN, KILLING),
        (delivery("_count_death", replace(argument("handlers.verdict", "attempts"), "old + 1")),),
    ),
    Mutant(
        "a suspect taken for one that was only held although nobody saw its process die",
        (UNSEEN_KILL,),
        (delivery("set_apart", replace(assigned(condition("explained")), "MOST_HELD")),),
    ),
    Mutant(
        "a message that a dead process only held is dropped",
        (KILLING, BESIDE),
        (
            delivery(
                "set_apart",
                insert_before(
                    _ALONE,
                    "await _ack([each for item in held for each in item.deliveries], ports)",
                    held=iterated(argument(_HELD, 0)),
                ),
                replace(iterated(argument(_HELD, 0)), "old[:0]"),
            ),
        ),
    ),
    Mutant(
        "a run that is in progress taken for one that died",
        (EARLY,),
        (starts("begin", replace(comparison("until"), "False")),),
    ),
    Mutant(
        "those that must run alone run without a record",
        (KILLING, BESIDE),
        (
            delivery(
                "deliver",
                replace("_run_alone", "settle((item,), await run((item,), ports), ports)", item=argument("_run_alone", 0)),
            ),
        ),
    ),
    Mutant(
        "those that must run alone run in one unit",
        (KILLING, BESIDE),
        (
            intake(
                "sort",
                replace(
                    source_of(argument("_by_key", 0)),
                    "[item for item in items if item.alone or not item.suspect]",
                    items=result_of("PendingMessage"),
                ),
                insert_before("Intake", "alone = ()", alone=argument("Intake", 4)),
            ),
        ),
    ),
    Mutant(
        "only the first that must run alone is settled",
        (UNSEEN_TWO,),
        (delivery("deliver", first_only(iterated(loop("alone")))),),
    ),
    Mutant(
        "given up without asking the store",
        (HOPELESS,),
        (
            delivery(
                "_count_death",
                replace_statement(
                    "_without_handler",
                    """
hopeless = ports._replace(handlers=GivenUp(ports.handlers, verdict))
return await give_up([DeadLetterDraft(_final(item, KILLED, verdict, ports).letter, item.deliveries)], hopeless)
""",
                    verdict=result_of("handlers.verdict"),
                ),
            ),
        ),
    ),
    Mutant(
        "what could not be acknowledged left to the end of its lease",
        ("messages that could not be acknowledged and come again",),
        (change("runtime.worker.redelivery", "PatientTransport.ack", drop("_keep")),),
    ),
    Mutant(
        "what could not be released acknowledged later",
        ("a message that could be neither handled nor released",),
        (
            change("runtime.worker.redelivery", "PatientTransport.give_back", replace("release", "self._acknowledge_left()")),
            change(
                "runtime.worker.redelivery",
                "PatientTransport",
                define(
                    """
async def _acknowledge_left(self):
    await self._transport.ack(self.left)
    self._left.clear()
"""
                ),
            ),
        ),
    ),
    Mutant(
        "another body given up without asking the store",
        (MISMATCH,),
        (
            intake(
                "sort",
                replace(
                    call("append", within=then(_OTHER_BODY)),
                    "letters.append(letter_for(delivery, message, OTHER_BODY, ports))",
                    letters=receiver(call("append", having="letter_for")),
                    **_READ,
                ),
            ),
        ),
    ),
    Mutant("another body taken for a copy", (MISMATCH,), (intake("sort", replace(_OTHER_BODY, "old and False")),)),
)
