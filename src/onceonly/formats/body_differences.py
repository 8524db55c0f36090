"""The strict comparison of a body with what its receiver reads.

Two values are the same if they have the same class and, field by field, the same type and value, whatever `__eq__` says.
Where the class declares no type, such as in a `dict`, JSON's own types count: a tuple is an array there, like a list.
An `int` in a field that is declared as `float` counts as the float, as PEP 484 has it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from onceonly.formats.body_fields import UNSET_FIELD, field_values, is_secret_name
from onceonly.model.wording import an

LONGEST_SHOWN = 60
"""Characters of a value in an error."""


class Difference(NamedTuple):
    """What would not arrive: the field, such as `lines[0].price`, empty for the body itself, and the reason."""

    path: str
    reason: str

    def inside(self, name: object) -> "Difference":
        """Return it as seen from what contains it. Values of a field with the name of a secret are not shown."""
        reason = "it would not arrive as it is" if isinstance(name, str) and is_secret_name(name) else self.reason
        return Difference(joined(_step(name), self.path), reason)

    def at(self, index: int) -> "Difference":
        """Return it as seen from the list that contains it."""
        return Difference(joined(f"[{index}]", self.path), self.reason)

    def __str__(self) -> str:
        return f"field {self.path}: {self.reason}" if self.path else self.reason


def untyped_difference(value: object) -> Difference | None:  # noqa: PLR0911 - one for each type
    """Return the first thing in a value that is not one of JSON's own types: text, numbers, booleans, None, lists, dicts."""
    kind = value.__class__
    if value is None or kind is str or kind is int or kind is bool:
        return None
    if kind is float:
        return None if math.isfinite(value) else _not_finite(value)  # type: ignore[arg-type]
    if kind is list or kind is tuple:
        for index, each in enumerate(value):  # type: ignore[arg-type, var-annotated]
            if (found := untyped_difference(each)) is not None:
                return found.at(index)
        return None
    if isinstance(value, dict):
        for key, each in value.items():
            if key.__class__ is not str:
                return Difference("", f"the key {shown(key)} is {an(type(key).__name__)}; JSON has text as keys only. Use str")
            if (found := untyped_difference(each)) is not None:
                return found.inside(key)
        return None
    hint = "Use its value" if isinstance(value, Enum) else "Use a class with typed fields, or convert it"
    return Difference("", f"{an(kind.__name__)} is not one of JSON's own types, so it would arrive as another. {hint}")


def first_difference(sent: object, read: object, declared: Any = None) -> Difference | None:  # noqa: C901, PLR0911 - one for each type
    """Return the first difference between what is sent and what its receiver reads, or None.

    `declared` is the type that the value is declared as; None if it is not known.
    """
    if declared is Any:
        return untyped_difference(sent) or first_difference(_as_json(sent), read)
    kind = sent.__class__
    if kind is read.__class__ and kind in _SIMPLE:
        return None if sent == read else _changed(sent, read)
    if (kind is float and not math.isfinite(sent)) or (kind is Decimal and not sent.is_finite()):  # type: ignore[arg-type, attr-defined]
        return _not_finite(sent)
    if kind is not read.__class__:
        if kind is int and read.__class__ is float and sent == read:
            return None
        return Difference("", f"{an(kind.__name__)} would arrive as {an(read.__class__.__name__)}")
    compare = _COMPARED.get(kind)
    if compare is not None:
        return None if compare(sent, read) else _changed(sent, read)
    inside = field_values(sent)
    if inside is not None:
        return _field_difference(dict(inside), dict(field_values(read) or ()), kind)
    if isinstance(sent, dict):
        return _dict_difference(sent, read, declared)
    if isinstance(sent, list | tuple):
        return _item_difference(sent, read, declared)
    if isinstance(sent, set | frozenset):
        return _set_difference(sent, read)
    return None if sent == read else _changed(sent, read)


def _as_json(value: Any) -> Any:
    """Return an untyped value as JSON has it: tuples are lists, and every kind of dict is a dict."""
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return value


@lru_cache(1024)
def declared_types(kind: type) -> Mapping[str, Any]:
    """Return the types of a class's fields by name; none if its annotations cannot be evaluated."""
    try:
        return {name: _plain(each) for name, each in get_type_hints(kind, include_extras=False).items()}
    except Exception:  # noqa: BLE001 - annotations are code of the user's
        return {}


def _plain(declared: Any) -> Any:
    """Return a declared type without its wrappers; Any for one that declares nothing, None for one that is not known."""
    while hasattr(declared, "__supertype__"):
        declared = declared.__supertype__
    if get_origin(declared) in (ClassVar, Final):
        declared = get_args(declared)[0]
    if isinstance(declared, TypeVar):
        return None
    return Any if declared is object else declared


def _inside(declared: Any, value: object, index: int = 0) -> Any:
    """Return the declared type of the items or values of a container, None if it is not known."""
    declared = _plain(declared)
    for each in get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,):
        origin, types = get_origin(each) or each, get_args(each)
        if not _is_instance(value, origin):
            continue
        if not types:
            return Any if origin in (dict, list, tuple, set, frozenset) else None
        if isinstance(value, dict):
            return _plain(types[1])
        is_fixed = isinstance(value, tuple) and Ellipsis not in types
        return _plain(types[index if is_fixed and index < len(types) else 0])
    return None


def _same_instant(sent: Any, read: Any) -> bool:
    same = sent.replace(tzinfo=None) == read.replace(tzinfo=None) and sent.fold == read.fold
    return bool(same and sent.utcoffset() == read.utcoffset())


_SIMPLE = frozenset({str, int, bool, bytes, type(None), UUID, date})
"""Types whose equal values are the same."""
_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    float: lambda sent, read: sent == read and math.copysign(1, sent) == math.copysign(1, read),
    Decimal: lambda sent, read: sent.as_tuple() == read.as_tuple(),
    datetime: _same_instant,
    time: _same_instant,
    msgspec.Raw: lambda sent, read: bytes(sent) == bytes(read),
}


def _is_instance(value: object, kind: Any) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a TypedDict, or no class at all
        return False


def _field_difference(sent: dict[str, Any], read: dict[str, Any], kind: type) -> Difference | None:
    declared = declared_types(kind)
    for name, value in sent.items():
        other = read.get(name, UNSET_FIELD)
        if value is UNSET_FIELD and other is UNSET_FIELD:
            continue
        if value is UNSET_FIELD or other is UNSET_FIELD:
            reason = "it would not arrive" if other is UNSET_FIELD else "it has no value, and would get one"
            return Difference("", reason).inside(name)
        if (found := first_difference(value, other, declared.get(name))) is not None:
            return found.inside(name)
    return None


def _dict_difference(sent: Any, read: Any, declared: Any) -> Difference | None:
    keys = {key: key for key in read}
    inside = _inside(declared, sent)
    for key, value in sent.items():
        if key not in keys:
            return Difference("", f"the key {shown(key)} would not arrive")
        if first_difference(key, keys[key]) is not None:
            return Difference("", f"the key {shown(key)} would arrive as {shown(keys[key])}")
        if (found := first_difference(value, read[key], inside)) is not None:
            return found.inside(key)
    return None if len(sent) == len(read) else Difference("", "keys are equal once they are text, so one would be lost")


def _item_difference(sent: Any, read: Any, declared: Any) -> Difference | None:
    if len(sent) != len(read):
        return Difference("", f"{len(sent)} items would arrive as {len(read)}")
    for index, (value, other) in enumerate(zip(sent, read, strict=True)):
        if (found := first_difference(value, other, _inside(declared, sent, index))) is not None:
            return found.at(index)
    return None


def _set_difference(sent: Any, read: Any) -> Difference | None:
    others = {each: each for each in read}
    for each in sent:
        if each not in others:
            return Difference("", f"{shown(each)} would not arrive")
        if (found := first_difference(each, others[each])) is not None:
            return found
    return None if len(sent) == len(read) else Difference("", f"{len(sent)} items would arrive as {len(read)}")


def _not_finite(value: object) -> Difference:
    return Difference("", f"JSON has no {value}. Send None, or text")


def _changed(sent: Any, read: Any) -> Difference:
    if getattr(sent, "fold", 0) and getattr(read, "tzinfo", None) == getattr(sent, "tzinfo", None):
        return Difference("", f"{shown(sent)} has fold=1, which JSON does not keep. Convert it to UTC")
    if getattr(sent, "fold", 0):
        return Difference("", f"{shown(sent)} has fold=1, which JSON does not keep. Convert it with .astimezone(UTC)")
    return Difference("", f"{shown(sent)} would arrive as {shown(read)}")


def shown(value: object) -> str:
    """Return the short representation of a value, for an error on one line."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - a __repr__ of the user's
        return an(type(value).__name__)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _step(name: object) -> str:
    return name if isinstance(name, str) and name.isidentifier() else f"[{shown(name)}]"


def joined(path: str, step: str) -> str:
    return f"{path}.{step}" if path and step and not step.startswith("[") else f"{path}{step}"


def unwritable_field(value: object, encode: Callable[[Any], object]) -> str:
    """Return the path of the innermost part of a value that cannot be encoded, empty if it is the value itself."""
    path = ""
    for _ in range(20):  # levels; a deeper part is named by what contains it
        inner = next((step for step in _steps(value, path) if not _is_encodable(encode, step[1])), None)
        if inner is None:
            break
        path, value = inner
    return path


def _steps(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    inside = field_values(value)
    if inside is not None:
        return [(joined(path, _step(name)), each) for name, each in inside if each is not UNSET_FIELD]
    if isinstance(value, dict):
        return [(joined(path, _step(key)), each) for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"{path}[{index}]", each) for index, each in enumerate(value)]
    return ()


def _is_encodable(encode: Callable[[Any], object], value: object) -> bool:
    try:
        encode(value)
    except Exception:  # noqa: BLE001 - whatever it raised, it is this part
        return False
    return True
