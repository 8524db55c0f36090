"""Values of AMQP 1.0 as bytes (part 1 of the specification): of its own, so that a mistake of the client is not repeated here.

Python's own types are written as AMQP's string, binary, boolean, long, double, list and map. Other types have a class here.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID


class Symbol(str):
    """A symbol: an ASCII name."""

    __slots__ = ()


class UByte(int):
    """An unsigned number of 8 bits."""


class UShort(int):
    """An unsigned number of 16 bits."""


class UInt(int):
    """An unsigned number of 32 bits."""


class ULong(int):
    """An unsigned number of 64 bits."""


class Int(int):
    """A signed number of 32 bits."""


class Timestamp(int):
    """Milliseconds since 1970."""


@dataclass(frozen=True)
class Described:
    """A value with a descriptor."""

    descriptor: Any
    value: Any


@dataclass(frozen=True)
class Array:
    """Values of one type, by its constructor code."""

    code: int
    values: tuple[Any, ...]


class Malformed(ValueError):
    """Bytes that are not AMQP."""


_FIXED = {
    0x50: ">B",
    0x51: ">b",
    0x52: ">B",
    0x53: ">B",
    0x54: ">b",
    0x55: ">b",
    0x56: ">?",
    0x60: ">H",
    0x61: ">h",
    0x70: ">I",
    0x71: ">i",
    0x72: ">f",
    0x80: ">Q",
    0x81: ">q",
    0x82: ">d",
    0x83: ">q",
}
_CONSTANT: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: UInt(0), 0x44: ULong(0), 0x45: []}
_TYPES: dict[int, Any] = {0x50: UByte, 0x52: UInt, 0x70: UInt, 0x53: ULong, 0x80: ULong, 0x54: Int, 0x71: Int, 0x83: Timestamp}
_UUID = 0x98
_NUMBERS = {UByte: 0x50, UShort: 0x60, UInt: 0x70, ULong: 0x80, Int: 0x71, Timestamp: 0x83}
_ONES = {None: 0x40, True: 0x41, False: 0x42}
SMALL = 256
_OPAQUE = {0x73: 4, 0x74: 4, 0x84: 8, 0x94: 16, _UUID: 16}
_SHORT = (0xA, 0xC, 0xE)
_TEXTS: dict[tuple[int, bool], Callable[[bytes], Any]] = {
    (0, True): bytes,
    (1, True): lambda content: content.decode(),
    (3, True): lambda content: Symbol(content.decode("ascii")),
}


def decode(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Read the value that begins there; return it, and where the next begins. Raises Malformed."""
    try:
        return _decode(data, at)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise Malformed(f"not AMQP at byte {at}: {error}") from error


def encode(value: Any) -> bytes:
    """Write a value with its constructor."""
    if isinstance(value, Described):
        return b"\x00" + encode(value.descriptor) + encode(value.value)
    code, content = _encoded(value)
    return bytes([code]) + content


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    code = data[at]
    if code == 0:
        descriptor, at = _decode(data, at + 1)
        value, at = _decode(data, at)
        return Described(descriptor, value), at
    return _content(code, data, at + 1)


def _content(code: int, data: bytes, at: int) -> tuple[Any, int]:
    if code in _CONSTANT:
        return _CONSTANT[code], at
    if code in _FIXED:
        layout = _FIXED[code]
        (value,) = struct.unpack_from(layout, data, at)
        return _TYPES.get(code, lambda same: same)(value), at + struct.calcsize(layout)
    if code in _OPAQUE:
        found = _cut(data, at, _OPAQUE[code])
        return (UUID(bytes=found) if code == _UUID else found), at + _OPAQUE[code]
    width = ">B" if code >> 4 in _SHORT else ">I"
    (size,) = struct.unpack_from(width, data, at)
    at += struct.calcsize(width)
    return _variable(code, _cut(data, at, size), width), at + size


def _variable(code: int, content: bytes, width: str) -> Any:
    kind = code & 0x0F, code >> 4 in (0xA, 0xB)
    if kind in _TEXTS:
        return _TEXTS[kind](content)
    (count,) = struct.unpack_from(width, content)
    at = struct.calcsize(width)
    if code in (0xE0, 0xF0):
        return _array(content, at, count)
    if code not in (0xC0, 0xD0, 0xC1, 0xD1):
        raise Malformed(f"not AMQP: no type has the code {code:#x}")
    values = []
    for _ in range(count):
        value, at = _decode(content, at)
        values.append(value)
    return dict(zip(values[::2], values[1::2], strict=True)) if kind[0] else values


def _array(content: bytes, at: int, count: int) -> Array:
    code = content[at]
    at += 1
    values = []
    for _ in range(count):
        value, at = _content(code, content, at)
        values.append(value)
    return Array(code, tuple(values))


def _cut(data: bytes, at: int, size: int) -> bytes:
    found = data[at : at + size]
    if len(found) != size:
        raise Malformed(f"not AMQP at byte {at}: {size} bytes expected, {len(found)} found")
    return bytes(found)


def _encoded(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return _ONES[value], b""
    if isinstance(value, int):
        return _number(value)
    if isinstance(value, float):
        return 0x82, struct.pack(">d", value)
    if isinstance(value, UUID):
        return _UUID, value.bytes
    if isinstance(value, Symbol | str | bytes | bytearray):
        content = bytes(value) if isinstance(value, bytes | bytearray) else value.encode()
        code = 0xB3 if isinstance(value, Symbol) else 0xB1 if isinstance(value, str) else 0xB0
        return code, struct.pack(">I", len(content)) + content
    return _compound(value)


def _number(value: int) -> tuple[int, bytes]:
    if isinstance(value, ULong) and value < SMALL:
        return 0x53, bytes([value])
    for kind, code in _NUMBERS.items():
        if isinstance(value, kind):
            return code, struct.pack(_FIXED[code], value)
    return 0x81, struct.pack(">q", value)


def _compound(value: Any) -> tuple[int, bytes]:
    if isinstance(value, Array):
        content = bytes([value.code]) + b"".join(_element(value.code, each) for each in value.values)
        return 0xF0, struct.pack(">II", len(content) + 4, len(value.values)) + content
    if not isinstance(value, dict | list | tuple):
        raise TypeError(f"no type of AMQP for {value!r}")
    flat = [each for pair in value.items() for each in pair] if isinstance(value, dict) else value
    content = b"".join(map(encode, flat))
    return 0xD1 if isinstance(value, dict) else 0xD0, struct.pack(">II", len(content) + 4, len(flat)) + content


def _element(code: int, value: Any) -> bytes:
    if code in _FIXED:
        return struct.pack(_FIXED[code], value)
    found, content = _encoded(value)
    if found != code:
        raise TypeError(f"{value!r} does not have the type {code:#x} of its array")
    return content
