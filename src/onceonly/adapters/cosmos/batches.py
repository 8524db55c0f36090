"""One document of the store and documents of the application in one transactional batch of Cosmos DB.

A batch is applied as a whole or not at all. If an operation fails, the answer has its status, and 424 for all others. Only such
an answer makes certain that nothing was written. What the status means is decided by allow-list (`refused`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec
from azure.cosmos.exceptions import CosmosBatchOperationError

from onceonly.adapters.cosmos.client import TOO_MANY_REQUESTS, Pause
from onceonly.adapters.cosmos.items import GREATEST_WHOLE, OWN, SharedPlace, is_own_id, time_to_live
from onceonly.model.errors import CommitFailed, CommitRefused, OnceOnlyError, OutcomeUnknown
from onceonly.ports.documents import Change, DocumentAddress, DocumentWrite

MOST_OPERATIONS = 100
MOST_BYTES = 2 * 1024 * 1024
"""The greatest request, and the greatest document of the application."""
LARGEST_DOCUMENT = MOST_BYTES - 8 * 1024
"""Less the names, the condition and the properties that the service adds."""
_LONGEST_ID = 1023
_NOT_IN_AN_ID = frozenset("/\\?#")
_SYSTEM = frozenset({"_rid", "_self", "_etag", "_attachments", "_ts"})
"""Properties that the service adds."""
_DEPENDS_ON_ANOTHER = 424
_OTHER_VERSION = {"Create": {409}, "Replace": {404, 412}, "Delete": {404, 412}}
"""Statuses of an operation whose condition was not met."""
_REFUSED = {400, 413}
_FAILED = {401, 403, TOO_MANY_REQUESTS, 449}
_CONFLICT = 409

Operation = tuple[str, tuple[Any, ...], dict[str, Any]]
"""An operation as the driver takes it."""


def operations_of(shared: SharedPlace, change: Change, writes: Sequence[DocumentWrite], now: int) -> list[Operation]:
    """Return the batch. Raises CommitRefused for one that the service would not take."""
    batch = [*_of_store(shared, change, now), *(_of_application(shared, write, now) for write in writes)]
    if len(batch) > MOST_OPERATIONS:
        raise CommitRefused(f"{len(batch)} documents would be written together; the limit of Cosmos DB is {MOST_OPERATIONS}")
    if (size := len(msgspec.json.encode(batch))) > MOST_BYTES:
        raise CommitRefused(
            f"{len(batch)} documents would be written together, with {size:,} bytes; the limit of Cosmos DB is {MOST_BYTES:,}. "
            "Write smaller documents, or fewer with one message"
        )
    return batch


def problem_of(shared: SharedPlace, write: DocumentWrite) -> str:
    """Return why the service would never take this document, or ""."""
    return next(_problems(shared, write), "")


def _problems(shared: SharedPlace, write: DocumentWrite) -> Iterator[str]:
    if problem := address_problem(write.address):
        yield problem
        return
    if write.body is None:
        return
    if len(write.body) > LARGEST_DOCUMENT:
        yield f"it is {len(write.body):,} bytes long; the limit of Cosmos DB is {LARGEST_DOCUMENT:,}"
    name, document = write.address.key[0], _decoded(write.body)
    if document.get("id", name) != name:
        yield f"its id is {document['id']!r:.80}, and it is written as {name!r:.80}"
    if isinstance(document.get(OWN), dict):
        yield f"an object with the name {OWN} marks documents of this library: use another name"
    if not write.expires and "ttl" in document and not _is_ttl(document["ttl"]):
        yield f"its ttl is {document['ttl']!r:.80}: Cosmos DB takes seconds from 1, or -1 for never"
    if not _is_exact(document):
        yield f"it has a number that Cosmos DB stores inexactly, such as an integer beyond {GREATEST_WHOLE:,}: use a str"
    if path := shared.partitions.add_partition(document, shared.place):
        yield f"its {path} is not the partition that the message is in"


def address_problem(address: DocumentAddress) -> str:
    """Return why no document of the application can have this address, or ""."""
    if address.collection:
        return "a batch of Cosmos DB is in one container: leave collection= out"
    if len(address.key) != 1 or not isinstance(address.key[0], str):
        return "the id of a document in Cosmos DB is one str"
    name = address.key[0]
    if len(name.encode()) > _LONGEST_ID or _NOT_IN_AN_ID & set(name) or name != name.strip():
        return f"an id in Cosmos DB has at most {_LONGEST_ID} bytes, none of / \\ ? #, and no space at an end"
    return "the id of a document of the application cannot contain =2F" if is_own_id(name) else ""


def body_of(item: Mapping[str, Any]) -> bytes:
    """Return a document of the application as JSON, without what the service adds. Raises CommitRefused for one of ours."""
    if isinstance(item.get(OWN), dict):
        raise CommitRefused(f"item {item.get('id')!r:.80} is a document of this library, not one of the application")
    try:
        return msgspec.json.encode({name: value for name, value in item.items() if name not in _SYSTEM})
    except (UnicodeError, OverflowError, msgspec.MsgspecError) as error:
        raise CommitRefused(f"item {item.get('id')!r:.80} cannot be read as JSON: {error}") from error


def refused(error: CosmosBatchOperationError, batch: Sequence[Operation], pause: Pause) -> OnceOnlyError | None:
    """Return what a refused batch means: None if the condition of an operation was not met, for sure."""
    answers: Sequence[Mapping[str, Any]] = error.operation_responses or ()
    statuses = [int(answer.get("statusCode", 0)) for answer in answers]
    failed = [number for number, status in enumerate(statuses) if status != _DEPENDS_ON_ANOTHER]
    if len(answers) != len(batch) or len(failed) != 1:
        return OutcomeUnknown(f"Cosmos DB: a batch was answered with {statuses}, which is not the answer to a refused one")
    (number,) = failed
    status, kind = statuses[number], batch[number][0].capitalize()
    text = f"Cosmos DB: operation {number + 1} of {len(batch)} in a batch, {kind}, was refused with status {status}"
    if status == TOO_MANY_REQUESTS:
        pause.asked(answers[number].get("retryAfterMilliseconds"))
    if status in _OTHER_VERSION.get(kind, ()) and not answers[number].get("subStatusCode"):
        return None
    if status in _REFUSED:
        return CommitRefused(text)
    return CommitFailed(text) if status in _FAILED or status == _CONFLICT else OutcomeUnknown(text)


def version_of(answers: Sequence[Mapping[str, Any]], batch: Sequence[Operation], change: Change) -> str:
    """Return the new version of the store's document. Raises OutcomeUnknown for an answer that does not have it."""
    if len(answers) != len(batch):
        raise OutcomeUnknown(f"Cosmos DB answered {len(answers)} of {len(batch)} operations in a batch")
    if change.body is None:
        return ""
    version = answers[0].get("eTag")
    if not version:
        raise OutcomeUnknown("Cosmos DB returned no ETag for a write in a batch, so its version is unknown")
    return str(version)


def _of_store(shared: SharedPlace, change: Change, now: int) -> list[Operation]:
    partitions, place = shared
    if change.body is not None:
        item = partitions.item(place, change, now)
        if change.expected:
            return [("replace", (place.id, item), {"if_match_etag": change.expected})]
        return [("create", (item,), {})]
    if change.expected:
        return [("delete", (place.id,), {"if_match_etag": change.expected})]
    empty = partitions.item(place, Change(key=change.key, body=b""), now)  # there is no condition for "must not exist"
    return [("create", (empty,), {}), ("delete", (place.id,), {})]


def _of_application(shared: SharedPlace, write: DocumentWrite, now: int) -> Operation:
    if problem := problem_of(shared, write):
        raise CommitRefused(f"cannot write document {write.address.key!r:.80}: {problem}")
    name = str(write.address.key[0])
    if write.body is None:
        return ("delete", (name,), {"if_match_etag": write.expected})
    document: dict[str, Any] = {"id": name, **_decoded(write.body)}
    for system in _SYSTEM & document.keys():
        del document[system]
    shared.partitions.add_partition(document, shared.place)
    if write.expires:
        document["ttl"] = time_to_live(write.expires, now)
    if write.expected is None:
        return ("upsert", (document,), {})
    if not write.expected:
        return ("create", (document,), {})
    return ("replace", (name, document), {"if_match_etag": write.expected})


def _decoded(body: bytes) -> dict[str, Any]:
    """Return a JSON object, with integers of any size as they are."""
    found: dict[str, Any] = json.loads(body)
    return found


def _is_ttl(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (value == -1 or value >= 1)


def _is_exact(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_exact, value.values()))
    if isinstance(value, list):
        return all(map(_is_exact, value))
    if isinstance(value, float):
        return isfinite(value)
    return not isinstance(value, int) or abs(value) <= GREATEST_WHOLE
