"""Broken versions of hosted delivery, of the host itself, and of a key in the caller's own transaction.

A host that breaks the contract loses messages. It is a mutant here: the worlds must see it.
"""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant, outbox
from onceonly_verify.mutants.transactions import CLIENTS
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

ONE, COPIES = (
    "a host, one message",
    "a host, two copies, a crash, and a lease that ends early",
)
FAILING, KILLING = "a host, a handler that fails", "a host, a message that kills its process"
TIMED = "a host whose time ends, and every kind of fault"
OWN, SAVEPOINTS = "a key in the caller's transaction", "a key in the caller's transaction, a rollback, savepoints, and a crash"

hosted_transport = partial(change, "hosted.transport")
hosted_run_markers = partial(change, "hosted.run_markers")
hosted_calls = partial(change, "hosted.calls")
host = partial(change, "onceonly_verify.memory_ports.host")
session = partial(change, "onceonly_verify.memory_ports.session")

HOSTED = {
    "a host that acknowledges early": mutant(
        (TIMED,), host("serve", do.insert_first("with suppress(RetryableError):\n    await broker.ack(batch)"))
    ),
    "a host that acknowledges what is not settled": mutant(
        (FAILING, ONE),
        host("serve", do.replace(at.call("broker.release"), "broker.ack(left)", left=at.argument("broker.release", 0))),
    ),
    "a delivery settled before its messages are sent": mutant(
        (ONE,),
        hosted_transport(
            "HostedTransport.send",
            do.insert_first("_CALL.get().acknowledge(_CALL.get().deliveries, '')"),
        ),
    ),
    "a retry copy counted as settled": mutant(
        (FAILING,), hosted_transport("HostedCall.acknowledge", do.always(at.condition("copies")))
    ),
    "the run marker of a hosted run with the host's count": mutant(
        (KILLING,), hosted_run_markers("HostedRunMarkers.begin", do.replace(at.argument("begin", 1), "attempts"))
    ),
    "the death of a hosted run forgotten": mutant(
        (KILLING,), hosted_run_markers("HostedRunMarkers.begin", do.replace(at.argument("begin", 1), "0"))
    ),
    "a call that was cut off answered as settled": mutant(
        (TIMED,),
        hosted_calls(
            "HostedCalls._outcome",
            do.insert_first("if call.trouble == CUT_OFF:\n    return HostedOutcome(is_settled=True)"),
        ),
    ),
    "a redelivery settled while its run is in progress": mutant(
        (ONE,),
        hosted_transport(
            "HostedCall.take_copy",
            do.insert_first(
                "if not send.attempts > min(each.attempts for each in self.deliveries):\n"
                "    return any(each == send.message.identity for each in self._identities.values())"
            ),
        ),
    ),
    "a redelivery whose messages are not sent settled": mutant(
        (ONE, COPIES),
        outbox(
            "process",
            do.replace(at.source_of(at.argument("dispatch", 0)), "records", records=at.result_of("admission.prepare")),
        ),
    ),
    "a dead letter settled that was not stored": mutant(
        (FAILING,),
        hosted_transport("", do.imports("onceonly.model.errors", "RetryableError")),
        hosted_transport("HostedDeadLetters.add", do.swallow("self._dead_letters.add", "RetryableError")),
    ),
    "messages to other endpoints taken as retry copies": mutant(
        (ONE,), hosted_transport("HostedTransport.send", do.replace("take_copy", "True"), do.always(at.comparison("_endpoint")))
    ),
}

OWN_TRANSACTIONS = {
    "known without dispatch in the caller's transaction": CLIENTS["known without dispatch"]._replace(checks=(OWN,)),
    "key outside of the caller's commit": CLIENTS["key outside of the commit"]._replace(checks=(OWN, SAVEPOINTS)),
    "the rows of a savepoint that was rolled back committed": mutant(
        (SAVEPOINTS,), session("MemorySession.savepoint", do.replace(at.argument("append", 0), "(*old[:1], 99, old[2])"))
    ),
    "the messages of a savepoint that was rolled back sent": mutant(
        (SAVEPOINTS,), session("MemorySession.savepoint", do.replace(at.argument("append", 0), "(*old[:2], 99)"))
    ),
    "a key left taken by a savepoint that was rolled back": mutant(
        (SAVEPOINTS,), session("MemorySession.roll_back_savepoint", do.drop("abandon"))
    ),
    "a key left taken by a rollback": mutant((SAVEPOINTS,), session("MemorySession.roll_back", do.drop("abandon"))),
    "a known key's work done again in the caller's transaction": mutant(
        (OWN,),
        session("", do.imports("msgspec.structs", "replace")),
        session(
            "MemorySession.enlist",
            do.insert_after(
                at.statement("open"),
                "if isinstance(found, IdempotencyEntry):\n"
                "    found = await self._transactions.open(replace(self._opening, key=''))",
                found=at.result_of("open"),
            ),
        ),
    ),
    "the caller's commit reported as done that was not answered": mutant(
        (OWN,),
        session("", do.imports("onceonly.model.errors", "OutcomeUnknown")),
        session("MemorySession.commit", do.swallow("commit", "OutcomeUnknown")),
    ),
}
