"""The kinds of violations, and what the checks do not cover. The page on verification and a run's summary use both lists."""

from collections.abc import Iterable

IN_EVERY_STATE: dict[str, str] = {
    "duplicate": "No message is handled twice at an endpoint, unless its retention is over. No request is executed twice. "
    "No handler runs for a message that its unit finds handled.",
    "torn": "The row and the claim of a message are committed together. A handler that fails leaves neither.",
    "half": "The entities and the documents of the application always have the same rows.",
    "ghost": "What was sent, handled at the next endpoint or requested comes from the one committed attempt.",
    "stray": "Nothing is handled at an endpoint that it was not sent to, or that can never handle it. "
    "The units of a batch contain its messages only.",
    "wrong answer": "A client gets the answer of the attempt that was committed. An attempt that failed is never committed.",
    "mixed up": "A client gets an answer only to the request that it made.",
    "unsent": "A client gets an unknown outcome only if the commit was sent.",
    "unanswered": "No message is sent before the request that it follows up was executed.",
    "blocked": "No key is taken by an attempt that was not committed.",
    "unmade": "The artifacts of a committed attempt exist.",
    "dead token": "No message is sent with a token that is not live.",
    "evicted": "No time slice is forgotten while the effects of one of its records are not dispatched.",
    "refused": "Only a message behind the horizon is refused because of its instant, "
    "and only the register row of a cancelled attempt.",
    "forgotten": "A handled message, and the answer under a key, is known until its retention is over.",
    "late": "No transaction is committed after its deadline.",
    "hasty": "No transaction is given up before its deadline, no retry begins early, and no young token is swept.",
    "fresh id": "An effect has one id, however often it is sent.",
    "unfair": "Only a message's own failures are counted, and only they make it a dead letter.",
    "apart": "A suspect runs with others only if a death explains it, and alone only if none does or the death was its own. "
    "A failed acknowledgement makes no suspect.",
    "both": "No dead letter was handled as well, except where the guarantees allow it.",
    "wrong letter": "A dead letter contains its own message, and says truly whether it was handled.",
    "miscopied": "A copy of a message has the identity, body, attributes and counts of the message.",
    "held up": "A message that waits for a lock delays no other message.",
    "left behind": "A worker settles every delivery of its batch.",
    "endless": "Deliveries and copies of a message end, and so does each step of a program.",
    "wrong look": "A control message ends when its attempt has ended. Until then it is sent again, each time with its delay.",
    "wrong unit": "A message runs in a unit of one, in an isolated one or behind the others where it must.",
    "miscounted": "A report counts each delivery or record as what became of it, and names the errors of units.",
    "escape": "No error leaves a program.",
}
AT_REST: dict[str, str] = {
    "lost": "Every message is handled or a dead letter.",
    "phantom": "What was committed as sent has arrived, and what was committed as requested was executed.",
    "leak": "No record, unit, run, mark, token, request, response or artifact is left that nothing removes.",
    "stuck": "From every state, a state at rest can be reached.",
}
KINDS = IN_EVERY_STATE | AT_REST


def kind_of(violation: str) -> str:
    """Return the kind of a violation by its text."""
    return violation.partition(":")[0]


def unreported(violations: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds that none of these violations is of. An invariant that nothing violates proves nothing."""
    seen = {kind_of(violation) for violation in violations}
    return tuple(kind for kind in KINDS if kind not in seen)


NOT_COVERED = (
    "SQL, drivers and brokers. The checks use adapters in memory.",
    "Real time and drift of clocks. Time moves in steps of half an hour, and clocks differ by one step at most.",
    "Time at several endpoints, and the age at which relays take records. Worlds with time have one endpoint and no relay.",
    "A changed retention of claims without an instant. Worlds in which the retention of a ring changes have one endpoint.",
    "Leases of relays in tables. On documents, a relay comes before or after the end of all leases.",
    "A tombstone that waits for an open transaction with its record. In memory, a commit is one step.",
    "Larger worlds: more copies, workers, endpoints and faults at once than a check names.",
    "Several batches in one process. Each loop of a worker dies alone here, and a run alone has no other unit beside it.",
    "The runtime around the algorithms: when relays, sweepers and janitors wake up, leader election and shutdown.",
    "The event loop around hosted delivery: what it repeats within a call, the limits of a process, the renewal of leases.",
    "Sessions of SQLAlchemy. A key in the caller's own transaction is checked with a session in memory.",
    "Handlers. A handler is one step. Its locks, its isolation and its own side effects are not checked.",
    "Attempts that take longer than the age from which a sweeper treats them as dead. Their artifacts may stay.",
    "Writes that arrive later than `CLOCK_MARGIN_MS` allows together with the difference of two clocks.",
    "The margin of tombstones of HTTP requests, which `endpoint/http_app.py` chooses. The checks use `CLOCK_MARGIN_MS`.",
    "A message on documents that is given up, then handled all the same, and not sent on. The guarantees name this exception.",
    "The expiry of documents of messages without an entity, and waits for locks. No check has a clock there.",
)
