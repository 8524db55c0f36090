"""Messages as entries of a stream: each header is a field, and the body is the field `data`.

Scripts get and return the fields of an entry packed (MessagePack): the driver reads and writes values one at a time, which
takes long. Names and values of headers are UTF-8. Bytes that are not become lone surrogates (PEP 383), which
nothing else decodes to. So two different entries never have the same headers.
"""

from collections.abc import Sequence

import msgspec

from onceonly.formats.cloudevents import UNREADABLE
from onceonly.model.destination import BODY_FIELD
from onceonly.model.message import Headers
from onceonly.queues.messages import decode_pairs

DATA = BODY_FIELD
"""The field with the body. Where an entry has several, the last one; the others are headers."""
MORE = "onceonly-headers"
"""The field with the headers that cannot be fields: a list of pairs, in JSON."""
MOST_FIELDS = 1000
"""Headers that have a field of their own. A script cannot pass on more than about 4,000 fields."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[str]).decode


def to_entry(headers: Headers) -> bytes | None:
    """Return the packed fields and values of headers, one after the other. None for text that cannot be encoded."""
    fields = [text for pair in headers[:MOST_FIELDS] for text in pair]
    try:
        if len(headers) > MOST_FIELDS:
            fields += [MORE, msgspec.json.encode(headers[MOST_FIELDS:]).decode()]
        try:
            return _pack(fields)
        except UnicodeEncodeError:
            return _pack_raw([text.encode("utf-8", "surrogateescape") for text in fields])
    except UnicodeEncodeError:
        return None


def from_entry(packed: bytes) -> list[str]:
    try:
        return _unpack(packed)
    except (UnicodeDecodeError, msgspec.DecodeError):  # the second since msgspec 0.23
        return [value.decode("utf-8", "surrogateescape") for value in _unpack_raw(packed)]


def headers_of(fields: Sequence[str]) -> Headers:
    """Return the headers in fields and values, one after the other. Never raises: any program can add an entry."""
    pairs = tuple(zip(fields[::2], fields[1::2], strict=True))
    if MORE not in fields:
        return pairs
    headers: list[tuple[str, str]] = []
    for name, value in pairs:
        if name != MORE:
            headers.append((name, value))
            continue
        try:
            headers += decode_pairs(value, f"the field `{MORE}`")
        except ValueError as error:
            return ((UNREADABLE, f"{error}. Correct the sender"), *pairs)
    return tuple(headers)


_SIZES = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4}
"""How many bytes give the length of a string or an array, by its first byte. Short ones have the length in that."""


def _pack_raw(values: Sequence[bytes]) -> bytes:
    """Pack strings that are not all UTF-8. Lua has no others, and does not read MessagePack's type for bytes."""
    parts = [b"\xdd", len(values).to_bytes(4)]
    for value in values:
        parts += [b"\xdb", len(value).to_bytes(4), value]
    return b"".join(parts)


def _unpack_raw(packed: bytes) -> list[bytes]:
    """Read an array of strings that are not all UTF-8."""

    def length(at: int, bits: int) -> tuple[int, int]:
        size = _SIZES.get(packed[at], 0)
        return (int.from_bytes(packed[at + 1 : at + 1 + size]) if size else packed[at] & bits), at + 1 + size

    count, at = length(0, 0x0F)
    values = []
    for _ in range(count):
        size, start = length(at, 0x1F)
        at = start + size
        values.append(packed[start:at])
    return values
