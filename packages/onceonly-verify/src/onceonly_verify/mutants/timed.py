"""Broken versions of what time decides: retention, margins, deadlines and the age from which an attempt counts as dead."""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant, outbox, settlement
from onceonly_verify.mutants.requests import execution
from onceonly_verify.mutants.rings import ring
from onceonly_verify.mutants.stored_elsewhere import admission, documents
from onceonly_verify.mutants.transactions import control
from onceonly_verify.mutants.transactions import documents as transactions
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

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


marks = partial(change, "documents.dedup")
asked = partial(change, "adapters.memory.remote_requests")
retentions = partial(change, "model.retention")
LATE, LATE_MARKS = "time, history, copies that come late", "time, a dedup store, copies that come late"
LATE_PENDING = "time, a dedup store, a late copy of what is pending"
RAISED, LOWERED = "time, history, the retention is raised", "time, history, the retention is lowered"
RAISED_MARKS, LOWERED_MARKS = "time, a dedup store, the retention is raised", "time, a dedup store, the retention is lowered"
TIMED = {
    "late copies handled on documents": mutant(
        (LATE,), documents("DocumentUnit.__init__", do.replace_answer("undecidable_among", "()"))
    ),
    "late copies handled with a dedup store": mutant(
        (LATE_MARKS,), admission("DedupStoreAdmission.admits", do.replace_answer("_done.undecidable", "()"))
    ),
    "a message found too old dropped as done": mutant(
        (LATE_MARKS,),
        outbox("process", do.drop_argument("UnitResult", "undecidable")),
    ),
    "what is pending not sent where its mark may be forgotten": mutant(
        (LATE_PENDING,),
        outbox(
            "process",
            do.replace(at.receiver("intersection"), "admission.mismatched", admission=at.result_of("admission.admits")),
        ),
    ),
    "a horizon behind what is deleted": mutant(
        (LATE,), retentions("_horizon", do.replace_body("return min(now, end) - era.kept - 3 * CLOCK_MARGIN_MS"))
    ),
    "a longer retention relied on at once": mutant(
        (RAISED, RAISED_MARKS), retentions("Retention.horizon", do.replace_body("return now - self.latest"))
    ),
    "a raise that forgets what held before": mutant(
        (RAISED, RAISED_MARKS),
        retentions(
            "Retention.changed",
            do.replace_body(
                """
if kept == self.latest:
    return self
before = tuple(Era(each.since, kept) for each in self.eras)
return Retention((*before, Era(max(now, before[-1].since + 1), kept)))
"""
            ),
        ),
    ),
    "a lower retention that forgets half of it": mutant(
        (LOWERED,), retentions("Retention.kept", do.replace_body("return self.latest // 2 - CLOCK_MARGIN_MS"))
    ),
    "a lower retention that refuses at the older age": mutant(
        (LOWERED, LOWERED_MARKS), retentions("Retention.horizon", do.replace_body("return now - self.eras[0].kept"))
    ),
    "history forgotten a step early": mutant(
        (QUIET,), documents("DocumentStore.trimmed", do.replace(at.named("CLOCK_MARGIN_MS"), _HALF))
    ),
    "history trimmed in the wrong direction": mutant(
        (HISTORY,), documents("DocumentStore.trimmed", do.replace(at.comparison("done"), "not old"))
    ),
    "history that counts from the beginning of time": mutant(
        (HISTORY,), documents("DocumentStore._without", do.replace(at.argument("MessageState", "done"), "1"))
    ),
    "marks without a margin for clocks that differ": mutant(
        (DEDUP,),
        marks(
            "DocumentMarkStore.add",
            do.replace(at.argument(at.call("Mark"), 0), "old - CLOCK_MARGIN_MS"),
            do.replace(at.argument("Change", "expires"), "old - CLOCK_MARGIN_MS"),
        ),
    ),
    "marks that expire when their retention begins": mutant(
        (DEDUP,), marks("DocumentMarkStore.add", do.replace("kept", "-CLOCK_MARGIN_MS"))
    ),
    "marks that the service drops at once": mutant(
        (UNACKNOWLEDGED,), marks("DocumentMarkStore.add", do.replace(at.argument("Change", "expires"), "self._clock.now()"))
    ),
    "marks kept for the margin alone": mutant((BEYOND,), marks("DocumentMarkStore.add", do.replace("kept", "0"))),
    "a renewed mark without its fingerprint": mutant(
        (RENEWED,),
        marks(
            "DocumentMarkStore.add",
            do.replace(at.argument("Mark", 1), "old if before is None else ''", before=at.result_of("_mark")),
        ),
    ),
    "marks removed in the wrong direction": mutant(
        (DEDUP,), marks("DocumentMarkStore.sweep", do.replace(at.comparison("until"), "not old"))
    ),
    "marks removed without a margin for clocks that differ": mutant(
        (DEDUP,), marks("DocumentMarkStore.sweep", do.replace("self._clock.now", "old + CLOCK_MARGIN_MS"))
    ),
    "commit without a deadline": mutant(
        (DEADLINE,), transactions("DocumentTransaction._check_time", do.never(at.condition("max_commit")))
    ),
    "deadline compared in the wrong direction": mutant(
        (DEADLINE,), transactions("DocumentTransaction._check_time", do.negate(at.condition("max_commit")))
    ),
    "deadline that counts from the last look at the clock": mutant(
        (DEADLINE,),
        transactions("DocumentTransaction._check_time", do.replace(at.named("_since"), "self._transactions.store.clock.now()")),
    ),
    "control message without a delay": mutant(
        (CONTROL, WITHOUT), control("send_of", do.replace(at.argument("Send", "due"), "controls.clock.now()"))
    ),
    "control message delivered a step early": mutant(
        (CONTROL, WITHOUT), control("send_of", do.replace(at.argument("Send", "due"), "old - 1_800_000"))
    ),
    "answers kept without a margin for clocks that differ": mutant(
        (ANSWER,), documents("DocumentStore.trimmed", do.replace(at.named("CLOCK_MARGIN_MS"), "0"))
    ),
    "answers kept for no time": mutant(
        (ANSWER,), transactions("DocumentTransaction._changed", do.replace(at.argument("ClientKey.of", "until"), "1"))
    ),
    "answers kept for the margin alone": mutant(
        (ANSWER_BEYOND,),
        transactions(
            "DocumentTransaction._changed",
            do.replace(at.argument("ClientKey.of", "until"), "self._transactions.store.clock.now()"),
        ),
    ),
    "the document of an answer dropped after the margin": mutant(
        (ANSWER_WITHOUT,),
        documents("DocumentStore.change_of", do.replace(at.call("max", having="leads_to"), "self.clock.now()")),
    ),
    "the way to an answer dropped after the margin": mutant(
        (ANSWER_ELSEWHERE,), documents("DocumentStore.change_of", do.never(at.condition("leads_to")))
    ),
    "a young attempt swept as dead": mutant(
        (CRASHED, FAILED),
        change("documents.register", "DocumentRegister.old", do.compare(at.comparison("older_than"), "<=", "older_than")),
    ),
    "attempts swept in the wrong direction": mutant(
        (CRASHED, FAILED),
        change("documents.register", "DocumentRegister.old", do.compare(at.comparison("older_than"), ">", "older_than")),
    ),
    "a request stored after its deadline": mutant(
        (ASKED,), execution("keep", do.keep_only(at.operand("requests.put"), of=at.returned("requests.put")))
    ),
    "the deadline of a request compared in the wrong direction": mutant(
        (ASKED,), execution("keep", do.compare(at.comparison("deadline"), "<", "now"))
    ),
    "tombstones of requests removed in the wrong direction": mutant(
        (ASKED,), asked("bury", do.compare(at.comparison("now"), "<=", "now"))
    ),
    "tombstones of requests kept for no time": mutant(
        (ASKED,),
        asked(
            "MemoryRemoteRequests.bury",
            do.replace(at.argument("self.perform", 2), "(key, until - 3_600_000, self._transactions.clock.now())"),
        ),
    ),
    "a copy without its delay": mutant((DELAYS,), settlement("_copy", do.replace(at.argument("Send", "due"), "0"))),
    "delays one failure late": mutant(
        (DELAYS,), change("model.retry", "decide_retry", do.replace(at.argument("policy.delay_after", 0), "old - 1"))
    ),
    "tokens swept at the limit of their age": mutant(
        (SWEPT_ELSEWHERE, SWEPT),
        change("onceonly_verify.memory_ports.tokens", "prepared", do.compare(at.comparison("older_than"), "<=", "older_than")),
    ),
    "young tokens swept": mutant(
        (SWEPT, SWEPT_ELSEWHERE),
        change("algorithms.sweeper", "sweep", do.replace(at.argument("tokens.prepared", 0), "old + 3_600_000")),
    ),
    "a bucket rotated a slice early": mutant(
        (SLICES,),
        ring(
            "rotate",
            do.replace(at.argument("bucketing.wanted", 1), "old + dial.bucketing.width"),
            do.replace(at.argument("may_forget", 1), "old + dial.bucketing.width"),
        ),
    ),
    "claims without an instant removed a slice early": mutant(
        (OUTSIDE,), ring("remove_expired", do.replace(at.named("dial.bucketing.retention"), "old - dial.bucketing.width"))
    ),
}
