"""Calls and deliveries in a few words, for counterexamples."""

from collections.abc import Callable, Mapping
from typing import Any

from onceonly.adapters.memory.world import PortOperation
from onceonly.model.artifact import Artifact, Reservation
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Message, Send
from onceonly.model.remote import RemoteRequest as Called
from onceonly.model.token import Token
from onceonly.ports.documents import Change
from onceonly_verify.driver import Call, HandlerChoice
from onceonly_verify.time_steps import AHEAD, BEHIND, skew_of, unskewed


def about(operation: PortOperation, names: Mapping[Identity, str]) -> str:
    """Return in a few words what a call is about; `names` are those of messages whose id alone says too little."""
    first = operation.arguments[0] if operation.arguments else ()
    if operation.point == "commit":
        changes = getattr(operation.arguments[1], "changes", operation.arguments[1])
        return ", ".join(f"{_named(record.identity, names)} ({len(record.effects)} to send)" for record in changes.records)
    return ", ".join(_text(item, names) for item in (first if isinstance(first, tuple) else (first,)))


def _named(identity: Identity, names: Mapping[Identity, str]) -> str:
    return names.get(identity, identity.id)


def _text(item: Any, names: Mapping[Identity, str]) -> str:
    rule = next((rule for kind, rule in _RULES if isinstance(item, kind)), None)
    if rule:
        return rule(item)
    if isinstance(item, Message) or hasattr(item, "id"):
        return _named(getattr(item, "identity", item), names)
    return receipt_text(item) if hasattr(item, "times") else str(item)


def _send_text(send: Send) -> str:
    count = f", attempts {send.attempts}" if send.attempts else ""
    return f"{send.message.body.decode()!r} to {send.to or 'subscribers'}{count}"


def _change_text(change: Change) -> str:
    return change.key + (f" after its write {change.expected}" if change.expected else " for the first time")


_RULES: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (Send, _send_text),
    (DeadLetter, lambda letter: f"{letter.body.decode()!r}: {letter.reason}"),
    (Change, _change_text),
    (Artifact, lambda artifact: artifact.name),
    (Reservation, lambda row: f"the row of attempt {row.attempt}"),
    (Called, lambda call: f"{call.verb} {call.url}"),
    (Token, lambda token: f"{token.id} of {token.endpoint}"),
    (bytes, bytes.hex),
)


def difference_text(expected: Call | None, made: Call | Exception | None) -> str:
    """Return how two runs of one program with the same answers differ; in full where a few words would read the same."""
    words = [_call_text(call) for call in (expected, made)]
    if words[0] == words[1]:
        words = _where_they_differ(*(_in_full(call) for call in (expected, made)))
    return (
        "this program looks at something that is not an argument: chance, a clock or its process's memory.\n"
        f"  Given the same answers, its first run made the call\n    {words[0]}\n  and a second run\n    {words[1]}"
    )


def _call_text(call: Call | Exception | None) -> str:
    if isinstance(call, PortOperation):
        return f"{call.point} {about(call, {})}".strip()
    if isinstance(call, HandlerChoice):
        return f"handler of {call.name}"
    return f"raised {type(call).__name__}: {call}" if call else "ended"


def _where_they_differ(one: str, other: str) -> list[str]:
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return [f"... {text[max(0, at - 40) : at + 40]} ..." for text in (one, other)]


def _in_full(call: Call | Exception | None) -> str:
    return f"{call.point} {call.arguments}" if isinstance(call, PortOperation) else str(call)


def receipt_text(receipt: Any) -> str:
    return f"delivery {receipt.number}.{receipt.times}"


def delivery_text(delivery: Delivery) -> str:
    """Name a delivery, what it brings, and its marks."""
    known = (("suspect", delivery.suspect), ("alone", delivery.alone), ("held", delivery.held))
    marks = [word for word, holds in known if holds]
    if delivery.attempts:
        marks.append(f"attempts {delivery.attempts}")
    return f"{receipt_text(delivery.receipt)} of {delivery.body.decode()!r}" + (f" ({', '.join(marks)})" if marks else "")


def batch_text(batch: tuple[Delivery, ...]) -> str:
    """Name what sets a worker going; what comes from no queue has no number."""
    told = ", ".join(_begun_text(delivery) for delivery in unskewed(batch))
    skew = skew_of(batch)
    return f"{told}; {AHEAD if skew > 0 else BEHIND}" if skew else told


def _begun_text(delivery: Delivery) -> str:
    receipt: Any = delivery.receipt
    return delivery_text(delivery) if receipt.number else delivery.body.decode()
