"""Messages in the words of SQS: text as the body, and at most ten attributes.

SQS takes ten attributes, so all headers of a message are in one of them, as pairs in JSON. Other programs may send plain
attributes instead: each is a header. Messages of another format than CloudEvents have such attributes, as far as SQS takes
them. SQS refuses some characters, such as those below U+0020. A body with such a character, or one that is not UTF-8, is
written in base64.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from onceonly.formats.cloudevents import PREFIX, UNREADABLE, attribute_of
from onceonly.model.escaping import raw
from onceonly.model.message import PARTITION_KEY, Headers
from onceonly.queues.messages import decode_pairs

HEADERS = "onceonly-headers"
"""The attribute with all headers: a list of pairs, in JSON."""
BODY = "onceonly-body"
"""The attribute of a body that is not written as it is: `base64` or `empty`."""
DUE = "onceonly-due"
"""The attribute with the time before which a message is not delivered, in milliseconds since 1970."""
MESSAGE_ID, DEDUPLICATION_ID = "sqs-message-id", "sqs-message-deduplication-id"
"""The headers with which a message of another program is delivered, in addition to its attributes."""
MOST_PLAIN = 7
"""Headers that are attributes for other programs. SQS takes ten attributes, and three are for `HEADERS`, `BODY` and `DUE`."""
BASE64, EMPTY = "base64", "empty"
_STRING = "String"
_refused = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]").search
_is_group = re.compile(r"[!-~]{1,128}").fullmatch
_is_attribute = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*").fullmatch
_is_due = re.compile(r"[0-9]{1,15}").fullmatch
_PLACE = f"the attribute `{HEADERS}`"
_encode = msgspec.json.Encoder().encode


class SqsContent(Struct, frozen=True):
    """A message as SQS and SNS take it. `size` is in bytes as they count them. `group` is empty for one without a key."""

    body: str
    attributes: Mapping[str, Mapping[str, str]]
    size: int
    group: str = ""


class SqsArrival(Struct, frozen=True):
    """A message as it was received. `count` is how often. `due` is 0 for one that was not delayed."""

    handle: str
    headers: Headers
    body: bytes
    due: int
    count: int
    formatted: bool = False
    """Whether this library has sent it in another format than CloudEvents."""


def write(headers: Headers, body: bytes, *, due: int = 0, formatted: bool = False, group: str = "") -> SqsContent:
    """Write a message. It is for the caller to compare its size with the limits.

    With `formatted`, headers are attributes for other programs, and `group` is the partition key.
    """
    text, kind = _text(body)
    values = _plain_attributes(headers) if formatted else {HEADERS: _packed(headers)}
    if kind:
        values[BODY] = kind
    if due:
        values[DUE] = str(due)
    size = sum(len(name) + len(_STRING) + len(value.encode()) for name, value in values.items()) + len(text.encode())
    attributes = {name: {"DataType": _STRING, "StringValue": value} for name, value in values.items()}
    return SqsContent(text, attributes, size, _group(group) if formatted else group_of(headers))


def read(message: Mapping[str, Any]) -> SqsArrival:
    """Read a message that was received. Never raises: what cannot be read is unreadable, with its attributes."""
    attributes: dict[str, Any] = message.get("MessageAttributes") or {}
    system: dict[str, str] = message.get("Attributes") or {}
    values = {name: _value(attribute) for name, attribute in sorted(attributes.items())}
    text: str = message.get("Body") or ""
    due = values.get(DUE, "")
    headers: Headers
    others: Headers = ()
    try:
        others = tuple((name, value) for name, value in values.items() if name not in {HEADERS, BODY, DUE})
        known = _pairs(values[HEADERS]) if HEADERS in values else ()
        if HEADERS not in values and not due:
            known = _foreign_headers(message, system, others)
        headers = (*known, *others)
        body = _body(text, values.get(BODY, ""))
    except ValueError as error:
        headers, body = ((UNREADABLE, f"{error}. Correct the sender"), *values.items()), raw(text)
    return SqsArrival(
        handle=message.get("ReceiptHandle", ""),
        headers=headers,
        body=body,
        due=int(due) if _is_due(due) else 0,
        count=int(system.get("ApproximateReceiveCount", "1")),
        formatted=bool(due and others),
    )


def group_of(headers: Headers) -> str:
    """Return the message group of a message: its partition key, or a hash of a key that SQS does not take. Empty without."""
    return _group(next((value for name, value in headers if attribute_of(name) == PARTITION_KEY), ""))


def _group(key: str) -> str:
    return key if not key or _is_group(key) else blake2b(raw(key), digest_size=16).hexdigest()


def _plain_attributes(headers: Headers) -> dict[str, str]:
    """Return headers as attributes; those that cannot be any are in one of them, as pairs."""
    plain: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    for name, value in headers:
        if len(plain) < MOST_PLAIN and name not in plain and _is_attribute(name) and value and not _refused(value):
            plain[name] = value
        else:
            others.append((name, value))
    return plain | ({HEADERS: _packed(tuple(others))} if others else {})


def _packed(headers: Headers) -> str:
    """Write headers as JSON, with escapes for what SQS refuses and for text that is not Unicode."""
    try:
        written = _encode(headers).decode()
    except UnicodeEncodeError:
        return json.dumps(headers)
    return json.dumps(headers) if _refused(written) else written


def _pairs(text: str) -> Headers:
    try:
        return decode_pairs(text, _PLACE)
    except ValueError:
        pairs = _surrogate_pairs(text)
        if pairs is None:
            raise
        return pairs


def _surrogate_pairs(text: str) -> Headers | None:
    """Read pairs with escaped lone surrogates, which only Python's own decoder takes. None for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(
        isinstance(pair, list) and [type(each) for each in pair] == [str, str] for pair in found
    ):
        return None
    return tuple((name, value) for name, value in found)


def _foreign_headers(message: Mapping[str, Any], system: Mapping[str, str], headers: Headers) -> Headers:
    """Return the headers that a message of another program has in addition to its attributes."""
    found = [(MESSAGE_ID, message.get("MessageId", ""))]
    if deduplication := system.get("MessageDeduplicationId"):
        found.append((DEDUPLICATION_ID, deduplication))
    if (group := system.get("MessageGroupId")) and not group_of(headers):
        found.append((PREFIX + PARTITION_KEY, group))
    return tuple(found)


def _value(attribute: Mapping[str, Any]) -> str:
    value = attribute.get("StringValue")
    if value is None:
        value = attribute.get("BinaryValue", b"")
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogateescape")


def _text(body: bytes) -> tuple[str, str]:
    """Return the text of a body, and how it was written: empty where it was not changed."""
    if not body:
        return EMPTY, EMPTY
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return b64encode(body).decode(), BASE64
    return (b64encode(body).decode(), BASE64) if _refused(text) else (text, "")


def _body(text: str, kind: str) -> bytes:
    if kind == EMPTY:
        return b""
    if kind == BASE64:
        try:
            return b64decode(text, validate=True)
        except ValueError as error:
            raise ValueError(f"the body is not base64, as its attribute `{BODY}` says: {error}") from error
    if kind:
        raise ValueError(f"the attribute `{BODY}` is {kind!r:.80}: use `{BASE64}`, `{EMPTY}` or no such attribute")
    return raw(text)
