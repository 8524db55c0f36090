"""Calls to services that are not ours, as messages: the request and what follows it up, then that message with the response.

Both are JSON, so that a person can read them in a dead letter. A body that is UTF-8 is a string, any other is Base64.
"""

from base64 import b64decode, b64encode
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs

from onceonly.model.message import Message
from onceonly.model.remote import Response
from onceonly.model.third_party import ANSWERED, ApiCall, FollowUp

_UNREADABLE = (msgspec.MsgspecError, ValueError, KeyError, RecursionError)
_Part = TypeVar("_Part", ApiCall, FollowUp, Response)


class _Bytes(Struct, omit_defaults=True):
    """A body: one of the two is set."""

    text: str = ""
    base64: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, dict[str, Any]]).decode


def encode_call(call: ApiCall, then: FollowUp) -> bytes:
    """Write the body of the message that has a call made."""
    return _encode({"call": _written(call), "then": _written(then)})


def decode_call(message: Message) -> tuple[ApiCall, FollowUp]:
    """Read it back. Raises ValueError."""
    try:
        found = _decode(message.body)
        return _read(found["call"], ApiCall), _read(found["then"], FollowUp)
    except _UNREADABLE as error:
        raise ValueError(f"the stored call cannot be read: {error}") from error


def call_in(message: Message) -> ApiCall:
    """Return the call that a message has made. Raises ValueError."""
    return decode_call(message)[0]


def encode_answered(then: FollowUp, response: Response) -> bytes:
    """Write the body of the message that follows a call up."""
    return _encode({"message": _readable(then.body), "response": _written(response)})


def own_body(message: Message) -> bytes:
    """Return the body for the handler of a message. Raises ValueError if it follows a call up and cannot be read."""
    return _answered(message)[0] if message.datacontenttype == ANSWERED else message.body


def response_to_call(message: Message) -> Response | None:
    """Return the response to the call that a message follows up; None for every other message. Raises ValueError."""
    return _answered(message)[1] if message.datacontenttype == ANSWERED else None


def _answered(message: Message) -> tuple[bytes, Response]:
    try:
        found = _decode(message.body)
        return _bytes(found["message"]), _read(found["response"], Response)
    except _UNREADABLE as error:
        raise ValueError(f"the response in the message cannot be read: {error}") from error


def _written(part: ApiCall | FollowUp | Response) -> dict[str, object]:
    return {**structs.asdict(part), "body": _readable(part.body)}


def _read(found: dict[str, Any], kind: type[_Part]) -> _Part:
    return msgspec.convert({**found, "body": _bytes(found["body"])}, kind)


def _readable(body: bytes) -> _Bytes:
    try:
        return _Bytes(text=body.decode())
    except UnicodeDecodeError:
        return _Bytes(base64=b64encode(body).decode())


def _bytes(found: object) -> bytes:
    body = msgspec.convert(found, _Bytes)
    return b64decode(body.base64, validate=True) if body.base64 else body.text.encode()
