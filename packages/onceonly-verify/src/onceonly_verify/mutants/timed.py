"""Broken versions of what time decides: retention, margins, deadlines and the age from which an attempt counts as dead."""

from onceonly_verify.mutants.known_bad import Mutant, delivery
from onceonly_verify.mutants.requests import execution
from onceonly_verify.mutants.rings import ring
from onceonly_verify.mutants.stored_elsewhere import documents
from onceonly_verify.mutants.transactions import control
from onceonly_verify.mutants.transactions import documents as transactions
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import compare, keep_only, negate, never, replace
from onceonly_verify.mutations.places import argument, call, comparison, condition, named, operand, result_of, returned

QUIET = "time, history, two copies and another message, nothing to send"
HISTORY, DEDUP = "time, history, two copies and another message", "time, a dedup store, two copies"
CONTROL, WITHOUT = "time, a control message, and a crash", "time, a control message, a key without an entity, and a crash"
DEADLINE, ANSWER = "time, a deadline, and a run that takes long", "time, the answer under a client's key"
CRASHED, FAILED = "time, an artifact, and a crash", "time, an artifact, and a failed call"
ASKED = "time, a request of another service, late and deleted"
DELAYS = "time, delays of retries, and a crash"
SWEPT = "time, tokens and a sweeper, and a crash"
SWEPT_ELSEWHERE = "time, tokens elsewhere and a sweeper, and a failed call"
UNACKNOWLEDGED = "time, a dedup store, a message that could not be acknowledged and comes again"
BEYOND, RENEWED = "time, a dedup store, a retention beyond the margin", "time, a dedup store, a renewed mark, and another body"
ANSWER_BEYOND, ANSWER_ELSEWHERE = (
    "time, the answer under a client's key, a retention beyond the margin",
    "time, the answer under a client's key, asked for on another entity",
)
ANSWER_WITHOUT = "time, the answer under a client's key without an entity, a retention beyond the margin"
SLICES = "time, a ring, two slices of one bucket, and a crash"
OUTSIDE = "time, a ring, claims without an instant, and a failed call"
_HALF = "old // 2"


def marks(function: str, *operations: EditOperation) -> CodeChange:
    """Change the dedup store on documents."""
    return change("documents.dedup", function, *operations)


def asked(function: str, *operations: EditOperation) -> CodeChange:
    """Change what is stored of the requests of other services."""
    return change("adapters.memory.remote_requests", function, *operations)


TIMED: tuple[Mutant, ...] = (
    Mutant(
        "history forgotten a step early",
        (QUIET,),
        (documents("DocumentStore.trimmed", replace(named("CLOCK_MARGIN_MS"), _HALF)),),
    ),
    Mutant(
        "history trimmed in the wrong direction",
        (HISTORY,),
        (documents("DocumentStore.trimmed", replace(comparison("done"), "not old")),),
    ),
    Mutant(
        "history that counts from the beginning of time",
        (HISTORY,),
        (documents("DocumentStore._without", replace(argument("MessageState", "done"), "1")),),
    ),
    Mutant(
        "marks without a margin for clocks that differ",
        (DEDUP,),
        (
            marks(
                "DocumentMarkStore.add",
                replace(argument(call("Mark"), 0), "old - _CLOCK_MARGIN_MS"),
                replace(argument("Change", "expires"), "old - _CLOCK_MARGIN_MS"),
            ),
        ),
    ),
    Mutant(
        "marks that expire when their retention begins",
        (DEDUP,),
        (marks("DocumentMarkStore.add", replace(named("self._retention"), "-_CLOCK_MARGIN_MS")),),
    ),
    Mutant(
        "marks that the service drops at once",
        (UNACKNOWLEDGED,),
        (marks("DocumentMarkStore.add", replace(argument("Change", "expires"), "self._clock.now()")),),
    ),
    Mutant(
        "marks kept for the margin alone",
        (BEYOND,),
        (marks("DocumentMarkStore.add", replace(named("self._retention"), "0")),),
    ),
    Mutant(
        "a renewed mark without its fingerprint",
        (RENEWED,),
        (
            marks(
                "DocumentMarkStore.add",
                replace(argument("Mark", 1), "old if before is None else ''", before=result_of("_mark")),
            ),
        ),
    ),
    Mutant(
        "marks removed in the wrong direction",
        (DEDUP,),
        (marks("DocumentMarkStore.sweep", replace(comparison("until"), "not old")),),
    ),
    Mutant(
        "marks removed without a margin for clocks that differ",
        (DEDUP,),
        (marks("DocumentMarkStore.sweep", replace("self._clock.now", "old + _CLOCK_MARGIN_MS")),),
    ),
    Mutant(
        "commit without a deadline",
        (DEADLINE,),
        (transactions("DocumentTransaction._check_time", never(condition("max_commit"))),),
    ),
    Mutant(
        "deadline compared in the wrong direction",
        (DEADLINE,),
        (transactions("DocumentTransaction._check_time", negate(condition("max_commit"))),),
    ),
    Mutant(
        "deadline that counts from the last look at the clock",
        (DEADLINE,),
        (transactions("DocumentTransaction._check_time", replace(named("_since"), "self._transactions.store.clock.now()")),),
    ),
    Mutant(
        "control message without a delay",
        (CONTROL, WITHOUT),
        (control("send_of", replace(argument("Send", "due"), "controls.clock.now()")),),
    ),
    Mutant(
        "control message delivered a step early",
        (CONTROL, WITHOUT),
        (control("send_of", replace(argument("Send", "due"), "old - 1_800_000")),),
    ),
    Mutant(
        "answers kept without a margin for clocks that differ",
        (ANSWER,),
        (documents("DocumentStore.trimmed", replace(named("CLOCK_MARGIN_MS"), "0")),),
    ),
    Mutant(
        "answers kept for no time",
        (ANSWER,),
        (transactions("DocumentTransaction._changed", replace(argument("ClientKey.of", "until"), "1")),),
    ),
    Mutant(
        "answers kept for the margin alone",
        (ANSWER_BEYOND,),
        (
            transactions(
                "DocumentTransaction._changed",
                replace(argument("ClientKey.of", "until"), "self._transactions.store.clock.now()"),
            ),
        ),
    ),
    Mutant(
        "the document of an answer dropped after the margin",
        (ANSWER_WITHOUT,),
        (documents("DocumentStore.change_of", replace(call("max"), "self.clock.now()")),),
    ),
    Mutant(
        "the way to an answer dropped after the margin",
        (ANSWER_ELSEWHERE,),
        (documents("DocumentStore.change_of", never(condition("leads_to"))),),
    ),
    Mutant(
        "a young attempt swept as dead",
        (CRASHED, FAILED),
        (change("documents.register", "DocumentRegister.old", compare(comparison("older_than"), "<=", "older_than")),),
    ),
    Mutant(
        "attempts swept in the wrong direction",
        (CRASHED, FAILED),
        (change("documents.register", "DocumentRegister.old", compare(comparison("older_than"), ">", "older_than")),),
    ),
    Mutant(
        "a request stored after its deadline",
        (ASKED,),
        (execution("keep", keep_only(operand("requests.put"), of=returned("requests.put"))),),
    ),
    Mutant(
        "the deadline of a request compared in the wrong direction",
        (ASKED,),
        (execution("keep", compare(comparison("deadline"), "<", "now")),),
    ),
    Mutant(
        "tombstones of requests removed in the wrong direction",
        (ASKED,),
        (asked("bury", compare(comparison("now"), "<=", "now")),),
    ),
    Mutant(
        "tombstones of requests kept for no time",
        (ASKED,),
        (
            asked(
                "MemoryRemoteRequests.bury",
                replace(argument("self.perform", 2), "(key, until - 3_600_000, self._transactions.clock.now())"),
            ),
        ),
    ),
    Mutant("a copy without its delay", (DELAYS,), (delivery("_copy", replace(argument("Send", "due"), "0")),)),
    Mutant(
        "delays one failure late",
        (DELAYS,),
        (change("model.retry", "decide_retry", replace(argument("policy.delay_after", 0), "old - 1")),),
    ),
    Mutant(
        "tokens swept at the limit of their age",
        (SWEPT_ELSEWHERE, SWEPT),
        (change("adapters.memory.tokens", "prepared", compare(comparison("older_than"), "<=", "older_than")),),
    ),
    Mutant(
        "young tokens swept",
        (SWEPT, SWEPT_ELSEWHERE),
        (change("algorithms.sweeper", "sweep", replace(argument("tokens.prepared", 0), "old + 3_600_000")),),
    ),
    Mutant(
        "a bucket rotated a slice early",
        (SLICES,),
        (
            ring(
                "rotate",
                replace(argument("bucketing.wanted", 1), "old + dial.bucketing.width"),
                replace(argument("may_forget", 1), "old + dial.bucketing.width"),
            ),
        ),
    ),
    Mutant(
        "claims without an instant removed a slice early",
        (OUTSIDE,),
        (ring("remove_expired", replace(named("dial.bucketing.retention"), "old - dial.bucketing.width")),),
    ),
)
