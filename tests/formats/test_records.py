"""Records and headers as stored."""

import pytest
from msgspec.structs import replace

from onceonly.formats.records import (
    decode_headers,
    decode_record,
    encode_headers,
    encode_record,
)
from onceonly.model.errors import SchemaTooNew
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.model.token import Token

MESSAGE = Message(id="ü", source="s", type="T", body=b"\x00\xff", extensions=(("a", "b"),), headers=(("X", "y"),))

TOKEN = "0123"  # noqa: S105 - no secret


def test_records_come_back_as_they_were() -> None:
    """Order, bodies, delays and tokens are kept; an attempt and its artifacts are not stored."""
    effects = (Send(message=MESSAGE, to="billing", due=5), Send(message=MESSAGE))
    tokens = Record(MESSAGE.identity, effects, unit="Account/1", token=TOKEN, issued=(Token("u", "billing"),))
    for record in (Record(MESSAGE.identity, effects), Record(MESSAGE.identity), tokens):
        assert decode_record(MESSAGE.identity, encode_record(record), record.unit) == record
    assert encode_record(replace(tokens, attempt="a")) == encode_record(tokens)


def test_headers_come_back_as_they_were() -> None:
    """Also what is not ASCII."""
    assert decode_headers(encode_headers((("ä", "1"), ("ä", "2")))) == (("ä", "1"), ("ä", "2"))


def test_a_newer_format_is_refused_and_says_so() -> None:
    """An older process must not guess."""
    with pytest.raises(SchemaTooNew, match="newer onceonly"):
        decode_record(MESSAGE.identity, b"\x02" + encode_record(Record(MESSAGE.identity))[1:])
