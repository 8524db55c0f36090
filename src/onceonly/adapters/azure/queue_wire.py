"""Messages of Azure queues: a text of at most 64 KiB. Azure has no headers, so a message is a CloudEvent in JSON format.

Other headers than attributes are in the attribute `onceonlyheaders`, a list of pairs in JSON. A text that would be too long is
compressed. What was released has a mark before its text.
"""

import binascii
import re
import zlib
from base64 import b64decode, b64encode
from typing import Any

import msgspec
from msgspec import Struct

from onceonly.formats.cloudevents import PREFIX, STRUCTURED, UNREADABLE, parse_structured
from onceonly.model.message import Headers

HEADERS, DUE = "onceonlyheaders", "onceonlydue"
MESSAGE_ID = "azure-message-id"
"""The header of a foreign message without attributes that has the id that the service gave it."""
LONGEST_TEXT = 64 * 1024
MARK_BYTES = 64
"""The part of a text that is left for the mark of a release."""
MOST_UNPACKED = 4 * 1024 * 1024
_PACKED = "onceonly-zlib:"
_MARK = "onceonly-released:"
_mark = re.compile(rf"{_MARK}(\d{{1,9}})\n").match
_SPACE = b" \t\n\r"
_RESERVED = frozenset({"data", "data_base64", "datacontenttype", HEADERS, DUE})
_LATEST = 253_402_300_799_999  # the end of the year 9999, in milliseconds
_decode_pairs = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode


class Content(Struct, frozen=True):
    """What is in a text. `due` is in milliseconds since 1970, or 0."""

    headers: Headers
    body: bytes
    due: int = 0


def write(headers: Headers, body: bytes, *, due: int = 0) -> str | None:
    """Return the text for headers and a body as `encode` returns them. None if it is too long, or has a lone surrogate."""
    try:
        text = _document(headers, body, due)
        if size_of(text) > LONGEST_TEXT - MARK_BYTES:
            text = _PACKED + b64encode(zlib.compress(text.encode(), 9)).decode()
    except UnicodeEncodeError:
        return None
    return text if size_of(text) <= LONGEST_TEXT - MARK_BYTES else None


def read(text: str, message_id: str) -> Content:
    """Return what is in a text without its mark. Never raises: any program can send one.

    A CloudEvent in JSON format is read, also in base64, as some clients write every text. Any other text is a body, and its
    only header is the id of the message.
    """
    try:
        document = _unpacked(text)
    except ValueError as error:
        return Content(((UNREADABLE, f"the message cannot be decompressed: {error}. Correct the sender"),), _raw(text))
    document = _without_base64(document)
    if not document.lstrip(_SPACE).startswith(b"{"):
        return Content(((MESSAGE_ID, message_id),), document)
    try:
        attributes, body = parse_structured(document)
    except (ValueError, RecursionError):
        is_event = b'"specversion"' in document
        return Content((("content-type", STRUCTURED) if is_event else (MESSAGE_ID, message_id),), document)
    if "specversion" not in attributes:
        return Content(((MESSAGE_ID, message_id),), document)
    due, pairs = attributes.pop(DUE, ""), attributes.pop(HEADERS, "[]")
    content_type = attributes.pop("datacontenttype")
    headers: list[tuple[str, str]] = [(PREFIX + name, value) for name, value in attributes.items()]
    try:
        headers += [("content-type", content_type), *_decode_pairs(pairs)]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = f"the attribute `{HEADERS}` is not a list of pairs of strings in JSON: {error}. Correct the sender"
        return Content(((UNREADABLE, why), *headers), document)
    return Content(tuple(headers), body, _due(due))


def marked(text: str, count: int) -> str | None:
    """Put a mark before a text: it was released when it had been delivered `count` times. None if it is too long then."""
    text = f"{_MARK}{count}\n{text}"
    return text if size_of(text) <= LONGEST_TEXT else None


def unmarked(text: str) -> tuple[str, int]:
    """Return a text without its mark, and after how many deliveries it was released; 0 if never."""
    found = _mark(text)
    return (text[found.end() :], int(found[1])) if found else (text, 0)


def size_of(text: str) -> int:
    """Return how many bytes a text has in XML, which is what the service gets."""
    return len(text.encode()) + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))


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
        if text and len(msgspec.json.encode(text)) <= MARK_BYTES + len(body) * 4 // 3:
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
