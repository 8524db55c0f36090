"""Broken versions of the page itself."""

from onceonly_verify.mutants.known_bad import (
    COPIES,
    DEDUP,
    ISOLATED,
    ISOLATED_FAILING,
    ONE,
    REFUSED,
    UNSTEADY,
    Mutant,
    outbox,
)
from onceonly_verify.mutations.operations import (
    compare,
    define,
    drop,
    drop_argument,
    drop_filter,
    imports,
    insert_after,
    insert_before,
    insert_first,
    replace,
    replace_statement,
    swallow,
)
from onceonly_verify.mutations.places import (
    argument,
    branch,
    call,
    comparison,
    condition,
    handler,
    iterated,
    otherwise,
    produced,
    receiver,
    result_of,
    source_of,
)

_FINISHED = argument("UnitResult", "finished")
_PENDING = source_of(argument("dispatch", 0))
_PREPARED = result_of("admission.prepare")
_RENAMED = """
def _renamed(record):
    from msgspec.structs import replace
    fresh = [replace(e, message=replace(e.message, id=e.message.id + ' again')) for e in record.effects]
    return Record(record.identity, tuple(fresh))
"""

OUTBOX: tuple[Mutant, ...] = (
    Mutant(
        "the handler of a known message run again",
        (COPIES,),
        (outbox("_handle", replace(argument("handlers.batches", 0), "[*unit.found.done, *unit.found.new]")),),
    ),
    Mutant(
        "the handler of a message run that is not admitted",
        (DEDUP,),
        (outbox("_handle", drop_filter(condition("admitted"))),),
    ),
    Mutant(
        "forgotten before dispatch",
        (ONE, COPIES),
        (
            outbox(
                "process",
                insert_before("dispatch", "if records:\n    await ports.store.forget(records)", records=_PREPARED),
            ),
        ),
    ),
    Mutant(
        "forget before the send is answered",
        (ONE, COPIES),
        (outbox("process", compare(comparison("Answer.TAKEN", within=_FINISHED), "is not", "Answer.REFUSED")),),
    ),
    Mutant(
        "refused effect forgotten",
        (REFUSED,),
        (outbox("process", compare(comparison("Answer.TAKEN", within=_FINISHED), "is not", "Answer.UNKNOWN")),),
    ),
    Mutant(
        "no re-dispatch for a known record",
        (ONE, COPIES),
        (outbox("process", replace(_PENDING, "records", records=_PREPARED)),),
    ),
    Mutant(
        "ack before forget",
        (ONE, COPIES),
        (outbox("_forget_and_ack", insert_first("await ports.transport.ack(deliveries)")),),
    ),
    Mutant(
        "dispatch before commit",
        (COPIES,),
        (outbox("process", insert_before("_commit", "await dispatch(records, ports)", records=argument("_commit", 1))),),
    ),
    Mutant(
        "OutcomeUnknown taken as success",
        (COPIES,),
        (
            outbox("", imports("onceonly.model.errors", "OutcomeUnknown")),
            outbox("process", swallow("_commit", "OutcomeUnknown")),
        ),
    ),
    Mutant(
        "compensation after OutcomeUnknown",
        (ONE, COPIES),
        (
            outbox(
                "process",
                insert_first(
                    "if records:\n    await ports.store.forget(records)", inside=handler("BaseException"), records=_PREPARED
                ),
            ),
        ),
    ),
    Mutant(
        "send failure swallowed",
        (ONE, COPIES),
        (
            outbox(
                "dispatch",
                swallow(
                    "transport.send",
                    "RetryableError",
                    "answers = iter([Answer.TAKEN for _ in sends])",
                    answers=result_of("transport.send"),
                    sends=argument("transport.send", 0),
                ),
            ),
        ),
    ),
    Mutant(
        "a failed handler committed with the others",
        (UNSTEADY,),
        (outbox("_handle", drop(branch(condition("isolated")))),),
    ),
    Mutant(
        "an isolated unit begun without a savepoint for each handler",
        (ISOLATED,),
        (outbox("process", drop_argument(call("store.begin"), "isolated")),),
    ),
    Mutant(
        "a failed handler of an isolated unit taken as handled",
        (ISOLATED,),
        (
            outbox(
                "_handle",
                replace_statement(
                    call("extend", within=handler("HandlerFailed")),
                    "records.extend([Record(each) for each in blamed])",
                    records=receiver(call("extend", having="_record")),
                    blamed=result_of("_blamed"),
                ),
            ),
        ),
    ),
    Mutant(
        "those beside a failed handler of an isolated unit left for later",
        (ISOLATED_FAILING,),
        (outbox("_handle", insert_after("_again", "break")),),
    ),
    Mutant(
        "a failed handler takes the records of the others along",
        (UNSTEADY,),
        (
            outbox(
                "_handle",
                insert_before(
                    call("extend", within=handler("HandlerFailed")),
                    "records.clear()",
                    records=receiver(call("extend", having="_record")),
                ),
            ),
        ),
    ),
    Mutant(
        "a unit without records left open",
        (ONE, COPIES),
        (outbox("process", drop(call("abandon", within=otherwise("_commit")))),),
    ),
    Mutant(
        "early return without clean-up",
        (ONE, COPIES),
        (
            outbox(
                "process",
                replace(
                    source_of(iterated(_FINISHED)),
                    "(*records, *(Record(record.identity) for record in known))",
                    records=_PREPARED,
                    known=result_of("_known"),
                ),
            ),
        ),
    ),
    Mutant(
        "fresh ids on re-dispatch",
        (ONE, COPIES),
        (outbox("process", replace(produced(_PENDING), "_renamed(old)")), outbox("", define(_RENAMED))),
    ),
)
