"""Documents: what a document database must offer. Compare-and-set on single documents is all that is asked.

Stores, dedup stores and tokens are built on it, so an adapter is written once for each service. Outcomes of a write, no others:
applied, refused because of another version (both definite), CommitFailed (definite: nothing happened), OutcomeUnknown. A
service's own retries are off for every write: a retried success would answer "another version" to itself.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

__all__ = ["Change", "Document", "DocumentLimits", "Documents", "Version"]

Version = str
"""Opaque; never the same twice for one key, also not across delete and re-create, and never empty."""


class Document(Struct, frozen=True):
    """One document as it was read: its body, and the version that a later write must name."""

    body: bytes
    version: Version


class Change(Struct, frozen=True, kw_only=True):
    """One document to be written.

    `expected` is the version it must have now; empty means that it must not exist. `body` None deletes it. `expires`
    (milliseconds since 1970, 0 for never) is a hint: services that can, drop the document some time after it, others keep it.
    """

    key: str
    body: bytes | None
    expected: Version = ""
    expires: int = 0


class DocumentLimits(Struct, frozen=True, kw_only=True):
    """What one service can hold: data that stores check before they write.

    `key` is the longest key, in bytes of UTF-8; `body` the largest document, in bytes. Inside these limits every key and
    every body is held exactly; an adapter encodes what its service does not take.
    """

    service: str
    key: int
    body: int


class Documents(Protocol):
    """Documents by key, in one place of one service (a table, a container, a bucket with a prefix)."""

    limits: DocumentLimits

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read these documents; who does not exist is left out. Each read is linearizable with writes; together they are none.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write these documents (distinct keys), each one by itself; answers for each, in order.

        The answer is the new version ("" for a deleted document), or None when the document did not have the expected version:
        definite, that change did not happen. Not atomic across documents: after OutcomeUnknown any subset may have been
        written, each at most once. Raises CommitFailed when none was written, CommitRefused when the service will never take
        one of them and none was written, OutcomeUnknown.
        """

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys that begin with `prefix`, in one order, those behind `after`; at most `limit`, empty at the end.

        For janitors and people: the list may be some seconds old. Raises CommitFailed, OutcomeUnknown.
        """

    async def check(self) -> tuple[str, ...]:
        """Make sure, at start, that the place exists and keeps these promises; gives warnings for people.

        Raises SetupError where it does not (reads that may be stale, no conditional writes), RetryableError when it is away.
        """
