"""JSON objects as attributes of DynamoDB items, and back.

Numbers have 38 digits and lie between 1E-130 and 1E+126. A whole number comes back as an integer, so 1.0 comes back as 1.
Source: "Supported data types and naming rules" and "Item sizes and formats" of the developer guide.
"""

import json
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

__all__ = ["Attributes", "Refused", "attributes_of", "body_of", "item_size"]

LARGEST = 400 * 1024
"""The largest item in bytes, with the names of its attributes."""
_DIGITS = 38
_SMALLEST, _GREATEST = -130, 125
"""Exponents of the first digit."""
_DEEPEST = 30
"""Levels of lists and maps in one attribute. DynamoDB has 32, of which two are for the value and for the table of the store."""
_LONGEST_NAME = 65_535
_TYPES = {"S", "N", "M", "L", "BOOL", "NULL"}
Attributes: TypeAlias = Mapping[str, Mapping[str, Any]]


class Refused(ValueError):
    """A document cannot be an item, or an item cannot be a document. The message says why."""


class _JsonNumber(NamedTuple):
    digits: str
    """As JSON writes it."""


def attributes_of(body: bytes) -> Attributes:
    """Return the attributes for a JSON object. Raises Refused."""
    found = json.loads(body, parse_int=_JsonNumber, parse_float=_JsonNumber)
    return {_name(name): _attribute(value, 1) for name, value in found.items()}


def body_of(attributes: Attributes) -> bytes:
    """Return the JSON object for these attributes. Raises Refused for a type that JSON does not have, such as a set."""
    return msgspec.json.encode({name: _json(name, value) for name, value in attributes.items()})


def item_size(item: Attributes) -> int:
    """Return the size of an item as DynamoDB counts it, or slightly more."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _name(name: str) -> str:
    if not name:
        raise Refused("a field has an empty name, and an attribute of DynamoDB cannot")
    if len(name.encode()) > _LONGEST_NAME:
        raise Refused(f"the name {name[:40]!r}... is too long; the limit of DynamoDB is {_LONGEST_NAME:,} bytes")
    return name


def _attribute(value: Any, depth: int) -> dict[str, Any]:
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, _JsonNumber):
        return {"N": _number(value.digits)}
    if depth > _DEEPEST:
        raise Refused(f"it is nested too deeply; the limit of DynamoDB is {_DEEPEST + 1} levels")
    if isinstance(value, list):
        return {"L": [_attribute(each, depth + 1) for each in value]}
    return {"M": {_name(name): _attribute(each, depth + 1) for name, each in value.items()}}


def _number(text: str) -> str:
    number = Decimal(text)
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    is_whole = text.lstrip("-").isdigit()
    if len(digits) > _DIGITS or (is_whole and len(text.lstrip("-")) > _DIGITS):
        raise Refused(f"the number {text[:60]} has more than {_DIGITS} digits, the limit of DynamoDB")
    if digits and not _SMALLEST <= number.adjusted() <= _GREATEST:
        raise Refused(f"the number {text[:60]} is outside of what DynamoDB stores, 1E-130 to 9.9E+125")
    return text if digits else "0"


def _json(name: str, attribute: Mapping[str, Any]) -> Any:
    (kind, value), *more = attribute.items()
    if kind not in _TYPES or more:
        raise Refused(f"attribute {name!r:.80} has the type {kind}, which JSON does not have")
    if kind == "NULL":
        return None
    if kind == "N":
        return Raw(_digits(Decimal(value)).encode())
    if kind == "L":
        return [_json(name, each) for each in value]
    if kind == "M":
        return {each: _json(each, inner) for each, inner in value.items()}
    return value


def _digits(number: Decimal) -> str:
    is_whole = number == number.to_integral_value() and number.adjusted() < _DIGITS
    return str(int(number)) if is_whole else str(number.normalize(Context(prec=_DIGITS)))


def _size(attribute: Mapping[str, Any]) -> int:
    ((kind, value),) = attribute.items()
    if kind == "L":
        return 3 + sum(1 + _size(each) for each in value)
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _size(each) for name, each in value.items())
    if kind == "N":
        return len(value) // 2 + 2
    texts = value if kind == "SS" else [value] if kind in {"S", "B"} else []
    return sum(len(each if isinstance(each, bytes) else each.encode()) for each in texts) or 1
