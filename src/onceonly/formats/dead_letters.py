"""Dead letters as documents: JSON that people can read in the service's own tools, with the letter itself in one field.

    {"onceonly": 1, "entry": "...", "page": 0, "endpoint": "shop", "type": "order", "reason": "...", "letter": BASE64}

`letter` holds the letter as SQL stores keep it; one that is too large for a document is in `parts` instead, other documents.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from onceonly.formats.records import decode_letter, encode_letter
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SchemaTooNew

FORMAT = 1
LAST_PAGE = 99_999_999
"""The highest number of a page: names of pages have eight digits."""
_ENTRY = re.compile("[0-9a-f]{32}")
_PageNumber: TypeAlias = Annotated[int, Meta(ge=0, le=LAST_PAGE)]
_SHARE = 3
"""A letter stays in its document when it takes no more than this part of what a document holds: base64 and JSON add to it."""
_REASONS = 100
"""A reason may be searched up to as many letters as a document holds bytes, divided by this."""


class Head(Struct, frozen=True, omit_defaults=True):
    """A letter's document. `entry` is what the list calls it, on the page with this number.

    `same` means that the message has the body of the delivery, which is kept once. `reason` is cut where it is very long.
    """

    onceonly: int
    entry: str
    page: _PageNumber
    endpoint: str
    type: str
    reason: str
    same: bool = False
    letter: str = ""
    parts: tuple[str, ...] = ()


class _Version(Struct, frozen=True):
    onceonly: int


class DeadLetterEntry(Struct, frozen=True, array_like=True):
    """One line of the list: its own name, which no other entry ever has, and the key of the letter's document."""

    entry: str
    letter: str


class Page(Struct, frozen=True, omit_defaults=True):
    """A page of the list; one that was full once takes no more."""

    entries: tuple[DeadLetterEntry, ...] = ()
    full: bool = False


class Root(Struct, frozen=True):
    """Where the list ends: the number of its last page."""

    last: _PageNumber


_Kind = TypeVar("_Kind", Head, Page, Root)
_encode = msgspec.json.Encoder().encode


def pack(letter: DeadLetter, *, entry: str, page: int, room: int) -> tuple[Head, Mapping[str, bytes]]:
    """Return a letter's document, and the parts that it does not hold itself, by key; `room` is what a document holds."""
    same = letter.message is not None and letter.message.body == letter.body
    slim = replace(letter, message=replace(letter.message, body=b"")) if same and letter.message else letter
    stored = encode_letter(slim)
    parts: dict[str, bytes] = {}
    if len(stored) > room // _SHARE:
        starts = range(0, len(stored), room)
        names = _part_names(entry, len(starts))
        parts = {name: stored[start : start + room] for name, start in zip(names, starts, strict=True)}
    head = Head(
        onceonly=FORMAT,
        entry=entry,
        page=page,
        endpoint=letter.endpoint,
        type=letter.message.type if letter.message else "",
        reason=letter.reason[: room // _REASONS],
        same=same,
        letter="" if parts else b64encode(stored).decode(),
        parts=tuple(parts),
    )
    return head, parts


def _part_names(entry: str, count: int) -> tuple[str, ...]:
    return tuple(f"dead/part/{entry}/{number}" for number in range(count))


def unpack(head: Head, parts: Sequence[bytes]) -> DeadLetter:
    """Return the letter of a document and its parts. Raises SchemaTooNew."""
    letter = decode_letter(b"".join(parts) if head.parts else b64decode(head.letter))
    if head.same and letter.message is not None:
        return replace(letter, message=replace(letter.message, body=letter.body))
    return letter


def encode_head(head: Head) -> bytes:
    return _encode(head)


def encode_page(page: Page) -> bytes:
    return _encode(page)


def encode_root(root: Root) -> bytes:
    return _encode(root)


def decode_head(key: str, stored: bytes) -> Head:
    """Read a letter's document. Raises SchemaTooNew for what this version cannot read."""
    head = _decode(key, stored, Head)
    if head.onceonly > FORMAT:
        raise SchemaTooNew(f"document {key!r} was written by a newer onceonly (format {head.onceonly}): upgrade this process")
    if head.parts and not (_ENTRY.fullmatch(head.entry) and head.parts == _part_names(head.entry, len(head.parts))):
        raise SchemaTooNew(f"document {key!r} is not a readable dead letter (its parts are not its own)")  # never delete those
    return head


def is_newer(stored: bytes) -> bool:
    """Return whether a letter's document is one of a newer version, and not a damaged one."""
    try:
        return msgspec.json.decode(stored, type=_Version).onceonly > FORMAT
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def decode_page(key: str, stored: bytes) -> Page:
    """Read a page of the list. Raises SchemaTooNew for what this version cannot read."""
    return _decode(key, stored, Page)


def decode_root(key: str, stored: bytes) -> Root:
    """Read where the list ends. Raises SchemaTooNew for what this version cannot read."""
    return _decode(key, stored, Root)


def _decode(key: str, stored: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(stored, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaTooNew(f"document {key!r} is not a readable dead letter ({error}): upgrade this process") from error
