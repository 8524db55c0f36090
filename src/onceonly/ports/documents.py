"""The protocol of document services: compare-and-set on single documents.

The store, the dedup store, the tokens and the dead letters are built on it. A write is applied, or refused because the document
has another version, or it raises CommitFailed (nothing happened) or OutcomeUnknown. Turn off the retries of a driver for
writes: a repeated write that had succeeded finds another version, its own.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

__all__ = ["Change", "Document", "DocumentLimits", "Documents", "ListsPending", "PendingDocument", "Version"]

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
