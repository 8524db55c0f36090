"""What RavenDB answers, as JSON."""

import re
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, field

from onceonly.adapters.ravendb.client import RavenDBAnswer
from onceonly.model.errors import CommitFailed

__all__ = [
    "DatabaseTopology",
    "ExpirationSettings",
    "IndexResults",
    "StoredDocument",
    "StoredResults",
    "decoded",
    "version_in_batch",
    "version_of",
]

_CONTROL = re.compile(rb"[\x00-\x1f]")


class DocumentMetadata(Struct, frozen=True):
    """What the server knows of a document."""

    id: str = field(name="@id", default="")
    version: str = field(name="@change-vector", default="")


class StoredDocument(Struct, frozen=True):
    """A document of the store. `data` are the bytes of a body that is not kept as JSON."""

    metadata: DocumentMetadata = field(name="@metadata")
    body: Any = UNSET
    data: Any = field(name="bytes", default=UNSET)
    pending_at: Any = UNSET


class StoredResults(Struct, frozen=True, rename="pascal"):
    """Documents of the store, in the order that they were asked for. None for a missing one."""

    results: list[StoredDocument | None]
    is_stale: bool = False


class ApplicationResults(Struct, frozen=True, rename="pascal"):
    """Documents of the application, by the names of their fields."""

    results: list[dict[str, Raw] | None]


class TopologyNode(Struct, frozen=True, rename="pascal"):
    """A node of a database group."""

    cluster_tag: str = ""


class DatabaseTopology(Struct, frozen=True, rename="pascal"):
    """The nodes of a database group."""

    nodes: list[TopologyNode]


class ExpirationSettings(Struct, frozen=True, rename="pascal"):
    """The settings of expiration."""

    disabled: bool = False


class IndexStats(Struct, frozen=True, rename="pascal"):
    """How an index is."""

    state: str = ""
    status: str = ""


class IndexResults(Struct, frozen=True, rename="pascal"):
    """How indexes are."""

    results: list[IndexStats]


class _Written(Struct, frozen=True, rename="pascal"):
    change_vector: str = ""


class _BatchResult(Struct, frozen=True):
    version: str = field(name="@change-vector", default="")


class _BatchResults(Struct, frozen=True, rename="pascal"):
    results: list[_BatchResult]


_Kind = TypeVar("_Kind", bound=Struct)


def decoded(answer: RavenDBAnswer, kind: type[_Kind]) -> _Kind:
    """Read an answer. Raises CommitFailed for one that is not as expected.

    RavenDB 4.1 leaves control characters in texts as they are, which JSON forbids. They are repaired.
    """
    try:
        return _read(answer.body, kind)
    except msgspec.MsgspecError as error:
        raise CommitFailed(f"RavenDB gave an answer that cannot be read: {error}") from error


def version_of(answer: RavenDBAnswer) -> str:
    """Return the change vector of a document that was written. Empty if the answer has none."""
    try:
        return _read(answer.body, _Written).change_vector
    except msgspec.MsgspecError:
        return ""


def version_in_batch(answer: RavenDBAnswer, commands: int) -> str:
    """Return the change vector of the document that was written first in a batch. Empty if the answer has none.

    RavenDB 4.1 merges batches into one transaction. If one of them is refused, it undoes all, and runs each again. The answer
    has the results of both runs then, and only the last ones are true.
    """
    try:
        results = _read(answer.body, _BatchResults).results
    except msgspec.MsgspecError:
        return ""
    return results[-commands].version if len(results) >= commands else ""


def _read(body: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError:
        if not _CONTROL.search(body):
            raise
    return msgspec.json.decode(_CONTROL.sub(lambda found: b"\\u%04x" % found[0][0], body), type=kind)
