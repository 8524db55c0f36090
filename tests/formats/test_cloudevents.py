"""CloudEvents in headers and in JSON."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.formats.cloudevents import (
    ALL_TRACEBACKS_BYTES,
    HISTORY,
    TRACEBACK_BYTES,
    arrival,
    encode,
    is_copy,
    message_of,
    parse_structured,
    take_apart,
)
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
names = st.from_regex("[a-z]{4,12}", fullmatch=True).filter(
    lambda name: name not in {"time", "type", "source", "subject", "specversion", "datacontenttype"}
)
messages = st.builds(
    Message,
    id=text,
    source=text,
    type=text,
    body=st.binary(max_size=50),
    time=st.sampled_from(["", "2026-01-01T00:00:00Z"]),
    subject=st.one_of(st.just(""), text),
    extensions=st.dictionaries(names, text, max_size=3).map(lambda found: tuple(found.items())),
)


def arrive(send: Send, prefix: str = "ce-") -> Delivery:
    """Encode a send and let it arrive."""
    headers, body = encode(send, prefix)
    return arrival(1, "q", headers, body, suspect=False)


@given(messages, st.sampled_from(["ce-", "ce_", "cloudEvents_", "cloudEvents:"]))
def test_a_message_survives_the_wire_with_every_prefix(message: Message, prefix: str) -> None:
    """Identity, attributes, extensions and body come back as they were."""
    delivery = arrive(Send(message=message), prefix)
    event = take_apart(delivery.headers, delivery.body)
    back = message_of(event, source=event.attributes["source"], id=event.attributes["id"])
    assert back == message
    assert not is_copy(delivery)


@given(messages, st.integers(1, 99), st.booleans(), st.integers(0, 99))
def test_a_retry_copy_remembers_how_often_it_failed(message: Message, attempts: int, alone: bool, held: int) -> None:  # noqa: FBT001
    """Attempts, history and whether it must run alone travel with the copy, and are no attributes of the message."""
    history = (Failure(kind=FailureKind.TIMEOUT, reason="slow", at=5),)
    delivery = arrive(Send(message=message, attempts=attempts, history=history, alone=alone, held=held))
    assert (delivery.attempts, delivery.history, delivery.alone, delivery.held) == (attempts, history, alone, held)
    assert is_copy(delivery)
    event = take_apart(delivery.headers, delivery.body)
    assert message_of(event, source=message.source, id=message.id) == message


@pytest.mark.parametrize("attempts", ["-1", "many", "", "²", "1.5"])
def test_a_foreign_header_with_our_name_loses_no_message(attempts: str) -> None:
    """What does not parse counts as nothing."""
    headers = (
        ("ce-id", "1"),
        ("ce-onceonlyattempts", attempts),
        ("ce-onceonlyhistory", "{broken"),
        ("ce-onceonlyheld", attempts),
    )
    delivery = arrival(1, "q", headers, b"", suspect=False)
    assert (delivery.attempts, delivery.history, delivery.held) == (0, (), 0)


def test_other_headers_are_kept_beside_the_attributes() -> None:
    """A broker's own headers belong to the message as well."""
    event = take_apart((("ce-id", "1"), ("X-Trace", "7"), ("Content-Type", "text/plain")), b"hi")
    assert event.headers == (("X-Trace", "7"),)
    assert event.attributes == {"id": "1", "datacontenttype": "text/plain"}


def test_structured_mode_is_read_from_the_body() -> None:
    """One JSON document holds attributes and data."""
    document = b'{"specversion": "1.0", "id": "1", "source": "s", "type": "T", "n": 5, "flag": true, "data": {"a": [1]}}'
    event = take_apart((("content-type", "application/cloudevents+json; charset=utf-8"),), document)
    assert event.body == b'{"a": [1]}'
    assert event.attributes["id"] == "1"
    assert (event.attributes["n"], event.attributes["flag"]) == ("5", "true")


def test_structured_data_may_be_text_or_binary() -> None:
    """`data_base64` gives bytes; a JSON string of a text type gives its characters."""
    assert parse_structured(b'{"id": "1", "data_base64": "AAE="}')[1] == b"\x00\x01"
    assert parse_structured(b'{"id": "1", "datacontenttype": "text/plain", "data": "hi"}')[1] == b"hi"
    assert parse_structured(b'{"id": "1"}')[1] == b""


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"7", b'{"data_base64": "%%"}', b'{"datacontenttype": "text/x", "data": 5}']
)
def test_a_body_that_is_no_cloudevent_says_why(body: bytes) -> None:
    """One error type, with the reason in it."""
    with pytest.raises(ValueError, match="not a CloudEvent in JSON format"):
        parse_structured(body)


def failure(number: int, traceback: str) -> Failure:
    """Make a failure of one attempt."""
    reason = f"ValueError: {number}"
    return Failure(kind=FailureKind.EXCEPTION, reason=reason, traceback=traceback, at=number, handler="shop.place_order")


def copied(history: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """Let a history travel with a copy."""
    return arrive(Send(message=Message(id="1", source="s", type="t", body=b""), attempts=1, history=history)).history


def test_every_attempt_keeps_its_traceback_from_copy_to_copy() -> None:
    """Short ones are not changed, however often they are copied."""
    history: tuple[Failure, ...] = ()
    for number in range(8):
        history = copied((*history, failure(number, f"Traceback\n  File {number}\nValueError: {number}\n")))
    assert history == tuple(failure(n, f"Traceback\n  File {n}\nValueError: {n}\n") for n in range(8))


def test_a_long_traceback_keeps_its_innermost_frames() -> None:
    """Whole lines, behind a mark that something was cut off."""
    frames = [f'  File "shop.py", line {number}, in place\n' for number in range(1000)]
    (kept,) = copied((failure(1, "".join(frames) + "ValueError: 1\n"),))
    mark, *lines, error = kept.traceback.splitlines(keepends=True)
    assert (mark, error) == ("...\n", "ValueError: 1\n")
    assert len(lines) > 50
    assert lines == frames[-len(lines) :]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=10), st.integers(1, 3000))
def test_tracebacks_of_any_length_and_number_stay_within_the_limits(texts: list[str], times: int) -> None:
    """Each alone and all together, and no attempt is without one."""
    kept = copied(tuple(failure(number, text * times) for number, text in enumerate(texts)))
    sizes = [len(msgspec.json.encode(each.traceback)) for each in kept]
    assert all(each.traceback for each in kept)
    assert max(sizes) <= TRACEBACK_BYTES
    assert sum(sizes) <= ALL_TRACEBACKS_BYTES


def test_ten_long_tracebacks_share_the_room() -> None:
    """The last one does not push the first one out."""
    trace = "".join(f"  File {number}\n" for number in range(2000))
    kept = copied(tuple(failure(number, trace) for number in range(10)))
    assert {len(each.traceback) for each in kept} == {len(kept[0].traceback)}
    assert len(kept[0].traceback) > ALL_TRACEBACKS_BYTES / 10 * 0.8


class FailureOfTheVersionBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A failure, as the version before reads and writes it."""

    kind: FailureKind
    reason: str
    traceback: str = ""
    at: int = 0
    delay: float = 0


def test_processes_of_the_version_before_read_our_histories_and_we_read_theirs() -> None:
    """While both versions run."""
    headers, _ = encode(Send(message=Message(id="1", source="s", type="t", body=b""), history=(failure(1, "Traceback"),)))
    text = dict(headers)[f"ce-{HISTORY}"]
    (before,) = msgspec.json.decode(text, type=tuple[FailureOfTheVersionBefore, ...])
    assert (before.reason, before.traceback, before.at) == ("ValueError: 1", "Traceback", 1)
    theirs = msgspec.json.encode([msgspec.structs.replace(before, traceback="")]).decode()
    (ours,) = arrival(1, "q", ((f"ce-{HISTORY}", theirs),), b"", suspect=False).history
    assert (ours.reason, ours.traceback, ours.handler, ours.at) == ("ValueError: 1", "", "", 1)
