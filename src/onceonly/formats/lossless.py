"""Which objects surely read back equal, decided from their types without reading them back.

A class is compiled to one Python expression from what msgspec knows of it. The expression is true only for objects whose
fields have exactly the declared types, with values that JSON keeps. Everything else is left to a round trip: a class that
runs code when it is read, a field with constraints, and a type that is not listed here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any
from uuid import UUID

from msgspec import Struct, inspect

from onceonly.formats.body_differences import untyped_difference
from onceonly.formats.body_fields import is_attrs, is_mapped, is_plain_model, is_pydantic

Test = Callable[[Any], bool]
"""Whether an object surely reads back equal. It may raise whatever the object's attributes do."""

_EXACT: Mapping[type, type] = {
    inspect.IntType: int,
    inspect.StrType: str,
    inspect.BoolType: bool,
    inspect.BytesType: bytes,
    inspect.UUIDType: UUID,
    inspect.DateType: date,
    inspect.TimeDeltaType: timedelta,
}
"""Types all of whose values JSON keeps."""
_KEYS = (str, int, UUID, date)
"""Types of keys that stay different when they are text."""
_ITEMS: dict[type, type] = {
    inspect.ListType: list,
    inspect.SetType: set,
    inspect.FrozenSetType: frozenset,
    inspect.VarTupleType: tuple,
}


def never(_: object) -> bool:
    """Return False, as the test of a class of which only a round trip can tell."""
    return False


def surely_lossless(kind: Any) -> Test | None:
    """Return the test for a class, or None if only a round trip can tell."""
    is_model = isinstance(kind, type) and is_pydantic(kind)
    writer = _ModelWriter() if is_model else _Writer()
    try:
        name = writer.function(inspect.CustomType(kind) if is_model else inspect.type_info(kind))
    except Exception:  # noqa: BLE001 - also annotations, which are code of the user's. A round trip can tell
        return None
    test: Test = writer.scope[name]
    return test


def unreadable_field(kind: Any) -> str:
    """Return which field of a class no body can have: it has no default, and its type is none that JSON can be read as."""
    if isinstance(kind, type) and is_pydantic(kind):
        return ""
    try:
        fields: Any = getattr(inspect.type_info(kind), "fields", ())
    except Exception:  # noqa: BLE001 - the error is raised where the class is compiled
        return ""
    for each in fields:
        if each.required and isinstance(each.type, inspect.CustomType):
            declared = getattr(each.type.cls, "__name__", each.type.cls)
            return f"field {each.name} of {kind.__name__} is declared as {declared}, which no JSON can be read as"
    return ""


class _Unsure(Exception):
    """Only a round trip can tell."""


class _Writer:
    """Writes the expressions of one class and those that it refers to."""

    exact = _EXACT

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"Decimal": Decimal, "datetime": datetime, "time": time, "UTC": UTC}
        self.scope |= {"is_json": _is_json, "is_kept_offset": _is_kept_offset}
        self._names: dict[Any, str] = {}
        self._described: list[inspect.Type] = []
        """Kept, so that no other type gets the same id."""
        self._count = 0

    def function(self, found: inspect.Type) -> str:
        """Compile a type to a function of its values, once. Returns its name."""
        key = getattr(found, "cls", None) or id(found)
        if key not in self._names:
            name = self._names[key] = self._new("test", None)
            self._described.append(found)
            test = self.of_class(found, "v") if hasattr(found, "cls") else self.expression(found, "v")
            self.scope[name] = eval(f"lambda v: {test}", self.scope)  # noqa: S307 - made here, of names made here
        return self._names[key]

    def expression(self, found: inspect.Type, value: str) -> str:  # noqa: C901, PLR0911 - one for each type
        """Return the expression that tests a variable."""
        kind = type(found)
        if _is_constrained(found):
            raise _Unsure
        if kind in self.exact:
            return f"{value}.__class__ is {self._constant(self.exact[kind])}"
        if kind is inspect.NoneType:
            return f"{value} is None"
        if kind is inspect.FloatType:
            return f"({value}.__class__ is float and {value} - {value} == 0.0)"
        if kind is inspect.DecimalType:
            return f"({value}.__class__ is Decimal and {value}.is_finite())"
        if kind in (inspect.DateTimeType, inspect.TimeType):
            name = "datetime" if kind is inspect.DateTimeType else "time"
            zone = f"({value}.tzinfo is UTC or {value}.tzinfo is None or is_kept_offset({value}))"
            return f"({value}.__class__ is {name} and not {value}.fold and {zone})"
        if kind is inspect.AnyType:
            return f"is_json({value})"
        if isinstance(found, inspect.UnionType):
            return self._union(found, value)
        if isinstance(found, inspect.DictType):
            return self._dict(found, value)
        if kind in _ITEMS:
            items: Any = found
            return f"({value}.__class__ is {_ITEMS[kind].__name__} and {self._all(items.item_type, value)})"
        if isinstance(found, inspect.EnumType):
            return self.of_class(found, value)
        if hasattr(found, "cls"):
            return f"{self.function(found)}({value})"
        raise _Unsure

    def of_class(self, found: Any, value: str) -> str:
        """Return the expression for an object: of the exact class, whose fields are what they are declared to be."""
        if isinstance(found, inspect.EnumType):
            return f"{value}.__class__ is {self._constant(found.cls)}"
        if not isinstance(found, inspect.StructType | inspect.DataclassType) or _runs_code(found.cls):
            raise _Unsure
        return self._fields(found.cls, [(each.name, each.type) for each in found.fields], value)

    def _fields(self, cls: type, declared: Iterable[tuple[str, inspect.Type]], value: str) -> str:
        tests = [f"{value}.__class__ is {self._constant(cls)}"]
        for name, kind in declared:
            if name.startswith("_") or not name.isidentifier():
                raise _Unsure
            variable = f"_{self._new('f', None)}_"
            test = self.expression(kind, variable)
            once = test.count(variable) == 1
            tests.append(test.replace(variable, f"{value}.{name}" if once else f"({variable} := {value}.{name})", 1))
        return " and ".join(tests)

    def _all(self, found: inspect.Type, values: str) -> str:
        """Return the expression for all of several values: by their types alone where these decide."""
        if type(found) in self.exact and not _is_constrained(found):
            return f"{self._constant(frozenset({self.exact[type(found)]}))}.issuperset(map(type, {values}))"
        return f"False not in map({self.function(found)}, {values})"

    def _dict(self, found: inspect.DictType, value: str) -> str:
        if isinstance(found.key_type, inspect.AnyType):
            return f"({value}.__class__ is dict and is_json({value}))"
        key = self.exact.get(type(found.key_type))
        if key not in _KEYS or _is_constrained(found.key_type):
            raise _Unsure
        keys = f"{self._constant(frozenset({key}))}.issuperset(map(type, {value}))"
        return f"({value}.__class__ is dict and {keys} and {self._all(found.value_type, f'{value}.values()')})"

    def _union(self, found: inspect.UnionType, value: str) -> str:
        """Return the expression for a type or None; in other unions the value decides which type is read."""
        others = [each for each in found.types if not isinstance(each, inspect.NoneType)]
        if len(others) != 1:
            raise _Unsure
        return f"({value} is None or {self.expression(others[0], value)})"

    def _constant(self, value: object) -> str:
        key = (type(value), value)
        if key not in self._names:
            self._names[key] = self._new("c", value)
        return self._names[key]

    def _new(self, prefix: str, value: object) -> str:
        self._count += 1
        name = f"{prefix}{self._count}"
        if value is not None:
            self.scope[name] = value
        return name


class _ModelWriter(_Writer):
    """Writes those of pydantic models, which have ways of their own to write bytes and durations."""

    exact: Mapping[type, type] = {
        each: kind for each, kind in _EXACT.items() if each not in (inspect.BytesType, inspect.TimeDeltaType)
    }

    def of_class(self, found: Any, value: str) -> str:
        """Return the expression for an object: a model without aliases, validators, serializers and settings that matter."""
        if isinstance(found, inspect.EnumType):
            return super().of_class(found, value)
        if not isinstance(found, inspect.CustomType) or not is_plain_model(found.cls):
            raise _Unsure
        declared: Any = found.cls
        kinds = [(name, inspect.type_info(each.annotation)) for name, each in declared.__pydantic_fields__.items()]
        return self._fields(found.cls, kinds, value)


def _is_json(value: object) -> bool:
    return untyped_difference(value) is None


def _is_kept_offset(value: datetime | time) -> bool:
    """Return whether the offset of an instant has whole minutes, which is all that RFC 3339 can write."""
    offset = value.utcoffset()
    return offset is None or not offset % timedelta(minutes=1)


_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


def _is_constrained(found: inspect.Type) -> bool:
    return isinstance(found, inspect.Metadata) or any(getattr(found, each, None) is not None for each in _CONSTRAINTS)


def _runs_code(cls: type) -> bool:  # noqa: PLR0911 - one for each kind of class
    """Return whether reading an object of this class may run code of the user's, or leave out a field."""
    if is_mapped(cls) or any(hasattr(cls, each) for each in ("__post_init__", "__pydantic_validator__")):
        return True
    if getattr(cls, "__parameters__", ()):
        return True
    if is_attrs(cls):
        hooks = ("__attrs_init__", "__attrs_pre_init__", "__attrs_post_init__")
        own: Any = cls
        return any(hasattr(cls, each) for each in hooks) or any(
            not each.init or each.converter or each.validator or each.alias != each.name for each in own.__attrs_attrs__
        )
    if issubclass(cls, Struct):
        return "__getattribute__" in vars(cls)
    if not is_dataclass(cls) or cls.__getattribute__ is not object.__getattribute__:
        return True
    is_frozen = getattr(cls, "__dataclass_params__").frozen  # noqa: B009 - typed nowhere
    if cls.__setattr__ is not object.__setattr__ and not is_frozen:
        return True
    return any(not each.init or _is_computed(cls, each.name) for each in fields(cls))


def _is_computed(cls: type, name: str) -> bool:
    found = getattr_static(cls, name, None)
    return hasattr(type(found), "__set__") and not isinstance(found, MemberDescriptorType)
