"""The protocol of document services: compare-and-set on single documents.

The store, the dedup store, the tokens and the dead letters are built on it. A write is applied, or refused because the document
has another version, or it raises CommitFailed (nothing happened) or OutcomeUnknown. Turn off the retries of a driver for
writes: a repeated write that had succeeded finds another version, its own.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

__all__ = ["Change", "Document", "DocumentLimits", "Documents", "Version"]

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
    """

    key: str
    body: bytes | None
    expected: Version = ""
    expires: int = 0


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
