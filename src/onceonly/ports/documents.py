"""The protocol of document services: compare-and-set on single documents.

The store, the dedup store, the tokens and the dead letters are built on it. A write is applied, or refused because the document
has another version, or it raises CommitFailed (nothing happened) or OutcomeUnknown. Turn off the retries of a driver for
writes: a repeated write that had succeeded finds another version, its own.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

__all__ = [
    "Change",
    "Document",
    "DocumentAddress",
    "DocumentLimits",
    "DocumentWrite",
    "Documents",
    "ListsPending",
    "PendingDocument",
    "SavesTogether",
    "Version",
]

Version = str
"""The version of a document. It is never empty, and never repeats for a key, not even after the document was deleted."""


class Document(Struct, frozen=True):
    """A document as it was read. A later write names its version."""

    body: bytes
    version: Version


class Change(Struct, frozen=True, kw_only=True):
    """A write of one document.

    * `body`: the new body. None deletes the document.
    * `expected`: the version that the document must have. Empty: it must not exist.
    * `expires`: milliseconds since 1970, or 0 for never. A service that can deletes the document some time after this.
    * `pending_for`: the endpoints whose messages the document has and that are not sent yet. Empty: none.
    * `pending_since`: milliseconds since 1970 of the earliest commit of these.

    Documents that list what is pending (`ListsPending`) change their list in the same write. All others ignore both.
    """

    key: str
    body: bytes | None
    expected: Version = ""
    expires: int = 0
    pending_for: tuple[str, ...] = ()
    pending_since: int = 0


class DocumentLimits(Struct, frozen=True, kw_only=True):
    """The largest documents of a service. `service` is its name in error messages.

    `key` is the longest key in bytes of UTF-8, `body` the longest body in bytes. Within these limits every key and body comes
    back exactly. An adapter encodes what its service does not take.
    """

    service: str
    key: int
    body: int


class Documents(Protocol):
    """The documents in one place of a service: a table, a container, or a bucket with a prefix."""

    limits: DocumentLimits

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read documents by their keys. Those that do not exist are left out.

        A read returns the result of every write that has finished. Several documents need not be of one moment. Raises
        CommitFailed, OutcomeUnknown.
        """

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write documents with different keys. Return an answer for each, in order.

        The answer is the new version, "" for a deleted document, or None if the document did not have the expected version,
        and this change did not happen. A delete of what must not exist, and does not, may have either answer. Each document is
        written atomically, but not all of them together. Raises CommitFailed if none was written, CommitRefused if in addition
        the service will never accept one of them, and OutcomeUnknown if some may have been written, each at most once.
        """

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys that begin with `prefix` and come after the key `after`, `limit` at most. Return none at the end.

        The order is the same in every call. The list may be some seconds old: it is for maintenance and for people. Raises
        CommitFailed, OutcomeUnknown.
        """

    async def check(self) -> tuple[str, ...]:
        """Check, at start, that the place exists and that its settings keep these promises. Return warnings for people.

        Raises SetupError if not, for example where reads may be stale. Raises RetryableError if the service does not answer.
        """


class PendingDocument(Struct, frozen=True):
    """An entry of the list of pending documents: the key, and `pending_since` of the write that listed it."""

    key: str
    since: int


@runtime_checkable
class ListsPending(Protocol):
    """Documents that list those with unsent messages. Optional, in addition to `Documents`.

    The list is changed by the write of the document, atomically with it. So a document whose last write named an endpoint is
    in the endpoint's list, and one that was written without it, or deleted, is not. Reading the list costs as much as what is
    pending. The other documents are not read.
    """

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """List the documents whose last write named this endpoint, with a `pending_since` earlier than `before`.

        At most `limit`, and fewer only at the end of the list. The earliest come first, and the order among equal times never
        changes. With `after` those behind that entry, whether it is still listed or not. The list may be some seconds old.
        Raises CommitFailed, OutcomeUnknown.
        """

    async def why_unlisted(self) -> str:
        """Return why this place has no such list and how to get one, such as a missing index. Empty if it has a list.

        Raises CommitFailed, OutcomeUnknown.
        """


class DocumentAddress(Struct, frozen=True):
    """Where a document of the application is.

    `collection` is the service's own word for it: a collection, a table. Empty: the place of the store itself. `key` has the
    values of its key: one, or more where the service has keys of several parts. In a service with partitions, the document is
    in the partition of the unit, and `key` does not contain it.
    """

    collection: str
    key: tuple[str | int, ...]


class DocumentWrite(Struct, frozen=True, kw_only=True):
    """A write of a document of the application, which is saved together with a document of the store.

    * `body`: a JSON object. None deletes the document; then `expected` is a version. Key fields, see `SavesTogether`, may be
      left out. `problem_of` refuses those that differ from the key. The document is stored in the same way with and without.
    * `expected`: the version that the document must have. Empty: it must not exist. None: whatever is there is replaced.
    * `expires`: milliseconds since 1970, or 0 for never. A service that can deletes the document some time after this.
    """

    address: DocumentAddress
    body: bytes | None
    expected: Version | None = None
    expires: int = 0


@runtime_checkable
class SavesTogether(Protocol):
    """Documents that save one of theirs together with documents of the application. Optional, in addition to `Documents`.

    The documents of the application are as its other programs have them: plain objects, without anything of this library.

    Key fields are what the service itself keeps of the key and the partition in each document, under its own names:

    * Cosmos DB: `id` and the properties of the partition key.
    * DynamoDB: the attributes of the primary key, in tables of the application. None in the table of the store.
    * Azure Table: `PartitionKey` and `RowKey`.
    * MongoDB: `_id`.
    * Other services: none.
    """

    max_together: int
    """How many documents of the application one write can have."""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Mapping[DocumentAddress, Document]:
        """Read documents of the application, next to the store's document with this key. Missing ones are left out.

        Bodies are JSON objects with their key fields, and without anything else that the service adds. So a body that was read
        can be written again as it is. A read returns the result of every write that has finished. In a service without
        versions, equal contents may have equal ones: what was changed and changed back is as it was read.
        Raises CommitFailed, CommitRefused for a document that cannot be read as JSON, OutcomeUnknown.
        """

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write a document of the store and documents of the application, with different addresses, all or none.

        Returns the new version of the store's document, or None if any of them did not have its expected version. Then nothing
        happened. A write of an application document without an expected version never fails for its version.
        Raises CommitFailed or CommitRefused if nothing was written, as `save`, and OutcomeUnknown if all may have been written.
        Raises LockTimeout if nothing was written, because another transaction holds one of the documents.
        """

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        """Return why the service would never take this write next to the document with this key. Empty if it would."""

    async def why_not_together(self) -> str:
        """Return why this place cannot write them together, such as a server without transactions. Empty if it can.

        Raises CommitFailed, OutcomeUnknown.
        """
