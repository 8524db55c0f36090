"""Entities of the application: which key an address means, and JSON objects as properties.

An entity is in the partition of its unit, and the value of its key is its RowKey, as it is. The fields of a document are
properties of their names: texts are String, numbers Int32, Int64 or Double, and true and false Boolean. No property is a list
or an object, and none is null. A document that was read has the fields PartitionKey and RowKey, which are texts.

Source: "Understanding the Table service data model" of the REST API.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from azure.data.tables import EdmType, EntityProperty

from onceonly.formats.partitions import PartitionValues
from onceonly.model.errors import CommitRefused
from onceonly.model.wording import an
from onceonly.ports.documents import DocumentAddress

__all__ = ["OWN_ROW", "body_of", "check_size", "keys_of", "partition_name", "properties_of", "row_of"]

OWN_ROW = "~."
"""What begins the row key of a document of the store in a partition of the application."""
LONGEST_KEY = 512
"""Characters of a key: 1 KiB of UTF-16."""
_LARGEST = 1024 * 1024
_LONGEST_TEXT = 64 * 1024  # in UTF-16
_LONGEST_NAME = 255
_MOST_PROPERTIES = 252
_TIMESTAMP = "Timestamp"
_NOT_IN_KEYS = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f]")
_INT32, _INT64 = range(-(2**31), 2**31), range(-(2**63), 2**63)


def partition_name(values: PartitionValues) -> str:
    """Return the PartitionKey: the value as it is, several joined by "|". Raises CommitRefused for what cannot be one."""
    texts = [str(value) for value in values]
    if len(texts) > 1 and any("|" in text for text in texts):
        raise CommitRefused(f"the partition {values!r:.80} has a value with '|', which separates the values of a PartitionKey")
    name = "|".join(texts)
    if problem := _key_problem(name):
        raise CommitRefused(f"{name!r:.80} cannot be a PartitionKey of Azure Table: {problem}")
    return name


def row_of(address: DocumentAddress) -> str:
    """Return the RowKey of a document. Raises CommitRefused for an address that has none."""
    if len(address.key) != 1:
        raise CommitRefused(f"its key has {len(address.key)} values, and a RowKey is one")
    name = str(address.key[0])
    if name.startswith(OWN_ROW):
        raise CommitRefused(f"a RowKey that begins with {OWN_ROW!r} is one of the store")
    if problem := _key_problem(name):
        raise CommitRefused(f"{name!r:.80} cannot be a RowKey of Azure Table: {problem}")
    return name


def keys_of(partition: str, row: str) -> dict[str, str]:
    """Return the properties that are the key of an entity."""
    return {"PartitionKey": partition, "RowKey": row}


def properties_of(body: bytes, keys: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the properties for a JSON object without its keys, as the driver takes them.

    Raises CommitRefused for what cannot be one.
    """
    fields = json.loads(body)
    for name, value in keys.items():
        if (found := fields.pop(name, value)) != value:
            raise CommitRefused(f"its field {name!r} is {found!r:.80}, and its key is {value!r:.80}")
    if len(fields) > _MOST_PROPERTIES:
        raise CommitRefused(f"it has {len(fields)} fields; the limit of Azure Table is {_MOST_PROPERTIES}")
    return {_name(name): _property(name, value) for name, value in fields.items()}


def body_of(properties: Mapping[str, Any], keys: Mapping[str, str]) -> bytes:
    """Return the JSON object for an entity as the driver reads it, with its keys.

    Raises CommitRefused for types that JSON does not have.
    """
    others = {name: value for name, value in properties.items() if name != _TIMESTAMP and name not in keys}
    return msgspec.json.encode({**keys, **{name: _json(name, value) for name, value in others.items()}})


def check_size(partition: str, row: str, properties: Mapping[str, Any]) -> None:
    """Check the size of an entity as the service counts it. Raises CommitRefused."""
    size = 4 + 2 * (len(partition) + len(row)) + sum(8 + 2 * len(name) + _size(value) for name, value in properties.items())
    if size > _LARGEST:
        raise CommitRefused(f"its entity is {size:,} bytes long; the limit of Azure Table is {_LARGEST:,}")


def _key_problem(name: str) -> str:
    if found := _NOT_IN_KEYS.search(name):
        return f"it contains {found[0]!r}"
    length = len(name.encode("utf-16-le")) // 2
    return f"it has {length} characters; the limit is {LONGEST_KEY}" if length > LONGEST_KEY else ""


def _name(name: str) -> str:
    if not name.isidentifier() or len(name) > _LONGEST_NAME:
        raise CommitRefused(
            f"field {name!r:.80} cannot be a property of Azure Table: use at most {_LONGEST_NAME} letters, digits and _"
        )
    if name == _TIMESTAMP:
        raise CommitRefused(f"field {name!r} is a property that every entity of Azure Table has: use another name")
    return name


def _property(name: str, value: Any) -> Any:
    if value is None or isinstance(value, list | dict):
        what = "null" if value is None else "a list" if isinstance(value, list) else "an object"
        raise CommitRefused(f"field {name!r:.80} is {what}, and properties of Azure Table are texts, numbers, true or false")
    if isinstance(value, str) and (size := len(value.encode("utf-16-le"))) > _LONGEST_TEXT:
        raise CommitRefused(
            f"field {name!r:.80} is {size:,} bytes long in UTF-16; the limit of Azure Table is {_LONGEST_TEXT:,}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise CommitRefused(f"field {name!r:.80} is a number too large for a property of Azure Table")
    if isinstance(value, bool) or not isinstance(value, int) or value in _INT32:
        return value
    if value not in _INT64:
        raise CommitRefused(f"field {name!r:.80} is {value}, and integers of Azure Table have 64 bits")
    return EntityProperty(value, EdmType.INT64)


def _json(name: str, value: Any) -> Any:
    if isinstance(value, EntityProperty):
        if value.edm_type != EdmType.INT64:
            raise CommitRefused(f"property {name!r:.80} has the type {value.edm_type}, which JSON does not have")
        return int(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        raise CommitRefused(f"property {name!r:.80} is {value}, which JSON does not have")
    if not isinstance(value, str | int | float):
        raise CommitRefused(f"property {name!r:.80} is {an(type(value).__name__)}, which JSON does not have")
    return value


def _size(value: Any) -> int:
    return 4 + len(value.encode("utf-16-le")) if isinstance(value, str) else 8
