"""Writes the page of the types that the fields of a message can have. A test sends values of each of them."""

from typing import NamedTuple

KINDS = ("dataclass", "struct", "attrs", "pydantic", "pydantic dataclass")
"""Kinds of classes, in the order of the columns."""
EVERY = frozenset(KINDS)
MSGSPEC = frozenset({"dataclass", "struct", "attrs"})
PYDANTIC = EVERY - MSGSPEC


class FieldType(NamedTuple):
    """A type of a field: the JSON that it is sent as, the kinds of classes that can have it, and what is refused."""

    json: str
    kinds: frozenset[str] = EVERY
    refused: str = ""


FIELD_TYPES = {
    "str": FieldType("text", refused="unpaired surrogates"),
    "int": FieldType("number"),
    "float": FieldType("number", refused="NaN, infinity"),
    "bool": FieldType("`true`, `false`"),
    "bytes": FieldType("text: base64; pydantic: UTF-8", refused="pydantic: bytes that are not UTF-8"),
    "Decimal": FieldType("text", refused="NaN, infinity"),
    "UUID": FieldType("text"),
    "datetime": FieldType("text: RFC 3339", refused="`fold=1`, offsets with seconds"),
    "date": FieldType("text: RFC 3339"),
    "time": FieldType("text: RFC 3339", refused="`fold=1`, offsets with seconds"),
    "timedelta": FieldType("text: ISO 8601"),
    "Enum": FieldType("its value"),
    "IntEnum": FieldType("its value"),
    "StrEnum": FieldType("its value"),
    "Literal": FieldType("its value"),
    "None": FieldType("`null`"),
    "list[T]": FieldType("array"),
    "tuple[T, ...]": FieldType("array"),
    "tuple[A, B]": FieldType("array"),
    "set[T]": FieldType("array"),
    "frozenset[T]": FieldType("array"),
    "dict[str, T]": FieldType("object"),
    "dict[int, T]": FieldType("object, keys as text"),
    "dict[UUID, T]": FieldType("object, keys as text"),
    "dict[Enum, T]": FieldType("object, keys as text"),
    "T | None": FieldType("as `T`, or `null`"),
    "int | str": FieldType("as either"),
    "str | UUID": FieldType("text", PYDANTIC, "UUIDs, which would arrive as `str`"),
    "Any": FieldType("JSON's own types", refused="all other types"),
    "dict": FieldType("JSON's own types", refused="all other types, keys that are not text"),
    "NamedTuple": FieldType("array"),
    "TypedDict": FieldType("object"),
    "dataclass": FieldType("object"),
    "struct": FieldType("object", MSGSPEC),
    "attrs": FieldType("object", MSGSPEC),
    "pydantic": FieldType("object", PYDANTIC),
    "IPv4Address": FieldType("text", PYDANTIC),
    "Path": FieldType("text", PYDANTIC),
    "SecretStr": FieldType("none", frozenset()),
}
"""What a field can be declared as. `T`, `A` and `B` are any of these."""

HEAD = """\
# Types of fields

What the fields of messages, entities and answers can be. A value that would not read back equal is refused at the call,
and the error names the field. Written by `make docs`; a test sends generated values of each type, nested as well.

| type | JSON | {kinds} | refused |
|---|---|{rules}---|
"""
TAIL = """
An `int` in a field declared as `float` is sent, and arrives as the equal `float`. A subclass where its base class is declared
is refused. `Any`, `object`, `dict` and `list` without types hold JSON's own types: text, numbers, booleans, `None`, lists
and dicts. A tuple in them arrives as a list.

A body can also be text, a number, a `bool`, `None`, a `dict` or a `list` itself. A list then holds JSON's own types, or
objects of one class.
"""


def page() -> str:
    """Return the page."""
    head = HEAD.format(kinds=" | ".join(KINDS), rules="---|" * len(KINDS))
    return head + "".join(_row(name, each) for name, each in FIELD_TYPES.items()) + TAIL


def _row(name: str, field: FieldType) -> str:
    marks = " | ".join("yes" if kind in field.kinds else "no" for kind in KINDS)
    return f"| `{name}` | {field.json} | {marks} | {field.refused} |\n".replace(name, name.replace("|", "\\|"), 1)
