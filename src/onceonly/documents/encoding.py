"""How keys and bodies are written where a service does not take every text, or can show JSON to people.

A byte of a key outside a safe set is written as = and two hex digits. Encoding goes byte by byte, so what begins with a prefix
begins with it when encoded, and no two keys get one name. A JSON body is stored as a value of the service's own where it comes
back byte by byte, so that people can read and query it.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

__all__ = ["is_text"]

_ESCAPED = re.compile(rb"=([0-9A-F]{2})")
GREATEST = 1 << 20  # bytes; a service's own form of a body can be several times as large
DEEPEST = 32  # every service holds this many levels


def encoder(safe: str) -> Callable[[str], str]:
    """Make an encoder that writes these ASCII characters as they are; "=" must not be among them."""
    names = [chr(byte) if chr(byte) in safe else f"={byte:02X}" for byte in range(256)]

    def encode(key: str) -> str:
        return "".join([names[byte] for byte in key.encode()])

    return encode


def decode(name: str) -> str:
    """Give the key that has this name. Raises ValueError for a name that no key has."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode("ascii")).decode()


def is_text(key: str) -> bool:
    """Tell whether a key has a form in UTF-8; no document has one that has not."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


class Nesting(Struct, frozen=True, kw_only=True):
    """What a service keeps exactly: whole numbers up to these, floats without a fraction or not, which names of fields."""

    least: int
    greatest: int
    whole_floats: bool
    is_name: Callable[[str], bool]


def nested(body: bytes, nesting: Nesting) -> dict[str, Any] | None:
    """Give a JSON object's value; None where the service would change it, so that it is kept as bytes.

    What is given comes back from `flat` as the same bytes, as long as the service keeps the order of fields.
    """
    if not body.startswith(b"{") or len(body) > GREATEST:
        return None
    try:
        value = msgspec.json.decode(body)
        is_same = flat(value) == body
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return value if is_same and _is_kept(value, nesting, DEEPEST) else None


def flat(value: Any) -> bytes:
    """Write a value as JSON text. Integers may be a driver's own kind of them, as MongoDB's of 64 bits are."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> int:
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


def _is_kept(value: Any, nesting: Nesting, depth: int) -> bool:
    if isinstance(value, dict):
        names_are_kept = all(map(nesting.is_name, value))
        return depth > 0 and names_are_kept and all(_is_kept(each, nesting, depth - 1) for each in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_kept(each, nesting, depth - 1) for each in value)
    if isinstance(value, float):
        return nesting.whole_floats or not value.is_integer()
    if isinstance(value, int):
        return isinstance(value, bool) or nesting.least <= value <= nesting.greatest
    return True
