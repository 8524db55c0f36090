"""CloudEvents in headers and in JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.formats.cloudevents import arrival, encode, is_copy, message_of, parse_structured, take_apart
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
