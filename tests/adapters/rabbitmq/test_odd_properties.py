"""Deliveries with properties that no client library writes: each is read, or is unreadable with its bytes. Nothing raises."""

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands as spec

from onceonly import IdentityHeader
from onceonly.adapters.rabbitmq.frames import ConsumedMessage, MessageProperties, read_properties
from onceonly.adapters.rabbitmq.wire import headers_of, properties
from onceonly.endpoint.received_message import read
from onceonly.formats.cloudevents import RAW_PROPERTIES, UNREADABLE, arrival
from onceonly.formats.records import decode_letter, encode_letter, encode_record
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity
from onceonly.model.message import Send, Unreadable
from onceonly.model.record import Record
from tests.adapters.rabbitmq.frames import frames, passed, taking
from tests.adversary.raw_amqp import field, nested, table, text
from tests.adversary.raw_amqp import properties as raw_properties


def undecodable() -> list[tuple[str, bytes]]:
    """Return deliveries whose properties cannot be decoded, and a part of what is said about them."""
    deliver, header, body = frames(b"body", properties=spec.Basic.Properties(headers={"a": "b"}, app_id="x"))
    deep = table(field(b"t", b"F", nested(2000)))
    return [
        ("a table is longer or shorter", deliver + header.replace(b"\x00\x00\x00\x08\x01a", b"\x00\x00\x00\x07\x01a") + body),
        ("a table is longer or shorter", deliver + header.replace(b"S\x00\x00\x00\x01", b"S\x00\x00\x01\x01") + body),
        ("unknown type b'?'", deliver + header.replace(b"aS", b"a?") + body),
        ("do not fill their frame exactly", deliver + header.replace(b"\x01x", b"\xffx") + body),
        ("flags 0x200a", deliver + header.replace(b"\x20\x08", b"\x20\x0a") + body),
        ("do not fill", deliver + header[:6] + bytes([header[6] + 1]) + header[7:-1] + b"\0\xce" + body),
        ("more than 100 levels deep", deliver + raw_header(raw_properties(headers=deep), 4) + body),
        (
            "more than 100 levels deep",
            deliver + raw_header(raw_properties(headers=table(b"\0A" + nested(2000, arrays=True))), 4) + body,
        ),
        ("out of range", deliver + raw_header(b"\x20\x00", 4) + body),
    ]


def raw_header(known: bytes, size: int) -> bytes:
    """Return the frame with these properties, of a message with a body of this size."""
    content = b"\0\x3c\0\0" + size.to_bytes(8) + known
    return b"\x02\0\x01" + len(content).to_bytes(4) + content + b"\xce"


@pytest.mark.parametrize(("why", "sent"), undecodable())
async def test_properties_that_cannot_be_decoded_cost_their_delivery_only(why: str, sent: bytes) -> None:
    """The driver would end the connection over them. It sees nothing, the delivery has its bytes, and the next one is whole."""
    reader, taken = taking()
    reader.feed_data(sent)
    reader.feed_data(b"".join(frames(b"next")))
    assert [each.body for each in taken] == [b"body", b"next"]
    assert await passed(reader) == b""
    odd, after = taken
    assert (why in odd.problem or "unpack" in odd.problem or "index" in odd.problem, after.problem) == (True, "")
    assert odd.raw in sent
    (first, reason), (second, raw) = headers_of(odd)
    assert (first, second) == (UNREADABLE, RAW_PROPERTIES)
    assert odd.problem in reason
    assert b64decode(raw) == odd.raw


LENIENT = [
    (raw_properties(timestamp=1_700_000_000), {"timestamp": "2023-11-14T22:13:20Z"}),
    (raw_properties(timestamp=1_700_000_000_000), {"timestamp": "2023-11-14T22:13:20.000Z"}),
    (raw_properties(timestamp=1_700_000_000_000_000), {"timestamp": "1700000000000000"}),
    (raw_properties(timestamp=2**64 - 1), {"timestamp": str(2**64 - 1)}),
    (raw_properties(message_id=b"M\xfcller"), {"message-id": "M\udcfcller"}),
    (raw_properties(app_id=b"\xff"), {"app-id": "\udcff"}),
    (raw_properties(message_type=b"\xff"), {"ce-type": "\udcff"}),
    (raw_properties(content_type=b"\xff"), {"content-type": "\udcff"}),
    (raw_properties(headers=table(field(b"\xff", b"S", text(b"v")))), {"\udcff": "v"}),
    (raw_properties(headers=table(field(b"a", b"S", text(b"v")), field(b"a", b"S", text(b"w")))), {"a": "w"}),
    (raw_properties(headers=table(field(b"n" * 255, b"S", text(b"v")))), {"n" * 255: "v"}),
    (raw_properties(headers=table(field(b"t", b"T", b"\xff" * 8))), {"t": str(2**64 - 1)}),
    (raw_properties(headers=table(field(b"t", b"d", b"\x7f\xf8" + bytes(6)))), {"t": "\udcffnan \x7f\udcf8" + "\0" * 6}),
    (raw_properties(headers=table(field(b"t", b"D", b"\xff\xff\xff\xff\xff"))), {"t": "4.294967295E-246"}),
    (raw_properties(headers=table(field(b"ce-time", b"l", b"\x7f" * 8))), {"ce-time": str(0x7F7F7F7F7F7F7F7F)}),
    (raw_properties(headers=table(field(b"ce-time", b"l", b"\x80" + bytes(7)))), {"ce-time": str(-(2**63))}),
    (raw_properties(headers=table(field(b"ce-id", b"x", text(b"\xff")))), {"ce-id": "\udcff"}),
    (raw_properties(headers=table(field(b"CC", b"S", text(b"q")), field(b"BCC", b"S", text(b"q")))), {}),
]


@pytest.mark.parametrize(("known", "expected"), LENIENT)
async def test_odd_properties_are_read_and_no_byte_is_lost(known: bytes, expected: dict[str, str]) -> None:
    """What a common mistake of producers costs is nothing."""
    reader, taken = taking()
    reader.feed_data(frames()[0] + raw_header(known, 0))
    (odd,) = taken
    assert (odd.problem, dict(headers_of(odd))) == ("", expected)


IN_TABLES = [
    field(b"ce-id", kind, value)
    for kind, value in (
        (b"d", b"\x7f\xf8" + bytes(6)),
        (b"f", b"\x3f\x80\0\0"),
        (b"t", b"\x01"),
        (b"D", b"\0\0\0\0\x01"),
        (b"T", bytes(8)),
        (b"V", b""),
        (b"A", text(b"S" + text(b"a") + b"S" + text(b"b"))),
        (b"F", table(field(b"a", b"S", text(b"b")))),
    )
]


@pytest.mark.parametrize("id_", IN_TABLES)
async def test_an_id_that_is_neither_text_nor_an_integer_is_unreadable(id_: bytes) -> None:
    """Two different values must never become one identity, and these have no one text."""
    reader, taken = taking()
    reader.feed_data(frames()[0] + raw_header(raw_properties(headers=table(id_, field(b"ce-type", b"S", text(b"t")))), 0))
    delivery = arrival(1, "shop", headers_of(taken[0]), b"{}", suspect=False)
    found = read(delivery, ["t"], identity=None, max_body=10)
    assert isinstance(found, Unreadable)
    assert "`id`" in found.reason


@given(known=st.binary(max_size=200))
def test_whatever_the_properties_are_nothing_raises(known: bytes) -> None:
    """Any bytes behind any flags."""
    found, problem = read_properties(raw_header(known, 4))
    arrived = delivered(found, problem, raw_header(known, 4))
    assert arrived.raw == known
    headers = headers_of(arrived)
    delivery = arrival(1, "shop", headers, b"body", suspect=False)
    for rule in (None, IdentityHeader("message-id"), IdentityHeader("a")):
        result = read(delivery, ["t"], identity=rule, max_body=10)
        letter = DeadLetter(endpoint="shop", reason="r", headers=headers, body=b"")
        assert decode_letter(encode_letter(letter)) == letter
        assert isinstance(result, Unreadable) or encode_record(Record(result.identity, (Send(message=result),)))


@given(first=st.binary(max_size=12), second=st.binary(max_size=12), place=st.sampled_from(["id", "source", "message-id", "x"]))
def test_two_different_byte_strings_are_never_one_identity(first: bytes, second: bytes, place: str) -> None:
    """In every place that an identity is read from; what cannot be told apart is not read."""
    if place == "source":  # an empty one is the name of the queue
        first, second = first or b"shop", second or b"shop"
    identities = [identity_of(value, place) for value in (first, second)]
    if first != second and None not in identities:
        assert identities[0] != identities[1]


def delivered(found: MessageProperties, problem: str, frame: bytes) -> ConsumedMessage:
    """Make a delivery."""
    return ConsumedMessage(
        consumer_tag="", delivery_tag=1, redelivered=False, properties=found, body=b"", frame=frame, problem=problem
    )


def identity_of(value: bytes, place: str) -> Identity | None:
    """Return the identity of a message with these bytes in one place, or None."""
    parts = {"id": b"1", "source": b"s"} | ({place: value} if place in ("id", "source") else {})
    fields = [field(b"ce-" + name.encode(), b"S", text(part)) for name, part in parts.items()]
    fields += [field(b"x", b"x", text(value))] if place == "x" else []
    texts = {"message_id": value} if place == "message-id" else {}
    frame = raw_header(raw_properties(headers=table(*fields), **texts), 0)
    found, problem = read_properties(frame)
    headers = headers_of(delivered(found, problem, frame))
    rule = None if place in ("id", "source") else IdentityHeader(place)
    result = read(arrival(1, "shop", headers, b"", suspect=False), ["t"], identity=rule, max_body=10)
    return None if isinstance(result, Unreadable) else result.identity


def test_a_header_with_a_correlation_id_is_shown_to_other_programs() -> None:
    """They read the property. Without the header it is the conversation, or the message's own id."""
    attributes = (("ce-id", "1"), ("ce-conversationid", "2"))
    shown = [properties((*attributes, *extra)) for extra in ((), (("correlation-id", "3"),))]
    assert [known.shown.correlation_id for known in shown if known is not None] == ["2", "3"]
