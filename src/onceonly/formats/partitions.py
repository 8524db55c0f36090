"""Partitions: the values that a service places documents by, at the beginning of a unit and in the key of its document.

    unit  /["acme",7]/Account/A         an entity in a partition
          /["acme",7]/                  a partition alone: each of its messages has a document of its own
    key   entity//["acme",7]/Account/A  the document of the entity

No name of an entity and of an endpoint is empty, so nothing else has a "/" there.
"""

from collections.abc import Sequence
from json import JSONDecoder
from typing import NamedTuple

import msgspec

from onceonly.formats.bodies import BodyError
from onceonly.formats.entities import key_value

PartitionValue = str | int
PartitionValues = tuple[PartitionValue, ...]
MOST_VALUES = 3
"""How many values a partition has at most, as in Cosmos DB."""
_decoder = JSONDecoder()


class PlacedKey(NamedTuple):
    """The key of a document without its partition, and the values of that; none for a document outside of partitions."""

    values: PartitionValues
    key: str


def partition_text(values: Sequence[object]) -> str:
    """Return what a unit in this partition begins with. Raises BodyError when a partition cannot have these values."""
    if not 1 <= len(values) <= MOST_VALUES:
        raise BodyError(f"its partition has {len(values)} values; it must have 1 to {MOST_VALUES}")
    try:
        return f"/{msgspec.json.encode([key_value(each, 'partition key') for each in values]).decode()}/"
    except UnicodeEncodeError as error:
        raise BodyError("its partition key is not valid UTF-8: it contains an unpaired surrogate") from error


def split_unit(unit: str) -> tuple[str, str]:
    """Return the partition of a unit, as `partition_text` wrote it, and the rest; "" for a unit outside of partitions."""
    if not unit.startswith("/["):
        return "", unit
    _, end = _decoder.raw_decode(unit, 1)
    return unit[: end + 1], unit[end + 1 :]


def split_key(key: str) -> PlacedKey:
    """Take the partition out of the key of a document, so that an adapter places the document by it."""
    kind, _, unit = key.partition("/")
    if not unit.startswith("/["):
        return PlacedKey((), key)
    partition, rest = split_unit(unit)
    return PlacedKey(tuple(msgspec.json.decode(partition[1:-1])), f"{kind}/{rest}")


def join_key(placed: PlacedKey) -> str:
    """Return the key of a document again from what `split_key` made of it."""
    kind, _, rest = placed.key.partition("/")
    return f"{kind}/{partition_text(placed.values)}{rest}" if placed.values else placed.key
