"""Messages for the suites: plain ones, and ones with content that is often corrupted in transit."""

from onceonly.model.message import Failure, FailureKind, Message, Send

EVERY_BYTE = bytes(range(256))


def message(name: str = "m1", *, source: str = "till", body: bytes = b'{"total": 1}') -> Message:
    return Message(id=name, source=source, type="shop.order.v1", body=body)


def rich_message(name: str = "m1", body: bytes = EVERY_BYTE) -> Message:
    """Make a message that uses every field, in several scripts."""
    return Message(
        id=name,
        source="köln/№ 7 δ",
        type="shop.order-placed.v1",
        body=body,
        time="2026-02-28T23:59:59.999Z",
        subject="köln → 東京 🛫",
        datacontenttype="application/octet-stream",
        extensions=(("causationid", "c 1"), ("conversationid", "π"), ("replyto", "tills"), ("traceparent", "00-ab-cd-01")),
        headers=(("x-shop", 'quote " comma , back\\slash'), ("X-Case", "Kept"), ("x-empty", "")),
    )


def failures() -> tuple[Failure, ...]:
    """Make the history of a message that failed twice."""
    return (
        Failure(kind=FailureKind.EXCEPTION, reason="ValueError: too much - π", at=1_700_000_000_000),
        Failure(kind=FailureKind.KILLED, reason="the process ended", at=1_700_000_000_001),
    )


def effects() -> tuple[Send, ...]:
    """Make what a handler may have decided: a command, a delayed event, an empty body, every byte."""
    return (
        Send(message=rich_message("out-1"), to="billing"),
        Send(message=message("out-2", body=b""), due=1_700_000_123_456),
        Send(message=rich_message("out-3", "é e\u0301".encode())),
    )
