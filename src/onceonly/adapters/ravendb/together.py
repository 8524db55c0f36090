"""Documents of the application in RavenDB, written in one batch with a document of the store.

The key of an address is the id, and its collection is the document's collection. A document that exists keeps the collection
and the other metadata that its users gave it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Raw

from onceonly.documents.encoding import is_text
from onceonly.model.errors import CommitRefused
from onceonly.ports.documents import Document, DocumentAddress, DocumentWrite

__all__ = ["MOST", "address_problem", "body_problem", "check_different", "command_of", "document_of", "expiry", "id_of"]

MOST = 500
"""Documents of the application in one batch. RavenDB has no limit."""
COLLECTION, EXPIRES, METADATA = "@collection", "@expires", "@metadata"
_LONGEST_ID = 512
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 253_370_764_800_000  # the year 9999
_OF_THE_SERVER = frozenset({"@id", "@change-vector", "@last-modified", "@index-score", EXPIRES})
"""DocumentMetadata that each write has anew."""
Fields = Mapping[str, Raw]


def id_of(address: DocumentAddress) -> str:
    """Return the id of a document. Raises CommitRefused for an address that cannot be one."""
    if problem := address_problem(address):
        raise CommitRefused(f"{address.key!r:.80} cannot be the id of a document: {problem}")
    return str(address.key[0])


def address_problem(address: DocumentAddress) -> str:
    """Return why there can be no document with this address in RavenDB, or ""."""
    if len(address.key) != 1:
        return f"an id has one part, not {len(address.key)}"
    name = str(address.key[0])
    if not is_text(name) or any(ord(letter) < ord(" ") for letter in name):
        return "an id has no control characters"
    if name.endswith(("/", "|")):
        return "RavenDB completes an id that ends with '/' or '|'"
    size = max(len(name.encode()), len(name.lower().encode()))
    return f"an id of {size} bytes is too long; the limit of RavenDB is {_LONGEST_ID}" if size > _LONGEST_ID else ""


def body_problem(body: bytes, limit: int) -> str:
    """Return why RavenDB would not take a document of the application, or ""."""
    if len(body) > limit:
        return f"it is {len(body):,} bytes long; the limit is {limit:,}"
    if f'"{METADATA}"'.encode() in body and METADATA in msgspec.json.decode(body, type=dict[str, Raw]):
        return f"RavenDB has metadata of its own in the field {METADATA}"
    return ""


def check_different(names: Sequence[str]) -> None:
    """Check that these ids are of different documents: RavenDB ignores case. Raises CommitRefused."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name or names.count(name) > 1:
            raise CommitRefused(f"{other!r:.80} and {name!r:.80} are the same document, because RavenDB ignores case")


def document_of(fields: Fields) -> Document:
    """Return a document of the application as its other programs see it."""
    metadata = msgspec.json.decode(fields[METADATA], type=dict[str, Any])
    body = msgspec.json.encode({name: value for name, value in fields.items() if name != METADATA})
    return Document(body=body, version=str(metadata["@change-vector"]))


def command_of(write: DocumentWrite, there: Fields | None) -> dict[str, Any]:
    """Return the write of a document as part of a batch. `there` has the metadata of the document if it exists.

    Raises CommitRefused for a document of another collection, which RavenDB does not change by a write.
    """
    name = id_of(write.address)
    if write.body is None:
        return {"Type": "DELETE", "Id": name, "ChangeVector": write.expected}
    metadata: dict[str, Any] = {} if there is None else msgspec.json.decode(there[METADATA], type=dict[str, Any])
    metadata = {key: value for key, value in metadata.items() if key not in _OF_THE_SERVER}
    if wanted := write.address.collection:
        if there is not None and (found := metadata.get(COLLECTION, "@empty")) != wanted:
            raise CommitRefused(f"document {name!r:.80} is in the collection {found!r}, not in {wanted!r}")
        metadata[COLLECTION] = wanted
    if write.expires:
        metadata[EXPIRES] = expiry(write.expires)
    fields = {**msgspec.json.decode(write.body, type=dict[str, Raw]), METADATA: metadata}
    return {"Type": "PUT", "Id": name, "ChangeVector": write.expected, "Document": fields}


def expiry(instant: int) -> str:
    """Return an instant, in milliseconds since 1970, as RavenDB's metadata have it."""
    return (_EPOCH + timedelta(milliseconds=min(instant, _LATEST_MS))).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
