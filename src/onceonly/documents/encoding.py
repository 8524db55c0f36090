"""Keys and bodies for services that do not store every text, or that can show JSON to people.

A service that restricts the names of documents gets encoded keys: `key_encoder`, `decode_key`. Encoding goes byte by byte, so
keys keep their prefixes, and two keys never get the same name.

A service with JSON values of its own can store a body as such a value, which people can read and query: `to_native`,
`from_native`. Bodies that would come back with other bytes are stored as bytes.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

__all__ = ["NativeValues", "decode_key", "from_native", "is_text", "key_encoder", "to_native"]

_ESCAPED = re.compile(rb"=([0-9A-F]{2})")
GREATEST = 1 << 20  # bytes; a service's own form of a body can be several times as large
DEEPEST = 32  # every service holds this many levels


def key_encoder(safe: str) -> Callable[[str], str]:
    """Return a function that encodes keys for a service.

    It writes the ASCII characters in `safe` as they are, and every other byte of the key's UTF-8 as `=` and two hex digits. So
    a byte takes one or three characters. `safe` must not contain `=`. The function raises UnicodeEncodeError for a key that is
    not a text; see `is_text`.
    """
    names = [chr(byte) if chr(byte) in safe else f"={byte:02X}" for byte in range(256)]

    def encode(key: str) -> str:
        return "".join([names[byte] for byte in key.encode()])

    return encode


def decode_key(name: str) -> str:
    """Return the key that an encoder wrote as `name`. Raises ValueError for a name that no encoder writes."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode("ascii")).decode()


def is_text(key: str) -> bool:
    """Return whether a key can be encoded as UTF-8. A key with half a surrogate pair cannot, so no document has it."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


class NativeValues(Struct, frozen=True, kw_only=True):
    """The JSON values that a service stores without a change.

    `least` and `greatest` limit integers. `whole_floats` is true if a float without a fraction stays a float: 1.0 does not
    become 1. `is_name` returns whether a service accepts the name of a field.
    """

    least: int
    greatest: int
    whole_floats: bool
    is_name: Callable[[str], bool]


def to_native(body: bytes, native: NativeValues) -> dict[str, Any] | None:
    """Return the value of a body that is a JSON object, for a service that stores `native` values.

    `from_native` turns the value back into the same bytes, provided that the service keeps the order of fields. Returns None
    for every other body: store it as bytes. That includes bodies of more than 1 MiB, of more than 32 levels, and those
    whose bytes would change, for example by spaces.
    """
    if not body.startswith(b"{") or len(body) > GREATEST:
        return None
    try:
        value = msgspec.json.decode(body)
        is_same = from_native(value) == body
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return value if is_same and _is_kept(value, native, DEEPEST) else None


def from_native(value: Any) -> bytes:
    """Return the bytes of a body that `to_native` has converted. Integers may be of a driver's subclass of int.

    Raises TypeError for a value that JSON does not have.
    """
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> int:
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _is_kept(value: Any, native: NativeValues, depth: int) -> bool:
    if isinstance(value, dict):
        names_are_kept = all(map(native.is_name, value))
        return depth > 0 and names_are_kept and all(_is_kept(each, native, depth - 1) for each in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_kept(each, native, depth - 1) for each in value)
    if isinstance(value, float):
        return native.whole_floats or not value.is_integer()
    if isinstance(value, int):
        return isinstance(value, bool) or native.least <= value <= native.greatest
    return True
