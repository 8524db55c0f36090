"""Messages as brokers take them: that must fit, with headers in one text, or as one text as a whole.

A broker without headers gets a CloudEvent in JSON format. Other headers than attributes are in the attribute `onceonlyheaders`,
a list of pairs in JSON. A text that would be too long is compressed.
"""

import binascii
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from onceonly.formats.cloudevents import PREFIX, STRUCTURED, UNREADABLE, encode, parse_structured
from onceonly.model.errors import QueueMissing
from onceonly.model.message import Headers, Send

__all__ = ["StructuredMessage", "decode_pairs", "queue_missing", "read_structured", "write_structured", "write_to_fit"]

_Written = TypeVar("_Written")
_decode_pairs = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode
HEADERS, DUE = "onceonlyheaders", "onceonlydue"
MOST_UNPACKED = 4 * 1024 * 1024
SLACK_BYTES = 64
"""By how much a text may be longer than base64, and is written as it is."""
_PACKED = "onceonly-zlib:"
_SPACE = b" \t\n\r"
_RESERVED = frozenset({"data", "data_base64", "datacontenttype", HEADERS, DUE})
_LATEST = 253_402_300_799_999  # the end of the year 9999, in milliseconds
_PLACE = f"the attribute `{HEADERS}`"


def write_to_fit(send: Send, write: Callable[[Headers, bytes], _Written | None], prefix: str = PREFIX) -> _Written | None:
    """Write a message, without the tracebacks of its history if they make it too large. None if it is too large without, too.

    `write` returns None for what is too large.
    """
    written = write(*encode(send, prefix))
    if written is None and send.history:
        written = write(*encode(send, prefix, tracebacks=False))
    return written


def decode_pairs(text: str, place: str) -> Headers:
    """Read headers that are a list of pairs in JSON. Raises ValueError, which names their place, such as "the field `x`"."""
    try:
        return _decode_pairs(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not a list of pairs of strings in JSON: {error}") from error


def queue_missing(queue: str, place: str = "") -> QueueMissing:
    """Make the error about a queue, such as "queue 'shop'", that does not exist at a place."""
    where = f" at {place}" if place else ""
    return QueueMissing(f"{queue} does not exist{where}: run `onceonly topology create module:endpoint`, or start its endpoint")


class StructuredMessage(Struct, frozen=True):
    """What is in a text. `due` is in milliseconds since 1970, or 0."""

    headers: Headers
    body: bytes
    due: int = 0


def write_structured(headers: Headers, body: bytes, *, fits: Callable[[str], bool], due: int = 0) -> str | None:
    """Return the text for headers and a body as `encode` returns them. None if it does not fit, or has a lone surrogate."""
    try:
        text = _document(headers, body, due)
        if not fits(text):
            text = _PACKED + b64encode(zlib.compress(text.encode(), 9)).decode()
    except UnicodeEncodeError:
        return None
    return text if fits(text) else None


def read_structured(text: str, foreign: tuple[str, str]) -> StructuredMessage:
    """Return what is in a text. Never raises: any program can send one.

    A CloudEvent in JSON format is read, also in base64, as some clients write every text. Any other text is a body, and
    `foreign` is its only header.
    """
    try:
        document = _unpacked(text)
    except ValueError as error:
        return StructuredMessage(
            ((UNREADABLE, f"the message cannot be decompressed: {error}. Correct the sender"),), _raw(text)
        )
    document = _without_base64(document)
    if not document.lstrip(_SPACE).startswith(b"{"):
        return StructuredMessage((foreign,), document)
    try:
        attributes, body = parse_structured(document)
    except (ValueError, RecursionError):
        is_event = b'"specversion"' in document
        return StructuredMessage((("content-type", STRUCTURED) if is_event else foreign,), document)
    if "specversion" not in attributes:
        return StructuredMessage((foreign,), document)
    due, pairs = attributes.pop(DUE, ""), attributes.pop(HEADERS, "[]")
    content_type = attributes.pop("datacontenttype")
    headers: list[tuple[str, str]] = [(PREFIX + name, value) for name, value in attributes.items()]
    try:
        headers += [("content-type", content_type), *decode_pairs(pairs, _PLACE)]
    except ValueError as error:
        return StructuredMessage(((UNREADABLE, f"{error}. Correct the sender"), *headers), document)
    return StructuredMessage(tuple(headers), body, _due(due))


def _document(headers: Headers, body: bytes, due: int) -> str:
    document: dict[str, Any] = {}
    others: list[tuple[str, str]] = []
    for name, value in headers:
        attribute = name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""
        if name == "content-type" and "datacontenttype" not in document:
            document["datacontenttype"] = value
        elif attribute and attribute not in document and attribute not in _RESERVED and attribute == attribute.lower():
            document[attribute] = value
        else:
            others.append((name, value))
    if others:
        document[HEADERS] = msgspec.json.encode(others).decode()
    if due:
        document[DUE] = str(due)
    if body:
        document |= _data(body, document.get("datacontenttype", ""))
    text = msgspec.json.encode(document).decode()
    # XML has no such characters. Data that is JSON has none either: see `_data`.
    return text.replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")


def _data(body: bytes, content_type: str) -> dict[str, Any]:
    """Return the body as JSON or as text if exactly the same bytes are read from it, else in base64.

    A text with many letters that JSON escapes is in base64, too.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            msgspec.json.decode(body)
            text = body.decode()
        except (ValueError, RecursionError):
            text = "\r"
        is_exact = body == body.strip(_SPACE) and not any(letter in text for letter in "\r\ufffe\uffff")
        if is_exact:
            return {"data": msgspec.Raw(body)}
    elif content_type.startswith("text/"):
        try:
            text = body.decode()
        except ValueError:
            text = ""
        if text and len(msgspec.json.encode(text)) <= SLACK_BYTES + len(body) * 4 // 3:
            return {"data": text}
    return {"data_base64": b64encode(body).decode()}


def _unpacked(text: str) -> bytes:
    """Return the document of a text. Raises ValueError for a compressed one that cannot be read."""
    if not text.startswith(_PACKED):
        return _raw(text)
    inflater = zlib.decompressobj()
    try:
        document = inflater.decompress(b64decode(text.removeprefix(_PACKED), validate=True), MOST_UNPACKED)
    except (zlib.error, binascii.Error, ValueError) as error:
        raise ValueError(str(error)) from error
    if not inflater.eof:
        raise ValueError(f"it is incomplete, or longer than {MOST_UNPACKED} bytes")
    return document


def _without_base64(document: bytes) -> bytes:
    """Return what a text in base64 stands for, if that is a JSON object."""
    if document[:1] == b"{":
        return document
    try:
        decoded = b64decode(document.strip(_SPACE), validate=True)
    except ValueError:
        return document
    return decoded if decoded.lstrip(_SPACE).startswith(b"{") else document


def _due(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_LATEST)) else 0


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
