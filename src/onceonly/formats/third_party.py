"""Calls to services that are not ours, as messages: the request and what follows it up, then that message with the response.

Both are JSON, so that a person can read them in a dead letter. A body that is UTF-8 is a string, any other is Base64.
"""

from base64 import b64decode, b64encode

import msgspec
from msgspec import Struct

from onceonly.model.message import Message
from onceonly.model.remote import Response
from onceonly.model.third_party import ANSWERED, ApiCall, FollowUp

_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class _Bytes(Struct, omit_defaults=True):
    """A body: one of the two is set."""

    text: str = ""
    base64: str = ""


class _Request(Struct):
    url: str
    method: str
    key: str
    since: int
    until: int
    content_type: str
    headers: tuple[tuple[str, str], ...]
    body: _Bytes


class _Then(Struct, omit_defaults=True):
    type: str
    content_type: str
    body: _Bytes
    class_name: str = ""


class _Called(Struct):
    call: _Request
    then: _Then


class _Answer(Struct):
    status: int
    content_type: str
    body: _Bytes


class _Answered(Struct):
    message: _Bytes
    response: _Answer


_encode = msgspec.json.Encoder().encode
_decode_called = msgspec.json.Decoder(_Called).decode
_decode_answered = msgspec.json.Decoder(_Answered).decode


def encode_call(call: ApiCall, then: FollowUp) -> bytes:
    """Write the body of the message that has a call made."""
    request = _Request(
        call.url, call.method, call.key, call.since, call.until, call.content_type, call.headers, _readable(call.body)
    )
    return _encode(_Called(request, _Then(then.type, then.content_type, _readable(then.body), then.class_name)))


def decode_call(message: Message) -> tuple[ApiCall, FollowUp]:
    """Read it back. Raises ValueError."""
    try:
        called = _decode_called(message.body)
        return _call(called.call), FollowUp(
            type=called.then.type,
            body=_bytes(called.then.body),
            content_type=called.then.content_type,
            class_name=called.then.class_name,
        )
    except _UNREADABLE as error:
        raise ValueError(f"the stored call cannot be read: {error}") from error


def call_in(message: Message) -> ApiCall:
    """Return the call that a message has made. Raises ValueError."""
    return decode_call(message)[0]


def encode_answered(then: FollowUp, response: Response) -> bytes:
    """Write the body of the message that follows a call up."""
    answer = _Answer(response.status, response.content_type, _readable(response.body))
    return _encode(_Answered(_readable(then.body), answer))


def own_body(message: Message) -> bytes:
    """Return the body for the handler of a message. Raises ValueError if it follows a call up and cannot be read."""
    return _bytes(_answered(message).message) if message.datacontenttype == ANSWERED else message.body


def response_to_call(message: Message) -> Response | None:
    """Return the response to the call that a message follows up; None for every other message. Raises ValueError."""
    if message.datacontenttype != ANSWERED:
        return None
    found = _answered(message).response
    return Response(status=found.status, body=_bytes(found.body), content_type=found.content_type)


def _answered(message: Message) -> _Answered:
    try:
        return _decode_answered(message.body)
    except _UNREADABLE as error:
        raise ValueError(f"the response in the message cannot be read: {error}") from error


def _call(found: _Request) -> ApiCall:
    return ApiCall(
        url=found.url,
        method=found.method,
        key=found.key,
        since=found.since,
        until=found.until,
        content_type=found.content_type,
        headers=found.headers,
        body=_bytes(found.body),
    )


def _readable(body: bytes) -> _Bytes:
    try:
        return _Bytes(text=body.decode())
    except UnicodeDecodeError:
        return _Bytes(base64=b64encode(body).decode())


def _bytes(found: _Bytes) -> bytes:
    return b64decode(found.base64, validate=True) if found.base64 else found.text.encode()
