"""Documents of the application as JSON: MongoDB's relaxed Extended JSON (v2), in both directions.

JSON values are themselves. Values of other types are objects such as `{"$date": "2026-01-01T00:00:00Z"}`, `{"$oid": "..."}` or
`{"$numberDecimal": "1.50"}`. A document that would come back with other values is not read at all. What JSON cannot tell is
the width of an integer, so an integer that was a 64-bit one stays one when its document is written again.
"""

from collections.abc import Mapping
from datetime import UTC
from math import isfinite
from typing import Any

import msgspec
from bson import CodecOptions, Int64, decode, encode, json_util
from bson.binary import UuidRepresentation
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError

__all__ = ["NotJson", "body_of", "fields_of", "with_widths"]

DEEPEST = 100
"""The levels of a document in MongoDB."""
_LEAST, _GREATEST = -(2**63), 2**63 - 1
_JSON = json_util.JSONOptions(
    json_mode=json_util.JSONMode.RELAXED,
    tz_aware=True,
    tzinfo=UTC,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
_BSON: "CodecOptions[dict[str, Any]]" = CodecOptions(
    tz_aware=True,
    tzinfo=UTC,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
_WRONG: tuple[type[Exception], ...] = (BSONError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What the driver raises for a value that it cannot read or write."""

_NOT_ENCODED: tuple[type[Exception], ...] = (RecursionError, msgspec.MsgspecError)


class NotJson(ValueError):
    """A document has no form in JSON, or JSON has none in MongoDB. The text completes the sentence "the document ..."."""


def body_of(raw: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return a stored document as JSON without its `_id`, and its fields as the driver decodes them. Raises NotJson.

    JSON that is written back makes the same document, byte for byte.
    """
    try:
        stored = decode(raw, _BSON)
        fields = {name: value for name, value in stored.items() if name != "_id"}
        body = msgspec.json.encode(_to_json(fields))
        again = {**stored, **with_widths(fields_of(body), fields)}
        is_same = encode(again, codec_options=_BSON) == raw
    except NotJson:
        raise
    except (*_WRONG, *_NOT_ENCODED) as error:
        raise NotJson(f"cannot be read: {error}") from error
    if not is_same:
        raise NotJson("has values whose types would be lost in JSON")
    return body, fields


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields that a JSON object describes. Raises NotJson."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise NotJson(f"is not JSON: {error}") from error
    fields = _from_json(found, DEEPEST)
    if not isinstance(fields, dict):
        raise NotJson("is not an object with fields")
    return fields


def with_widths(new: dict[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return new fields in which the integers that were 64-bit ones are so again."""
    return {name: _with_width(value, old.get(name)) for name, value in new.items()}


def _with_width(new: Any, old: Any) -> Any:
    if isinstance(old, Int64) and type(new) is int:
        return Int64(new)
    if isinstance(old, dict) and isinstance(new, dict):
        return with_widths(new, old)
    if isinstance(old, list) and isinstance(new, list):
        return [*map(_with_width, new, old), *new[len(old) :]]
    return new


def _to_json(value: Any, *, is_special: bool = False) -> Any:
    """Convert a value. `is_special` is for the inside of what Extended JSON has made, where names may begin with `$`."""
    if isinstance(value, dict):
        for name in value:
            if name.startswith("$") and not is_special:
                raise NotJson(f"has a field {name!r:.80}, which Extended JSON cannot tell from a value of its own")
        return {name: _to_json(each, is_special=is_special) for name, each in value.items()}
    if isinstance(value, list):
        return [_to_json(each, is_special=is_special) for each in value]
    if value is None or isinstance(value, bool) or type(value) is str:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and isfinite(value):
        return value
    return _to_json(dict(json_util.default(value, _JSON)), is_special=True)


def _from_json(value: Any, depth: int) -> Any:
    if depth < 0:
        raise NotJson(f"has more than {DEEPEST} levels")
    if isinstance(value, list):
        return [_from_json(each, depth - 1) for each in value]
    if isinstance(value, int) and not _LEAST <= value <= _GREATEST:
        raise NotJson(f"has the integer {value!s:.40}, and MongoDB's have 64 bits")
    if not isinstance(value, dict):
        return value
    fields = {name: _from_json(each, depth - 1) for name, each in value.items()}
    for name in fields:
        if "\0" in name:
            raise NotJson(f"has the field {name!r:.80}, with a NUL character")
        if name.startswith("$"):
            return _special(fields, name)
    return fields


def _special(fields: dict[str, Any], name: str) -> Any:
    try:
        found = json_util.object_hook(fields, _JSON)
    except _WRONG as error:
        raise NotJson(f"has a value {name!r:.80} that is not Extended JSON: {error}") from error
    if isinstance(found, dict):
        raise NotJson(f"has the field {name!r:.80}: MongoDB reserves names that begin with '$'")
    return found
