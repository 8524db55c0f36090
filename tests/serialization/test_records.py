"""Effects and messages as stored."""

import pytest

from onceonly.model.errors import SchemaTooNew
from onceonly.model.message import Message, Send
from onceonly.serialization.records import (
    decode_effects,
    decode_headers,
    decode_message,
    encode_effects,
    encode_headers,
    encode_message,
)

MESSAGE = Message(id="ü", source="s", type="T", body=b"\x00\xff", extensions=(("a", "b"),), headers=(("X", "y"),))


def test_effects_come_back_as_they_were() -> None:
    """Order, bodies and delays are kept."""
    effects = (Send(message=MESSAGE, to="billing", due=5), Send(message=MESSAGE))
    assert decode_effects(encode_effects(effects)) == effects
    assert decode_effects(encode_effects(())) == ()


def test_messages_and_headers_come_back_as_they_were() -> None:
    """Also what is not ASCII."""
    assert decode_message(encode_message(MESSAGE)) == MESSAGE
    assert decode_headers(encode_headers((("ä", "1"), ("ä", "2")))) == (("ä", "1"), ("ä", "2"))


def test_a_newer_format_is_refused_and_says_so() -> None:
    """An older process must not guess."""
    with pytest.raises(SchemaTooNew, match="newer onceonly"):
        decode_effects(b"\x02" + encode_effects(())[1:])
