"""Message bodies: every kind goes out and comes back, and what cannot is said in words."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass

from onceonly.formats.bodies import (
    BINARY,
    JSON,
    BodyError,
    codec_for,
    encode_body,
    is_supported,
    message,
    type_name,
)


@dataclass
class Line:
    """A part of an order."""

    article: str
    price: Decimal


@dataclass
class Plain:
    """A dataclass with all that JSON does not know by itself."""

    id: UUID
    at: datetime
    lines: list[Line]


class Fast(msgspec.Struct):
    """A msgspec struct."""

    id: str
    total: int = 0


@attrs.define
class Attrs:
    """An attrs class."""

    id: str
    total: int = attrs.field(default=0, validator=attrs.validators.ge(0))


class Model(pydantic.BaseModel):
    """A pydantic model."""

    id: str
    total: int = pydantic.Field(default=0, ge=0, alias="sum")


@pydantic_dataclass
class Checked:
    """A pydantic dataclass."""

    id: str
    total: int = 0


BODIES = [
    Plain(UUID(int=7), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), [Line("a", Decimal("1.10"))]),
    Fast("1", 2),
    Attrs("1", 2),
    Model(id="1", sum=2),
    Checked("1", 2),
    {"id": "1", "nested": [1, None, {"x": True}]},
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_kind_of_body_comes_back_as_it_was(body: Any) -> None:
    """Written by one process, read by another."""
    encoded, content_type = encode_body(body)
    assert content_type == JSON
    assert codec_for(type(body)).decode(encoded) == body


def test_bytes_pass_untouched() -> None:
    """They may be no JSON, and no text at all."""
    assert encode_body(b"\xff\x00") == (b"\xff\x00", BINARY)
    assert codec_for(bytes).decode(b"\xff\x00") == b"\xff\x00"


@pytest.mark.parametrize("kind", [Fast, Attrs, Model, Checked], ids=lambda kind: kind.__name__)
def test_unknown_fields_are_ignored(kind: type[Any]) -> None:
    """A sender may add a field before its receivers know it."""
    assert codec_for(kind).decode(b'{"id":"1","added_later":{"x":[1]}}').id == "1"


@pytest.mark.parametrize("kind", [Plain, Fast, Attrs, Model, Checked, dict], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 100_000], ids=["", "{", "[]", "ff", "null", "deep"]
)
def test_a_body_that_cannot_be_read_is_an_error_that_names_its_class(kind: type[Any], body: bytes) -> None:
    """Whatever came, the reader raises one error only."""
    with pytest.raises(BodyError, match=kind.__name__):
        codec_for(kind).decode(body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [(Fast, b'{"id":5}'), (Attrs, b'{"id":"1","total":-1}'), (Model, b'{"id":"1","sum":-1}'), (Plain, b'{"id":"1"}')],
)
def test_a_wrong_field_is_named(kind: type[Any], body: bytes) -> None:
    """The reason goes to a dead letter, where a person reads it."""
    with pytest.raises(BodyError, match=r"id|total|sum"):
        codec_for(kind).decode(body)


def test_pydantics_reasons_are_one_line_without_the_values() -> None:
    """A value may be a secret, and a link to a manual helps nobody in a listing."""
    with pytest.raises(BodyError) as caught:
        codec_for(Model).decode(b'{"id":"1","sum":"secret"}')
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


class Unwritable(msgspec.Struct):
    """Holds what JSON cannot say."""

    artifact: Any


@pytest.mark.parametrize("body", [Unwritable(object()), {"x": object()}, {"x": "\ud800"}, {"x": {1, object()}}])
def test_what_json_cannot_say_cannot_be_sent(body: Any) -> None:
    """Found when it is captured, not when it is dispatched."""
    with pytest.raises(BodyError, match="cannot be encoded as JSON"):
        encode_body(body)


@pytest.mark.parametrize("body", [1, "text", None, [1], object(), Fast, ("a",)])
def test_other_values_are_no_bodies(body: object) -> None:
    """A class is no instance, and a number has no fields."""
    with pytest.raises(BodyError, match="a body must be"):
        encode_body(body)


def test_a_class_with_an_unknown_field_type_is_refused_when_it_is_compiled() -> None:
    """The annotations of the class are read once, at start."""

    @dataclass
    class Broken:
        x: "DoesNotExist"  # type: ignore[name-defined] # noqa: F821 - that is the point

    with pytest.raises(BodyError, match="DoesNotExist"):
        codec_for(Broken)


def test_a_codec_is_compiled_once() -> None:
    """For each class, not for each message."""
    assert codec_for(Fast) is codec_for(Fast)
    assert codec_for(Model) is codec_for(Model)


def test_the_type_name_is_the_class_name_unless_it_is_given() -> None:
    """The given name belongs to the class, not to those that derive from it."""

    @message("shop.order-placed.v1")
    class Named(Fast):
        pass

    class Derived(Named):
        pass

    assert (type_name(Fast), type_name(Named), type_name(Derived)) == ("Fast", "shop.order-placed.v1", "Derived")
    assert type_name(dict) is None
    assert type_name(bytes) is None


@pytest.mark.parametrize("make", [dataclass, dataclass(slots=True), dataclass(frozen=True)])
def test_a_name_can_be_given_above_and_below_other_decorators(make: Any) -> None:
    """`slots=True` makes a new class out of the old one."""

    class Above:
        id: str

    class Below:
        id: str

    assert type_name(message("a")(make(Above))) == "a"
    assert type_name(make(message("b")(Below))) == "b"


def test_a_name_must_not_be_empty() -> None:
    """A message without a type cannot be told apart."""
    with pytest.raises(ValueError, match="needs the name"):
        message(" ")


def test_dictionaries_may_say_what_they_hold() -> None:
    """`dict[str, int]` is checked like any class."""
    assert is_supported(dict[str, int])
    assert codec_for(dict[str, int]).decode(b'{"a":1}') == {"a": 1}
    with pytest.raises(BodyError, match="dict"):
        codec_for(dict[str, int]).decode(b'{"a":"x"}')
    assert not is_supported(list[int])


def test_pydantic_and_attrs_are_imported_by_those_who_use_them_only() -> None:
    """A process whose bodies are dataclasses pays for neither."""
    program = (
        "import sys; from dataclasses import dataclass; from onceonly.formats.bodies import codec_for, encode_body\n"
        "@dataclass\nclass A: x: int\n"
        "assert codec_for(A).decode(encode_body(A(1))[0]) == A(1)\n"
        "assert not {'pydantic', 'attr', 'attrs'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
