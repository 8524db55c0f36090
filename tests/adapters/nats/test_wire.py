"""Headers as NATS carries them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceonly.adapters.nats.wire import is_unreadable, read_headers, write_headers
from onceonly.formats.cloudevents import RAW_PROPERTIES

NAMES = st.one_of(st.sampled_from(["ce-id", "ce-subject", "X-Case", "Nats-Msg-Id", "nats-rollup"]), st.text(min_size=1))
VALUES = st.one_of(st.text(), st.binary().map(lambda value: value.decode("utf-8", "surrogateescape")))


@given(st.lists(st.tuples(NAMES, VALUES)))
@example([(":", ""), ("", ":"), ("a: b", " c\r\n")])
def test_every_header_arrives_as_it_was_written(headers: list[tuple[str, str]]) -> None:
    """Whatever is in it, also what NATS itself could not carry."""
    assert read_headers(write_headers(tuple(headers))) == tuple(headers)


@given(st.lists(st.tuples(NAMES, VALUES)))
def test_no_header_of_a_message_reaches_the_server(headers: list[tuple[str, str]]) -> None:
    """`Nats-Msg-Id` of a copy would make the server drop it."""
    written = write_headers(tuple(headers)).lower()
    assert not [line for line in written.split(b"\r\n") if line.startswith(b"nats-")]


def test_attributes_are_percent_encoded_and_other_headers_are_not() -> None:
    """As CloudEvents does it in headers."""
    written = write_headers((("ce-subject", "köln 7"), ("x-shop", "köln 7")))
    assert written == "NATS/1.0\r\nce-subject: k%C3%B6ln%207\r\nx-shop: köln 7\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("value", "read"), [("100%", "100%"), ("%41", "%41"), ("a%20b", "a b"), ("a b", "a b"), ("%zz", "%zz"), ("%FF", "\udcff")]
)
def test_only_what_an_encoder_writes_is_decoded(value: str, read: str) -> None:
    """A producer that does not encode means `%41` itself: it and `A` are two ids."""
    assert read_headers(f"NATS/1.0\r\nce-id: {value}\r\n\r\n".encode()) == (("ce-id", read),)


@pytest.mark.parametrize("lines", [b"no colon", b": no name", b"  : blank", b"ok: 1\r\nbroken"])
def test_malformed_headers_are_unreadable_with_their_bytes(lines: bytes) -> None:
    """A dead letter shows them."""
    headers = read_headers(b"NATS/1.0\r\n" + lines + b"\r\n\r\n")
    assert is_unreadable(headers)
    assert headers[1][0] == RAW_PROPERTIES


@given(st.binary())
def test_reading_never_raises(raw: bytes) -> None:
    """Whatever a producer sends."""
    read_headers(raw)
    read_headers(b"NATS/1.0\r\n" + raw)
