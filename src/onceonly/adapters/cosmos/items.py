"""How documents become items of a container: their ids and partitions, and what the queries for them are.

`OwnPartitions` is for a container of this library's own, with partition key /id: each item is a partition.

    id       the encoded key, after the prefix
    body     the JSON object, or `bytes` in Base64
    attempt  random, new with each write
    ttl, pending_for, pending_at

`Partitions` is for a container of the application's, with `?partition_key=`. All that is the library's is in one property:

    id            the encoded key without its partition, after the prefix
    (its paths)   the values of the partition
    onceonly      name: the whole key, after the prefix; body or bytes, attempt, pending_for, pending_at
    ttl

A document outside of partitions has a partition of its own there: the value of the first path is "onceonly-" and a hash of its
id, those of the others are "onceonly". Such are dead letters, leases, and documents of messages without `partition_key=`.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import blake2b
from string import ascii_letters, digits
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from onceonly.documents.encoding import NativeValues, decode_key, from_native, key_encoder, to_native
from onceonly.documents.pending_order import order_of
from onceonly.formats.partitions import PartitionValues, split_key
from onceonly.model.errors import PermanentFailure
from onceonly.model.wording import counted
from onceonly.ports.documents import Change

OWN_PARTITION = "/id"
"""The partition key of a container without `?partition_key=`."""
GREATEST_WHOLE = 2**53
"""Numbers are those of JavaScript: above this not every integer is one."""
OWN = "onceonly"
"""The property that only items of this library have, in a container of the application's."""
LONGEST_TTL_SECONDS = 2**31 - 1
encode = key_encoder(ascii_letters + digits + "_-:")
_encode_name = key_encoder("".join(chr(number) for number in range(0x20, 0x7F) if chr(number) != "="))
_NATIVE = NativeValues(  # the order of its fields may be that of JavaScript too
    least=-GREATEST_WHOLE,
    greatest=GREATEST_WHOLE,
    whole_floats=False,
    is_name=lambda name: not name.isdigit() and name != "__proto__",
)


class ItemPlace(NamedTuple):
    """Where the item of a document is: its id, and the values of its partition."""

    id: str
    values: PartitionValues

    @property
    def partition_key(self) -> Any:
        """The partition as the driver takes it."""
        return self.values[0] if len(self.values) == 1 else list(self.values)


class Items(Protocol):
    """The form of items in one container."""

    keys_query: str
    pending_query: str
    unlisted_paths: tuple[frozenset[str], str]
    """The paths that a list of what is pending needs in the index, and how to name them."""

    def place(self, key: str) -> ItemPlace:
        """Return where a document is. Raises PermanentFailure for one that cannot be in this container."""

    def item(self, place: ItemPlace, change: Change, now: int) -> dict[str, Any]:
        """Return the item of a change that has a body."""

    def body(self, key: str, item: Mapping[str, Any]) -> bytes:
        """Return the body of a document. Raises PermanentFailure for an item that is another program's."""

    def name(self, key: str) -> str:
        """Return what the queries compare: it is in the order of the list, and begins with the prefix."""

    def key(self, name: str) -> str:
        """Return the key again."""


class OwnPartitions:
    """See the module."""

    keys_query = "SELECT TOP {limit} VALUE c.id FROM c WHERE STARTSWITH(c.id, @prefix) AND c.id > @after ORDER BY c.id"
    pending_query = (
        "SELECT TOP {limit} c.id AS name, c.pending_at FROM c WHERE c.pending_at > @after AND c.pending_at < @before "
        "AND ARRAY_CONTAINS(c.pending_for, @endpoint) ORDER BY c.pending_at"
    )
    unlisted_paths = frozenset({"/pending_at/?", "/pending_for/[]/?"}), "/pending_at/? and /pending_for/[]/?"

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def place(self, key: str) -> ItemPlace:
        name = self.name(key)
        return ItemPlace(name, (name,))

    def item(self, place: ItemPlace, change: Change, now: int) -> dict[str, Any]:
        return {"id": place.id, "ttl": time_to_live(change.expires, now), **_content(change, place.id, self._prefix)}

    def body(self, key: str, item: Mapping[str, Any]) -> bytes:
        return _body(item)

    def name(self, key: str) -> str:
        return self._prefix + encode(key)

    def key(self, name: str) -> str:
        return decode_key(name.removeprefix(self._prefix))


class Partitions:
    """See the module."""

    keys_query = (
        "SELECT TOP {limit} VALUE c.onceonly.name FROM c WHERE STARTSWITH(c.onceonly.name, @prefix) "
        "AND c.onceonly.name > @after ORDER BY c.onceonly.name"
    )
    pending_query = (
        "SELECT TOP {limit} c.onceonly.name AS name, c.onceonly.pending_at AS pending_at FROM c "
        "WHERE c.onceonly.pending_at > @after AND c.onceonly.pending_at < @before "
        "AND ARRAY_CONTAINS(c.onceonly.pending_for, @endpoint) ORDER BY c.onceonly.pending_at"
    )
    unlisted_paths = (
        frozenset({"/onceonly/pending_at/?", "/onceonly/pending_for/[]/?"}),
        "/onceonly/pending_at/? and /onceonly/pending_for/[]/?",
    )

    def __init__(self, prefix: str, paths: tuple[str, ...]) -> None:
        self._prefix = prefix
        self.paths = paths

    def place(self, key: str) -> ItemPlace:
        placed = split_key(key)
        name = self._prefix + encode(placed.key)
        if not placed.values:
            own = f"{OWN}-{blake2b(name.encode(), digest_size=12).hexdigest()}"
            return ItemPlace(name, (own, *[OWN] * (len(self.paths) - 1)))
        if len(placed.values) != len(self.paths):
            raise PermanentFailure(
                f"partition_key= of the handler has {counted(len(placed.values), 'value')}: use {len(self.paths)}, for the "
                f"container's partition key {', '.join(self.paths)}"
            )
        if any(isinstance(value, int) and abs(value) > GREATEST_WHOLE for value in placed.values):
            raise PermanentFailure("Cosmos DB cannot store the integer in this partition key exactly: use a str")
        return ItemPlace(name, placed.values)

    def item(self, place: ItemPlace, change: Change, now: int) -> dict[str, Any]:
        name = self.name(change.key)
        item: dict[str, Any] = {"id": place.id, "ttl": time_to_live(change.expires, now)}
        self.add_partition(item, place)
        return item | {OWN: {"name": name, **_content(change, name, self._prefix)}}

    def add_partition(self, item: dict[str, Any], place: ItemPlace) -> str:
        """Add the values of the partition to an item. Returns the path at which it has another value, or ""."""
        for path, value in zip(self.paths, place.values, strict=True):
            *roots, last = path.split("/")[1:]
            inner = item
            for root in roots:
                inner = inner.setdefault(root, {})
                if not isinstance(inner, dict):
                    return path
            found = inner.setdefault(last, value)
            if found != value or isinstance(found, str) is not isinstance(value, str) or isinstance(found, bool):
                return path
        return ""

    def body(self, key: str, item: Mapping[str, Any]) -> bytes:
        own = item.get(OWN)
        if not isinstance(own, dict) or own.get("name") != self.name(key):
            raise PermanentFailure(
                f"item {item.get('id')!r} was not written by onceonly, and has the id of its document {key!r}"
            )
        return _body(own)

    def name(self, key: str) -> str:
        return self._prefix + _encode_name(key)

    def key(self, name: str) -> str:
        return decode_key(name.removeprefix(self._prefix))


class SharedPlace(NamedTuple):
    """Where a document of this library is with documents of the application, in the partition of both."""

    partitions: Partitions
    place: ItemPlace


def is_own_id(name: str) -> bool:
    """Return whether a document of this library can have this id, after any prefix: it has an encoded slash."""
    return encode("/") in name


def listed_for(prefix: str, endpoint: str) -> str:
    """Return how a list of pending items names an endpoint: endpoints of one name can have different prefixes."""
    return f"{prefix}/{endpoint}" if prefix else endpoint


def time_to_live(expires: int, now: int) -> int:
    """Return what an item has as `ttl`, in seconds; -1 for never."""
    return max(1, min(LONGEST_TTL_SECONDS, -(-(expires - now) // 1000))) if expires else -1


def _content(change: Change, name: str, prefix: str) -> dict[str, Any]:
    body = change.body or b""
    value = to_native(body, _NATIVE)
    kept: dict[str, Any] = {"bytes": b64encode(body).decode()} if value is None else {"body": value}
    if change.pending_for:
        endpoints = [listed_for(prefix, endpoint) for endpoint in change.pending_for]
        kept |= {"pending_for": endpoints, "pending_at": order_of(change.pending_since, name)}
    return {"attempt": uuid4().hex, **kept}


def _body(kept: Mapping[str, Any]) -> bytes:
    return from_native(kept["body"]) if "body" in kept else b64decode(kept["bytes"])
