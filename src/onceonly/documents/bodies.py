"""Which bodies a service can keep as JSON of its own, so that people can read and query them, and get back byte by byte."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

GREATEST = 1 << 20  # bytes; a service's own form of a body can be several times as large
DEEPEST = 32  # every service holds this many levels


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
