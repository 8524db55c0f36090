"""Databases, containers and items in memory, with the statuses that Cosmos DB documents."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

MOST_OPERATIONS = 100
MOST_BYTES = 2 * 1024 * 1024
LONGEST_ID = 1023
RANGES = (("0", "", "55"), ("1", "55", "AA"), ("2", "AA", "FF"))
"""Physical partitions: the id, and the bounds of the hashes of partition keys. So that lists come from several."""
OK, CREATED, GONE, BAD, NOT_FOUND, CONFLICT, OTHER_VERSION, TOO_LARGE, DEPENDS = 200, 201, 204, 400, 404, 409, 412, 413, 424
Item = dict[str, Any]
Partition = dict[str, Item]
Clock = Callable[[], float]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, substatus: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.substatus = status, message, substatus


class Result(NamedTuple):
    """What an operation answers."""

    status: int
    item: Item | None = None


def decoded(body: bytes) -> Any:
    """Read JSON as the service does: each number is a double, and a whole one is written without a fraction."""
    return json.loads(body, parse_int=_number, parse_float=_number)


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1e21 else value  # as in JavaScript


class Container:
    """A container: its definition, and the items of each partition."""

    def __init__(self, definition: Mapping[str, Any], clock: Clock) -> None:
        policy = {"indexingMode": "consistent", "automatic": True, "includedPaths": [{"path": "/*"}], "excludedPaths": []}
        self.definition: dict[str, Any] = {"indexingPolicy": policy, **definition, **_system(clock)}
        self.paths: list[str] = list(self.definition["partitionKey"]["paths"])
        self.partitions: dict[str, Partition] = {}
        self.lsn = 1
        self._clock = clock

    def partition(self, key: str) -> Partition:
        """Return the items of a partition that have not expired; their time is over the moment it is reached."""
        there = self.partitions.get(key, {})
        return {name: item for name, item in there.items() if not self._is_expired(item)}

    def every(self) -> Iterator[tuple[str, Item]]:
        """Return each item with the hash of its partition."""
        for key in self.partitions:
            place = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest().upper()
            for item in self.partition(key).values():
                yield min(place, "FE"), item

    def run(self, key: str, operation: Mapping[str, Any]) -> Result:
        """Apply one operation."""
        (result,) = self.batch(key, [operation], is_alone=True)
        return result

    def batch(self, key: str, operations: Sequence[Mapping[str, Any]], *, is_alone: bool = False) -> list[Result]:
        """Apply all operations to a copy of the partition, and put it in the partition's place; or apply none.

        There is no other way to write here. An operation that fails alone raises Refused.
        """
        if not 1 <= len(operations) <= MOST_OPERATIONS:
            raise Refused(BAD, f"a batch has 1 to {MOST_OPERATIONS} operations, not {len(operations)}")
        copy, results = self.partition(key), []
        for number, operation in enumerate(operations):
            try:
                results.append(self._apply(key, copy, operation))
            except Refused as refused:
                if is_alone:
                    raise
                failed = [Result(DEPENDS)] * len(operations)
                failed[number] = Result(refused.status)
                return failed
        if any(operation["operationType"] != "Read" for operation in operations):
            self.partitions[key] = copy
            self.lsn += 1
        return results

    def _apply(self, key: str, partition: Partition, operation: Mapping[str, Any]) -> Result:
        kind, body = operation["operationType"], operation.get("resourceBody")
        name = str(operation.get("id") or (body or {}).get("id") or "")
        there = partition.get(name)
        item: Item = body or {}
        if kind in {"Create", "Upsert", "Replace"}:
            self._check(key, partition, name, item)
        if kind in {"Read", "Replace", "Delete"} and there is None:
            raise Refused(NOT_FOUND, f"Entity with the specified id {name} does not exist in the system.")
        if kind == "Create" and there is not None:
            raise Refused(CONFLICT, f"Entity with the specified id {name} already exists in the system.")
        if there is not None and operation.get("ifMatch") not in {None, "*", there["_etag"]}:
            raise Refused(OTHER_VERSION, "Operation cannot be performed because one of the specified precondition is not met.")
        if kind == "Read":
            return Result(OK, there)
        if kind == "Delete":
            del partition[name]
            return Result(GONE)
        if kind not in {"Create", "Upsert", "Replace"}:
            raise Refused(BAD, f"unknown operation {kind!r}")
        rid = {} if there is None else {"_rid": there["_rid"]}
        partition[name] = {**item, **_system(self._clock), **rid}
        return Result(CREATED if there is None else OK, partition[name])

    def _check(self, key: str, partition: Partition, name: str, body: Item) -> None:
        if body.get("id") != name:
            raise Refused(BAD, "the body is not an object with the id of the request")
        if not name or len(name.encode()) > LONGEST_ID or set("/\\?#") & set(name):
            raise Refused(BAD, f"the id {name!r:.80} is invalid")
        if len(json.dumps(body, ensure_ascii=False).encode()) > MOST_BYTES:
            raise Refused(TOO_LARGE, "Request size is too large")
        if json.dumps([value_at(body, path) for path in self.paths]) != key:
            raise Refused(BAD, "PartitionKey extracted from document doesn't match the one specified in the header.", 1001)
        ttl = body.get("ttl", -1)
        if isinstance(ttl, bool) or not isinstance(ttl, int) or (ttl < 1 and ttl != -1):
            raise Refused(BAD, f"The ttl {ttl!r} is invalid: it must be a positive integer or -1.")
        for unique in self.definition.get("uniqueKeyPolicy", {}).get("uniqueKeys", ()):
            values = [value_at(body, path) for path in unique["paths"]]
            if any(
                [value_at(item, path) for path in unique["paths"]] == values
                for item in partition.values()
                if item["id"] != name
            ):
                raise Refused(CONFLICT, "Unique index constraint violation.")

    def _is_expired(self, item: Item) -> bool:
        default = self.definition.get("defaultTtl")
        ttl = item.get("ttl", default)
        return default is not None and ttl != -1 and self._clock() >= item["_ts"] + ttl


class Account:
    """An account: its databases with their containers, and its default consistency."""

    def __init__(self, clock: Clock, consistency: str) -> None:
        self.databases: dict[str, dict[str, Container]] = {}
        self.consistency = consistency
        self.clock = clock

    def containers(self, database: str) -> dict[str, Container]:
        """Return the containers of a database."""
        try:
            return self.databases[database]
        except KeyError:
            raise Refused(NOT_FOUND, f"database {database} does not exist", 1003) from None

    def container(self, database: str, name: str) -> Container:
        """Return a container."""
        try:
            return self.containers(database)[name]
        except KeyError:
            raise Refused(NOT_FOUND, f"container {name} does not exist", 1003) from None

    def create(self, database: str, definition: Mapping[str, Any]) -> Container:
        """Create a container."""
        key, there = definition.get("partitionKey") or {}, self.containers(database)
        kind, paths = key.get("kind", "Hash"), key.get("paths") or []
        if (kind, len(paths)) not in {("Hash", 1), ("MultiHash", 1), ("MultiHash", 2), ("MultiHash", 3)}:
            raise Refused(BAD, f"a partition key of kind {kind} cannot have {len(paths)} paths")
        if definition["id"] in there:
            raise Refused(CONFLICT, "the container already exists")
        there[definition["id"]] = Container(definition, self.clock)
        return there[definition["id"]]


def value_at(item: Any, path: str) -> Any:
    """Return the value at a path, None where there is none."""
    for name in path.split("/")[1:]:
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _system(clock: Clock) -> Item:
    rid = uuid4().hex[:16]
    return {"_rid": rid, "_self": f"docs/{rid}/", "_etag": f'"{uuid4()}"', "_attachments": "attachments/", "_ts": int(clock())}
