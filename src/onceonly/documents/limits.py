"""The sizes of documents. Each adapter checks them before it sends anything."""

from collections.abc import Iterable, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from onceonly.documents.encoding import is_text
from onceonly.model.errors import CommitRefused
from onceonly.ports.documents import Change, DocumentLimits, DocumentWrite, SavesTogether

__all__ = ["can_be_held", "check_limits", "check_writes", "shorter"]

KIB, MIB = 1024, 1024 * 1024
DOCUMENT_LIMITS = MappingProxyType(
    {
        limits.service: limits
        for limits in (
            # An item has 400 KiB, of which 4 KiB are for its key, version, expiry and the names of its attributes.
            DocumentLimits(service="DynamoDB", key=1024, body=400 * KIB - 4 * KIB),
            # The service takes 5 GiB. A document is in memory as a whole, and each write sends all of it.
            DocumentLimits(service="S3", key=1024, body=64 * MIB),
            # 512 letters of a row key, 3 for each byte. An entity has 1 MiB, less keys, version and a header for each property.
            DocumentLimits(service="Azure Table", key=512 // 3, body=1_047_072),
            DocumentLimits(service="Azure Blob", key=1024, body=16 * MIB),
            # An id has 1,023 letters, 3 for each byte. A document has 2 MB, and bytes in Base64 take a third more.
            DocumentLimits(service="Cosmos DB", key=1023 // 3, body=1_450_000),
            DocumentLimits(service="MongoDB", key=1024, body=16 * MIB - 16 * KIB),
            # An id has 512 bytes. A document has no limit, and bytes in Base64 take a third more.
            DocumentLimits(service="RavenDB", key=512, body=16 * MIB),
            DocumentLimits(service="Redis", key=1024, body=16 * MIB),
            DocumentLimits(service="a SQL database", key=1024, body=4 * MIB),
            DocumentLimits(service="memory", key=1024, body=MIB),
        )
    }
)
"""The limits of each service, by its name. Where keys are stored below a prefix or encoded, `shorter` gives what is left."""
_SHOWN = 80


def shorter(limits: DocumentLimits, *, taken: int, encoded: int = 1) -> DocumentLimits:
    """Return limits for keys that are stored with a prefix of `taken` bytes, and encoded.

    `encoded` is how many bytes one byte of a key can take: 3 for `onceonly.documents.encoding.key_encoder`.
    """
    return replace(limits, key=(limits.key - taken) // encoded)


def check_limits(changes: Iterable[Change], limits: DocumentLimits) -> None:
    """Check that keys and bodies are within the limits. Raises CommitRefused, which names the first that is not.

    Call it in `Documents.save` before anything is sent.
    """
    for change in changes:
        shown = change.key[:_SHOWN]
        if not change.key:
            raise CommitRefused("the key of a document is empty: use at least one character")
        if not is_text(change.key):
            raise CommitRefused(f"the key {shown!r} is not valid UTF-8: it contains an unpaired surrogate")
        length = len(change.key.encode())
        if length > limits.key:
            raise CommitRefused(f"the key {shown!r}... is {length} bytes long; the limit of {limits.service} is {limits.key}")
        size = len(change.body or b"")
        if size > limits.body:
            raise CommitRefused(f"document {shown!r} is {size:,} bytes long; the limit of {limits.service} is {limits.body:,}")


def check_writes(documents: SavesTogether, key: str, writes: Sequence[DocumentWrite]) -> None:
    """Check that documents of the application can be written next to the document with this key. Raises CommitRefused.

    Call it in `SavesTogether.save_together` before anything is sent.
    """
    if len(writes) > documents.max_together:
        raise CommitRefused(f"{len(writes)} documents are to be written at once; the limit is {documents.max_together}")
    for write in writes:
        if problem := documents.problem_of(key, write):
            raise CommitRefused(f"cannot write document {write.address.key!r:.80}: {problem}")


def can_be_held(key: str, limits: DocumentLimits) -> bool:
    """Return whether a document can have this key. A read can leave out keys that no document can have."""
    return bool(key) and is_text(key) and len(key.encode()) <= limits.key
