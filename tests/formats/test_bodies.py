"""Message bodies: every kind goes out and comes back, and what cannot is said in words."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from onceonly.formats.bodies import (
    BINARY,
    JSON,
    BodyError,
    codec_for,
    encode_body,
    is_supported,
    message,
    message_kind,
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


class Login(pydantic.BaseModel):
    """Fields that are secrets by their names and types."""

    user: str
    api_token: int = 0
    phrase: pydantic.SecretStr = pydantic.SecretStr("")


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (Model, b'{"id":"1","sum":"ab\\n`c"}', "sum: Input should be a valid integer"),
        (Model, b'{"id":"1","sum":"ab\\n`c"}', "; found `'ab\\n'c'`"),
        (Model, b"{}", "id: Field required"),
        (Fast, b'{"id":"1","total":"x"}', "Expected `int`, got `str` - at `$.total`; found `'x'`"),
        (Plain, b'{"id":"x"}', "Invalid UUID - at `$.id`; found `'x'`"),
        (Plain, b'{"id":"%s"}' % (b"x" * 500), "xxx...`"),
        (dict[str, list[int]], b'{"a":[1,"b"]}', "Expected `int`, got `str` - at `$[...][1]`"),
    ],
)
def test_a_reason_names_the_field_what_is_expected_and_what_is_there(kind: Any, body: bytes, reason: str) -> None:
    """On one line, cut and escaped: it is read in a listing of dead letters."""
    with pytest.raises(BodyError) as caught:
        codec_for(kind).decode(body)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_a_reason_does_not_show_secrets() -> None:
    """Neither by name nor by type."""
    with pytest.raises(BodyError) as caught:
        codec_for(Login).decode(b'{"user":5,"api_token":"hunter2","phrase":77}')
    assert "hunter2" not in str(caught.value)
    assert "77" not in str(caught.value)
    assert "found `5`" in str(caught.value)


@pytest.mark.parametrize("body", [{"items": [1, {"a": 1.5}]}, [1, {"a": None}], [], {"t": (1, 2)}])
def test_untyped_bodies_hold_jsons_own_types(body: Any) -> None:
    """A tuple is an array, and arrives as a list."""
    encoded, _ = encode_body(body)
    assert codec_for(type(body)).decode(encoded) == msgspec.json.decode(msgspec.json.encode(body))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"a": {"at": datetime(2026, 1, 1, tzinfo=UTC)}}, "field a.at: a datetime is not one of JSON's own types"),
        ({1: "a"}, "the key 1 is an int"),
        ({"a": [float("nan")]}, "field a.0.: JSON has no nan"),
        ([Decimal(1)], "field .0.: a Decimal is not"),
        (Fast("1", "2"), "at `..total`"),  # type: ignore[arg-type]
        (Plain(UUID(int=7), datetime(2026, 1, 2, fold=1, tzinfo=UTC), []), "field at: .* has fold=1"),
        (
            Plain(UUID(int=7), datetime(2026, 1, 2, tzinfo=UTC), [Line("a", Decimal("Infinity"))]),
            "field lines.0..price: JSON has no",
        ),
        (Plain(UUID(int=7), datetime(2026, 1, 2, tzinfo=UTC), [object()]), "field lines.0.: Encoding"),  # type: ignore[list-item]
    ],
)
def test_what_would_not_arrive_is_refused_by_the_name_of_its_field(body: Any, words: str) -> None:
    """At the call, before anything is committed."""
    with pytest.raises(BodyError, match=words):
        encode_body(body)


class Camel(pydantic.BaseModel):
    """Written under another name than it is read."""

    order_id: str = pydantic.Field(validation_alias="orderId")


class Choices(pydantic.BaseModel):
    """Read under several names, and written under one of them."""

    order_id: str = pydantic.Field(validation_alias=pydantic.AliasChoices("orderId", "order_id"))


class OtherChoices(pydantic.BaseModel):
    """Read under several names, and written under none of them."""

    order_id: str = pydantic.Field(validation_alias=pydantic.AliasChoices("orderId", pydantic.AliasPath("order", 0)))


class Hidden(pydantic.BaseModel):
    """Not sent as a whole."""

    note: str = pydantic.Field(default="", exclude=True)


class Strict(pydantic.BaseModel, extra="forbid"):
    """Sends what it refuses."""

    count: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        """Return what is computed."""
        return 2 * self.count


class Outer(pydantic.BaseModel):
    """The problem is inside."""

    logins: list[Login] = []


class Upper(pydantic.BaseModel):
    """Has a serializer that loses the case."""

    name: str

    @pydantic.field_serializer("name")
    def shout(self, name: str) -> str:
        """Change the name."""
        return name.upper()


class Bytes(pydantic.BaseModel, ser_json_bytes="base64"):
    """Reads what it does not write."""

    data: bytes


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (Camel(orderId="1"), "order_id of Camel is written as 'order_id' and not read"),
        (OtherChoices(orderId="1"), "order_id of OtherChoices is written as"),
        (Hidden(), "note of Hidden has exclude=True"),
        (Strict(count=1), "double of Strict"),
        (Login(user="a"), "phrase of Login is a secret"),
        (Outer(), "phrase of Login is a secret"),
        (Upper(name="a"), "field name: 'a' would arrive as 'A'"),
        (Bytes(data=b"abc"), "field data"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_that_write_what_they_do_not_read_are_refused(body: Any, words: str) -> None:
    """By what the class shows, or by what this value shows."""
    with pytest.raises(BodyError, match=words):
        encode_body(body)


@pytest.mark.parametrize("body", [Choices(orderId="1"), Upper(name="A")], ids=lambda value: type(value).__name__)
def test_models_that_read_what_they_write_are_sent(body: Any) -> None:
    """Aliases and serializers are no problem by themselves."""
    assert codec_for(type(body)).decode(encode_body(body)[0]) == body


T = TypeVar("T")


@message("shop.envelope", kind="event")
class Envelope(pydantic.BaseModel, Generic[T]):
    """A generic model."""

    data: T


@dataclass
class Parcel(Generic[T]):
    """A generic dataclass."""

    data: T


def test_generic_classes_keep_their_name_and_kind() -> None:
    """`Envelope[Fast]` is sent as what its generic class is declared to be."""
    assert type_name(Envelope[int]) == "shop.envelope"
    assert message_kind(Envelope[int]) == "event"
    assert codec_for(Envelope[int]).decode(encode_body(Envelope[int](data=3))[0]) == Envelope[int](data=3)
    assert type_name(Parcel[Line]) == "Parcel"
    assert is_supported(Parcel[Line])


def test_a_generic_dataclass_is_sent_as_what_it_was_made_for() -> None:
    """Without its parameter, receivers would make a dict of what is inside."""
    encoded, _ = encode_body(Parcel[Line](Line("a", Decimal("1.0"))))
    assert codec_for(Parcel[Line]).decode(encoded) == Parcel(Line("a", Decimal("1.0")))
    with pytest.raises(BodyError, match="field data: a Line would arrive as a dict"):
        encode_body(Parcel(Line("a", Decimal("1.0"))))
    with pytest.raises(BodyError, match=r"Expected `int`, got `object` - at `..data`"):
        encode_body(Parcel[int](Line("a", Decimal("1.0"))))  # type: ignore[arg-type]


@attrs.define
class Private:
    """All that attrs makes of a class."""

    _token: int
    count: int = attrs.field(converter=int)
    label: str = attrs.field(alias="name", default="x")
    total: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.total = self.count * 2


@attrs.define
class Exclaiming:
    """A converter that changes its own results."""

    text: str = attrs.field(converter=lambda text: text + "!")


def test_attrs_classes_are_called() -> None:
    """Converters, validators, private names and computed fields work as in any other call of the class."""
    body = Private(1, "5", name="a")
    assert codec_for(Private).decode(encode_body(body)[0]) == body
    assert codec_for(Private).decode(b'{"_token":1,"count":7}') == Private(1, 7)
    with pytest.raises(BodyError, match="field text: 'a!' would arrive as 'a!!'"):
        encode_body(Exclaiming("a"))


def test_a_mapped_class_is_refused_when_it_is_registered() -> None:
    """Its fields belong to a session: an expired row was published as `{}`."""

    class Base(DeclarativeBase):
        pass

    class Row(MappedAsDataclass, Base):
        __tablename__ = "row"
        id: Mapped[int] = mapped_column(primary_key=True)

    for call in (lambda: codec_for(Row), lambda: encode_body(Row(id=1))):
        with pytest.raises(BodyError, match="Row is mapped to a table by SQLAlchemy"):
            call()


@dataclass
class Counting:
    """Changes when it is made, and is made again when it is read."""

    count: int

    def __post_init__(self) -> None:
        self.count += 1


def test_post_init_that_changes_its_own_results_is_refused() -> None:
    """It runs at the receiver as well."""
    with pytest.raises(BodyError, match="field count: 2 would arrive as 3"):
        encode_body(Counting(1))


def test_a_class_that_contains_itself_as_a_value_is_refused() -> None:
    """There is no end of it."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(BodyError):
        encode_body(Unwritable(endless))


class Unwritable(msgspec.Struct):
    """Holds what JSON cannot say."""

    artifact: Any


@pytest.mark.parametrize("body", [Unwritable(object()), {"x": object()}, {"x": "\ud800"}, {"x": {1, object()}}])
def test_what_json_cannot_say_cannot_be_sent(body: Any) -> None:
    """Found when it is captured, not when it is dispatched."""
    with pytest.raises(BodyError, match="cannot be encoded as JSON"):
        encode_body(body)


@pytest.mark.parametrize("body", [1j, Fast.__name__.encode, range(3), object(), Fast, ("a",), {1}])
def test_other_values_are_no_bodies(body: object) -> None:
    """A class is no instance, and a tuple would arrive as a list."""
    with pytest.raises(BodyError, match="a body must be"):
        encode_body(body)


def test_a_class_with_an_unknown_field_type_is_refused_when_it_is_compiled() -> None:
    """The annotations of the class are read once, at start."""

    @dataclass
    class Broken:
        x: "DoesNotExist"  # type: ignore[name-defined] # noqa: F821 - that is the point

    with pytest.raises(BodyError, match="DoesNotExist"):
        codec_for(Broken)


class Connection:
    """No data."""


@dataclass
class Holder:
    """Has a field that no body can have."""

    connection: Connection


@attrs.define
class AttrsHolder:
    """The same of attrs."""

    connection: Connection


@dataclass
class Optional:
    """Has it only in its own process."""

    number: int
    connection: Connection | None = None


@pytest.mark.parametrize("kind", [Holder, AttrsHolder])
def test_a_field_that_no_body_can_have_is_refused_when_it_is_compiled(kind: type[Any]) -> None:
    """A handler of this class could never run."""
    with pytest.raises(BodyError, match=r"field connection of .* is declared as Connection, which no JSON"):
        codec_for(kind)


def test_a_field_with_a_default_may_have_any_type() -> None:
    """Only its default arrives."""
    assert codec_for(Optional).decode(encode_body(Optional(1))[0]) == Optional(1)
    with pytest.raises(BodyError, match="field connection"):
        encode_body(Optional(1, Connection()))


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
    assert is_supported(list[int])
    assert not is_supported(set[int])


def test_pydantic_and_attrs_are_imported_by_those_who_use_them_only() -> None:
    """A process whose bodies are dataclasses pays for neither."""
    program = (
        "import sys; from dataclasses import dataclass; from onceonly.formats.bodies import codec_for, encode_body\n"
        "@dataclass\nclass A: x: int\n"
        "assert codec_for(A).decode(encode_body(A(1))[0]) == A(1)\n"
        "assert not {'pydantic', 'attr', 'attrs'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
