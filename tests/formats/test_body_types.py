"""Every documented kind of body with every documented type of field: what is sent reads back equal, or is refused.

`ONCEONLY_FUZZ` sets the number of generated bodies for each test.
"""

import contextlib
import enum
import math
from dataclasses import dataclass, make_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path
from runpy import run_path
from typing import Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from onceonly.formats.bodies import BodyError, codec_for, encode_body
from tests.fuzzing import inputs

PAGE = run_path(str(Path(__file__).parents[2] / "docs" / "generate" / "body_types.py"))
KINDS: tuple[str, ...] = PAGE["KINDS"]
FIELD_TYPES: dict[str, Any] = PAGE["FIELD_TYPES"]


class Colour(enum.Enum):
    """Values that are text and numbers would be a union."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """Equal to an int."""

    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    """Equal to a str."""

    FAST = "fast"
    SLOW = "slow"


class Point(NamedTuple):
    """A tuple with names."""

    x: int
    label: str


class Options(TypedDict):
    """A dict with names."""

    depth: int
    name: str


@dataclass
class Line:
    """Nested, with a field that is not JSON's own."""

    article: str
    price: Decimal


@dataclass
class SpecialLine(Line):
    """Its additional field would be lost where a Line is declared."""

    gift: bool = True


class StructLine(msgspec.Struct):
    """Nested."""

    article: str
    at: datetime


@attrs.define
class AttrsLine:
    """Nested, with a converter that changes nothing the second time."""

    article: str = attrs.field(converter=str)
    count: int = 0


class ModelLine(pydantic.BaseModel):
    """Nested."""

    article: str
    price: Decimal = Decimal(1)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ZONES = st.sampled_from([None, timezone.utc, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=3))])  # noqa: UP017
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
DATETIMES = st.datetimes(timezones=ZONES, min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)).map(  # noqa: DTZ001
    lambda at: at.replace(fold=0)
)

VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "str": (str, TEXT),
    "int": (int, st.integers() | st.integers(2**62, 2**66)),
    "float": (float, st.floats(allow_nan=False, allow_infinity=False)),
    "bool": (bool, st.booleans()),
    "bytes": (bytes, TEXT.map(str.encode)),
    "Decimal": (Decimal, DECIMALS),
    "UUID": (UUID, st.uuids()),
    "datetime": (datetime, DATETIMES),
    "date": (date, st.dates()),
    "time": (time, st.times().map(lambda at: at.replace(fold=0))),
    "timedelta": (timedelta, st.timedeltas()),
    "Enum": (Colour, st.sampled_from(Colour)),
    "IntEnum": (Level, st.sampled_from(Level)),
    "StrEnum": (Mode, st.sampled_from(Mode)),
    "Literal": (Literal["a", "b"], st.sampled_from(["a", "b"])),
    "None": (None, st.none()),
    "list[T]": (list[Decimal], st.lists(DECIMALS, max_size=3)),
    "tuple[T, ...]": (tuple[UUID, ...], st.lists(st.uuids(), max_size=3).map(tuple)),
    "tuple[A, B]": (tuple[int, date], st.tuples(st.integers(), st.dates())),
    "set[T]": (set[int], st.sets(st.integers(), max_size=3)),
    "frozenset[T]": (frozenset[str], st.frozensets(TEXT, max_size=3)),
    "dict[str, T]": (dict[str, Line], st.dictionaries(TEXT, st.builds(Line, TEXT, DECIMALS), max_size=2)),
    "dict[int, T]": (dict[int, str], st.dictionaries(st.integers(-(2**63), 2**63 - 1), TEXT, max_size=3)),
    "dict[UUID, T]": (dict[UUID, list[int]], st.dictionaries(st.uuids(), st.lists(st.integers(), max_size=2), max_size=2)),
    "dict[Enum, T]": (dict[Colour, int], st.dictionaries(st.sampled_from(Colour), st.integers(), max_size=2)),
    "T | None": (datetime | None, st.none() | DATETIMES),
    "int | str": (int | str, st.integers() | TEXT),
    "str | UUID": (str | UUID, TEXT),
    "Any": (Any, JSON_VALUES),
    "dict": (dict, st.dictionaries(TEXT, JSON_VALUES, max_size=3)),
    "NamedTuple": (Point, st.builds(Point, st.integers(), TEXT)),
    "TypedDict": (Options, st.fixed_dictionaries({"depth": st.integers(), "name": TEXT})),
    "dataclass": (Line, st.builds(Line, TEXT, DECIMALS)),
    "struct": (StructLine, st.builds(StructLine, TEXT, DATETIMES)),
    "attrs": (AttrsLine, st.builds(AttrsLine, TEXT, st.integers())),
    "pydantic": (ModelLine, st.builds(ModelLine, article=TEXT)),
    "IPv4Address": (IPv4Address, st.ip_addresses(v=4)),
    "Path": (Path, TEXT.filter(lambda text: "\0" not in text).map(Path)),
    "SecretStr": (pydantic.SecretStr, TEXT.map(pydantic.SecretStr)),
}
"""Declared types, and values of them that must be sent."""

ODD: st.SearchStrategy[Any] = st.one_of(
    st.floats(),
    st.decimals(),
    st.binary(max_size=4),
    st.binary(max_size=4).map(bytearray),
    st.text(max_size=3),
    st.datetimes(timezones=st.timezones() | st.timedeltas(timedelta(hours=-20), timedelta(hours=20)).map(timezone)),
    st.builds(lambda at: at.replace(fold=1), st.datetimes(timezones=ZONES)),
    st.sampled_from([ZoneInfo("Europe/Berlin")]).map(lambda zone: datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=1)),
    st.times(timezones=ZONES),
    st.sampled_from([SpecialLine("a", Decimal(1)), Line("a", "1.0"), Line(5, Decimal(1)), True, 1, 1.0, -0.0, "1", None]),  # type: ignore[arg-type]
    st.sampled_from(
        [{1: "a", "1": "b"}, {True: 1}, {1: 1}, {None: 1}, {"a": (1, 2)}, {"a": {1, 2}}, {Mode.FAST: 1}, Point(1, "a")]
    ),
    st.sampled_from([[1, (2, 3)], (1, [2]), [Level.LOW], [Colour.RED], {1.5: 1}, {Decimal("1.0"): 1}, range(3), object()]),
    *(values for _, values in VALUES.values()),
)
"""Values in fields that are declared as something else, and values that JSON cannot keep."""


def make(kind: str, declared: Any, *, nested: bool) -> type[Any]:
    """Make a class of one kind with a field of a type, and with containers of it if `nested`."""
    optional = (
        declared
        if declared is None
        else declared | None
        if isinstance(declared, type)
        else Any
        if declared is Any
        else declared
    )
    declared_fields: dict[str, Any] = {"value": declared}
    if nested:
        declared_fields |= {"items": list[declared], "named": dict[str, declared], "maybe": optional}
    if kind == "dataclass":
        return make_dataclass("Body", declared_fields.items())
    if kind == "struct":
        return msgspec.defstruct("Body", declared_fields.items())
    if kind == "attrs":
        types = {name: type(None) if each is None else each for name, each in declared_fields.items()}  # None is no type there
        return attrs.make_class("Body", {name: attrs.field(type=each) for name, each in types.items()})
    if kind == "pydantic":
        model: type[Any] = pydantic.create_model("Body", **{name: (each, ...) for name, each in declared_fields.items()})  # type: ignore[call-overload]
        return model
    return pydantic_dataclass(make_dataclass("Body", declared_fields.items()))


def build(cls: type[Any], value: Any, *, nested: bool, is_checked: bool) -> Any:
    """Make an object; without checks if the class checks values and `is_checked` is false."""
    given = {"value": value}
    if nested:
        given |= {"items": [value, value], "named": {"a": value}, "maybe": value}
    if not is_checked and hasattr(cls, "model_construct"):
        return cls.model_construct(**given)
    if not is_checked and hasattr(cls, "__pydantic_validator__"):
        made = object.__new__(cls)
        made.__dict__.update(given)
        return made
    return cls(**given)


def is_same(sent: Any, read: Any, *, untyped: bool = False) -> bool:  # noqa: C901, PLR0911 - written apart from the code that it tests
    """Compare strictly: same type, same value, recursively."""
    if untyped and isinstance(sent, tuple):
        sent = list(sent)
    if type(sent) is int and type(read) is float:
        return sent == read
    if type(sent) is not type(read):
        return False
    if isinstance(sent, float):
        return math.isfinite(sent) and repr(sent) == repr(read)
    if isinstance(sent, Decimal):
        return sent.is_finite() and str(sent) == str(read)
    if isinstance(sent, datetime | time):
        same = sent.replace(tzinfo=None) == read.replace(tzinfo=None) and sent.fold == read.fold
        return same and sent.utcoffset() == read.utcoffset()
    if isinstance(sent, dict):
        keys = [(type(key), key) for key in sent]
        return sorted(map(repr, keys)) == sorted(repr((type(key), key)) for key in read) and all(
            is_same(value, read[key], untyped=untyped) for key, value in sent.items()
        )
    if isinstance(sent, list | tuple):
        return len(sent) == len(read) and all(is_same(*pair, untyped=untyped) for pair in zip(sent, read, strict=True))
    if isinstance(sent, set | frozenset):
        return sorted(map(repr, sent)) == sorted(map(repr, read))
    names = [
        name
        for name in ("__struct_fields__", "__attrs_attrs__", "__dataclass_fields__", "__pydantic_fields__")
        if hasattr(type(sent), name)
    ]
    if names:
        fields = [getattr(each, "name", each) for each in getattr(type(sent), names[0])]
        return all(is_same(getattr(sent, each), getattr(read, each), untyped=untyped) for each in fields)
    return bool(sent == read)


def arrives(body: Any, declared: Any) -> bool:
    """Send a body; false if it was refused. Fails for what would arrive as something else."""
    try:
        encoded, _ = encode_body(body)
    except BodyError:
        return False
    read = codec_for(type(body)).decode(encoded)
    assert is_same(body, read, untyped=declared is Any or declared is dict), (body, encoded, read)
    return True


def test_the_page_lists_the_types_that_are_tested() -> None:
    """A type that is added to one and not to the other is an error."""
    assert list(VALUES) == list(FIELD_TYPES)


CASES = [(kind, name) for kind in KINDS for name in VALUES]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_type_is_sent_if_the_page_says_so(kind: str, name: str) -> None:
    """Alone and in containers. And it reads back equal; otherwise it is refused, at the latest when it is sent."""
    declared, values = VALUES[name]
    is_supported = kind in FIELD_TYPES[name].kinds

    @settings(max_examples=max(5, inputs() // 200), database=None, deadline=None)
    @given(value=values)
    def check(value: Any) -> None:
        try:
            cls = make(kind, declared, nested=True)
            body = build(cls, value, nested=True, is_checked=True)
        except (TypeError, pydantic.errors.PydanticUserError):
            assert not is_supported
            return
        assert arrives(body, declared) == is_supported, body

    check()


CLASSES: dict[tuple[str, str], Any] = {}


def class_of(kind: str, name: str) -> Any:
    """Make each class once; None if its kind does not take the type at all."""
    if (kind, name) not in CLASSES:
        try:
            CLASSES[kind, name] = make(kind, VALUES[name][0], nested=False)
        except (TypeError, pydantic.errors.PydanticUserError):
            CLASSES[kind, name] = None
    return CLASSES[kind, name]


@settings(max_examples=inputs(), database=None, deadline=None)
@given(case=st.sampled_from(CASES), value=ODD)
def test_whatever_a_field_holds_arrives_or_is_refused(case: tuple[str, str], value: Any) -> None:
    """A value of another type, a subclass, a number that JSON does not have: nothing is changed in silence."""
    cls = class_of(*case)
    if cls is not None:
        arrives(build(cls, value, nested=False, is_checked=False), VALUES[case[1]][0])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(), inside, max_size=4),
    max_leaves=20,
)


@settings(max_examples=inputs(), database=None, deadline=None)
@given(value=JSON_VALUES | ODD | st.lists(ODD, max_size=3))
def test_a_body_without_a_class_arrives_or_is_refused(value: Any) -> None:
    """Text, numbers, booleans, null, and lists and objects of them."""
    if type(value) not in (str, int, float, bool, type(None), list, dict):
        return
    if type(value) is list and value and hasattr(type(value[0]), "__annotations__"):
        return  # the objects of one class are for the next test
    assert arrives(value, Any) or not is_plain(value), value


def is_plain(value: Any) -> bool:
    """Return whether JSON has it, so that it must not be refused."""
    if type(value) is str:
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and is_plain(key) and is_plain(each) for key, each in value.items())
    return type(value) in (int, bool, type(None))


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_objects_arrives_or_is_refused(kind: str) -> None:
    """Each as a body of its own would; its receiver declares the class."""

    @settings(max_examples=max(5, inputs() // 50), database=None, deadline=None)
    @given(values=st.lists(VALUES["datetime"][1] | st.sampled_from(["a", None]), min_size=1, max_size=3))
    def check(values: list[Any]) -> None:
        cls = class_of(kind, "datetime")
        bodies = [build(cls, value, nested=False, is_checked=False) for value in values]
        alone = []
        for each in bodies:
            with contextlib.suppress(BodyError):
                alone.append(encode_body(each)[0])
        try:
            encoded, _ = encode_body(bodies)
        except BodyError:
            assert len(alone) < len(bodies)
            return
        assert is_same(bodies, codec_for(list[cls]).decode(encoded))

    check()
