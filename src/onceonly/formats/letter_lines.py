"""Dead letters as JSON Lines: every field, bodies in base64, one letter for each line."""

import msgspec
from msgspec import Struct

from onceonly.formats.escaping import escape_json
from onceonly.model.dead_letter import DeadLetter

FORMAT = 1


class LineHead(Struct, frozen=True, kw_only=True):
    """What a line contains in addition to the fields of a letter. A line without it can be read as well.

    `key` is that of the letter in the store. `redacted` if fields were hidden: such a line is not the letter any more.
    """

    format: int = FORMAT
    key: str = ""
    redacted: bool = False


_encode = msgspec.json.Encoder().encode


def to_line(letter: DeadLetter) -> bytes:
    """Return the line of one letter, with its end."""
    return _line({"format": FORMAT, "key": letter.key}, letter)


def to_redacted_line(letter: DeadLetter, key: str) -> bytes:
    """Return the line of a letter with hidden fields, which is not imported. `key` is that of the letter in the store."""
    return _line({"format": FORMAT, "key": key, "redacted": True}, letter)


def _line(head: dict[str, object], letter: DeadLetter) -> bytes:
    return _encode(head)[:-1] + b"," + escape_json(_encode(letter)[1:].decode()).encode() + b"\n"
