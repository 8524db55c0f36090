"""Dedup store and tokens on a place for documents: whoever has a subject for the documents has theirs as well."""

from datetime import timedelta
from typing import NamedTuple

from onceonly.stores.dedup import DocumentDedupStore
from onceonly.stores.tokens import DocumentTokens
from onceonly.testing.documents_subject import DocumentsSubject, Moment

RETENTION = timedelta(days=7)


class Later:
    """The time of a place for documents, set forward by as much as a suite lets pass."""

    def __init__(self, subject: DocumentsSubject) -> None:
        self._subject = subject
        self._passed = 0

    def now(self) -> int:
        """Give milliseconds since 1970."""
        return self._subject.now() + self._passed

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass at once; the service's own goes on as it does."""
        self._passed += milliseconds


class DedupOnDocuments(Later):
    """A dedup store on documents, under test."""

    def __init__(self, subject: DocumentsSubject) -> None:
        super().__init__(subject)
        self._documents = subject

    async def dedup_store(self) -> DocumentDedupStore:
        """Open it."""
        return DocumentDedupStore(await self._documents.documents(), retention=RETENTION, clock=self)

    async def cut(self, moment: Moment) -> DocumentDedupStore:
        """Open it with a client that is cut off once."""
        return DocumentDedupStore(await self._documents.cut(moment), retention=RETENTION, clock=self)

    def retention(self) -> int:
        """Give its retention."""
        return RETENTION // timedelta(milliseconds=1)


class TokensOnDocuments(Later):
    """Tokens on documents, under test."""

    def __init__(self, subject: DocumentsSubject) -> None:
        super().__init__(subject)
        self._documents = subject

    async def tokens(self) -> DocumentTokens:
        """Open them."""
        return DocumentTokens(await self._documents.documents(), clock=self)

    async def cut(self, moment: Moment) -> DocumentTokens:
        """Open them with a client that is cut off once."""
        return DocumentTokens(await self._documents.cut(moment), clock=self)


class OnDocuments(NamedTuple):
    """What is built on documents, as subjects of their suites."""

    dedup: DedupOnDocuments
    tokens: TokensOnDocuments


def dedup_and_token_subjects(documents: DocumentsSubject) -> OnDocuments:
    """Give the subjects for the DedupSuite and the TokenSuite on this place; both may share it."""
    return OnDocuments(DedupOnDocuments(documents), TokensOnDocuments(documents))
