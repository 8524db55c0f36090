"""Broken versions of the page itself, and of ids that only a second endpoint tells from good ones."""

from onceonly_verify.mutants.known_bad import (
    CHAIN,
    CHAIN_CRASHING,
    CHAIN_FAILING,
    CHAIN_WIDE,
    COPIES,
    DEDUP,
    ISOLATED,
    ISOLATED_FAILING,
    ONE,
    REFUSED,
    UNSTEADY,
    identity,
    mutant,
    outbox,
    settlement,
    transport,
)
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

_FINISHED = at.argument("UnitResult", "finished")
_PENDING = at.source_of(at.argument("dispatch", 0))
_PREPARED = at.result_of("admission.prepare")
_RENAMED = """
def _renamed(record):
    from msgspec.structs import replace
    fresh = [replace(e, message=replace(e.message, id=e.message.id + ' again')) for e in record.effects]
    return Record(record.identity, tuple(fresh))
"""

OUTBOX = {
    "the handler of a known message run again": mutant(
        (COPIES,), outbox("_handle", do.replace(at.argument("handlers.batches", 0), "[*unit.found.done, *unit.found.new]"))
    ),
    "the handler of a message run that is not admitted": mutant(
        (DEDUP,), outbox("_handle", do.drop_filter(at.condition("admitted")))
    ),
    "forgotten before dispatch": mutant(
        (ONE, COPIES),
        outbox(
            "process", do.insert_before("dispatch", "if records:\n    await ports.store.forget(records)", records=_PREPARED)
        ),
    ),
    "forget before the send is answered": mutant(
        (ONE, COPIES),
        outbox("process", do.compare(at.comparison("Answer.TAKEN", within=_FINISHED), "is not", "Answer.REFUSED")),
    ),
    "refused effect forgotten": mutant(
        (REFUSED,), outbox("process", do.compare(at.comparison("Answer.TAKEN", within=_FINISHED), "is not", "Answer.UNKNOWN"))
    ),
    "no re-dispatch for a known record": mutant(
        (ONE, COPIES), outbox("process", do.replace(_PENDING, "records", records=_PREPARED))
    ),
    "ack before forget": mutant(
        (ONE, COPIES), outbox("_forget_and_ack", do.insert_first("await ports.transport.ack(deliveries)"))
    ),
    "dispatch before commit": mutant(
        (COPIES,),
        outbox("process", do.insert_before("_commit", "await dispatch(records, ports)", records=at.argument("_commit", 1))),
    ),
    "OutcomeUnknown taken as success": mutant(
        (COPIES,),
        outbox("", do.imports("onceonly.model.errors", "OutcomeUnknown")),
        outbox("process", do.swallow("_commit", "OutcomeUnknown")),
    ),
    "compensation after OutcomeUnknown": mutant(
        (ONE, COPIES),
        outbox(
            "process",
            do.insert_first(
                "if records:\n    await ports.store.forget(records)", inside=at.handler("BaseException"), records=_PREPARED
            ),
        ),
    ),
    "send failure swallowed": mutant(
        (ONE, COPIES),
        outbox(
            "dispatch",
            do.swallow(
                "transport.send",
                "RetryableError",
                "answers = iter([Answer.TAKEN for _ in sends])",
                answers=at.result_of("transport.send"),
                sends=at.argument("transport.send", 0),
            ),
        ),
    ),
    "a failed handler committed with the others": mutant(
        (UNSTEADY,), outbox("_handle", do.drop(at.branch(at.condition("isolated"))))
    ),
    "an isolated unit begun without a savepoint for each handler": mutant(
        (ISOLATED,), outbox("process", do.drop_argument(at.call("store.begin", nth=0), "isolated"))
    ),
    "a failed handler of an isolated unit taken as handled": mutant(
        (ISOLATED,),
        outbox(
            "_handle",
            do.replace_statement(
                at.call("extend", within=at.handler("HandlerFailed")),
                "records.extend([Record(each) for each in blamed])",
                records=at.receiver(at.call("extend", having="_record")),
                blamed=at.result_of("_blamed"),
            ),
        ),
    ),
    "those beside a failed handler of an isolated unit left for later": mutant(
        (ISOLATED_FAILING,), outbox("_handle", do.insert_after("_rerun_batches", "break"))
    ),
    "a failed handler takes the records of the others along": mutant(
        (UNSTEADY,),
        outbox(
            "_handle",
            do.insert_before(
                at.call("extend", within=at.handler("HandlerFailed")),
                "records.clear()",
                records=at.receiver(at.call("extend", having="_record")),
            ),
        ),
    ),
    "a unit without records left open": mutant(
        (ONE, COPIES), outbox("process", do.drop(at.call("abandon", within=at.otherwise("_commit"))))
    ),
    "early return without clean-up": mutant(
        (ONE, COPIES),
        outbox(
            "process",
            do.replace(
                at.source_of(at.iterated(_FINISHED)),
                "(*records, *(Record(record.identity) for record in known))",
                records=_PREPARED,
                known=at.result_of("_known"),
            ),
        ),
    ),
    "fresh ids on re-dispatch": mutant(
        (ONE, COPIES), outbox("process", do.replace(at.produced(_PENDING), "_renamed(old)")), outbox("", do.define(_RENAMED))
    ),
}


CHAINED = {
    "one id for all that a message sends": mutant(
        (CHAIN_WIDE,), identity("outgoing_id", do.replace(at.receiver("to_bytes"), "0"))
    ),
    "ids that do not say which message they answer": mutant(
        (CHAIN_WIDE,), identity("outgoing_id", do.drop_element("source.encode"), do.drop_element("id.encode"))
    ),
    "ids that leave out who sent the message they answer": mutant(
        (CHAIN_WIDE,), identity("outgoing_id", do.drop_element("source.encode"))
    ),
    "an endpoint takes from another's queue": mutant((CHAIN,), transport("receive", do.drop_operand(at.comparison("queue")))),
    "a retry copy goes to the endpoint that sent the message": mutant(
        (CHAIN_FAILING,),
        settlement(
            "_copy", do.replace(at.argument("Send", "to"), "old if item.message.source == 'upstream' else item.message.source")
        ),
    ),
    "an ack that settles what other endpoints hold": mutant(
        (CHAIN_CRASHING,),
        transport(
            "ack",
            do.insert_before(
                "_settled",
                """
queues = {entry.queue for entry in world.entries if entry.receipt in receipts}
others = {entry.number for entry in world.entries if entry.held_until and entry.queue not in queues}
""",
            ),
            do.replace("_settled", "old | others"),
        ),
    ),
}
