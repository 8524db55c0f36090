"""Calls and deliveries in a few words, for counterexamples."""

from collections.abc import Mapping
from typing import Any

from onceonly.drivers.memory import Operation
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Message, Send


def about(operation: Operation, names: Mapping[Identity, str]) -> str:
    """Say in a few words what a call is about; `names` are those of messages whose id alone says too little."""
    first = operation.arguments[0] if operation.arguments else ()
    if operation.point == "commit":
        changes = operation.arguments[1]
        return ", ".join(f"{_named(record.identity, names)} ({len(record.effects)} to send)" for record in changes.records)
    return ", ".join(_text(item, names) for item in (first if isinstance(first, tuple) else (first,)))


def _named(identity: Identity, names: Mapping[Identity, str]) -> str:
    return names.get(identity, identity.id)


def _text(item: Any, names: Mapping[Identity, str]) -> str:
    if isinstance(item, Message):
        return _named(item.identity, names)
    if isinstance(item, Send):
        count = f", attempts {item.attempts}" if item.attempts else ""
        return f"{item.message.body.decode()!r} to {item.to or 'subscribers'}{count}"
    if isinstance(item, DeadLetter):
        return f"{item.body.decode()!r}: {item.reason}"
    if hasattr(item, "id"):
        return _named(item, names)
    return receipt_text(item) if hasattr(item, "times") else str(item)


def receipt_text(receipt: Any) -> str:
    """Name a delivery by its receipt."""
    return f"delivery {receipt.number}.{receipt.times}"


def delivery_text(delivery: Delivery) -> str:
    """Name a delivery, what it brings, and its marks."""
    marks = [word for word, holds in (("suspect", delivery.suspect), ("alone", delivery.alone)) if holds]
    if delivery.attempts:
        marks.append(f"attempts {delivery.attempts}")
    return f"{receipt_text(delivery.receipt)} of {delivery.body.decode()!r}" + (f" ({', '.join(marks)})" if marks else "")
