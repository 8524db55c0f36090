"""Dedup store, tokens, transactions and projections on a document store.

They need the same `open_documents` as the DocumentsSuite.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple, cast

from onceonly.documents.dedup import DocumentMarkStore
from onceonly.documents.projections import DocumentProjection
from onceonly.documents.store import DocumentStore
from onceonly.documents.tokens import DocumentTokens
from onceonly.documents.transactions import DocumentTransactions
from onceonly.model.entities import Entities
from onceonly.model.errors import OutcomeUnknown
from onceonly.model.projection import ProjectedWrite
from onceonly.model.record import Answer, Record
from onceonly.ports.transactions import OpenTransaction
from onceonly_conformance.dedup_suite import DedupSuite
from onceonly_conformance.documents_subject import DocumentsSubject, Moment
from onceonly_conformance.projection_suite import ProjectionSuite
from onceonly_conformance.suite import ENDPOINT
from onceonly_conformance.token_suite import TokenSuite
from onceonly_conformance.transaction_suite import AttemptSuite, EntitySuite, OneEntitySuite, TransactionSuite

RETENTION = timedelta(days=7)
EVERYTHING = "everything"
"""The entity that is the business data of transactions."""


class Later:
    """The time of documents, moved forward by a suite.

    The service's own clock moves only if `moves_clock` is true. Otherwise a rule would have to wait for a week.
    """

    def __init__(self, subject: DocumentsSubject, *, moves_clock: bool = False) -> None:
        self.subject = subject
        self._moves_clock = moves_clock
        self._passed = 0

    def now(self) -> int:
        return self.subject.now() + self._passed

    async def pass_time(self, milliseconds: int) -> None:
        if self._moves_clock:
            await self.subject.pass_time(milliseconds)
        else:
            self._passed += milliseconds


class DedupOnDocuments(Later):
    """A dedup store on documents, under test."""

    async def dedup_store(self) -> DocumentMarkStore:
        return DocumentMarkStore(await self.subject.documents(), retention=RETENTION, clock=self)

    async def cut(self, moment: Moment) -> DocumentMarkStore:
        """Open the dedup store with a client that is cut off once."""
        return DocumentMarkStore(await self.subject.cut(moment), retention=RETENTION, clock=self)

    def retention(self) -> int:
        return RETENTION // timedelta(milliseconds=1)


class TokensOnDocuments(Later):
    async def tokens(self) -> DocumentTokens:
        return DocumentTokens(await self.subject.documents(), clock=self)

    async def cut(self, moment: Moment) -> DocumentTokens:
        """Open the tokens with a client that is cut off once."""
        return DocumentTokens(await self.subject.cut(moment), clock=self)


class WrittenProjection:
    """A projection on documents, with the methods of a user's own one."""

    def __init__(self, projection: DocumentProjection) -> None:
        self.inner = projection

    async def put(self, key: str, body: bytes, version: int) -> None:
        await self._write(ProjectedWrite("cache", key, version, body))

    async def delete(self, key: str, version: int) -> None:
        await self._write(ProjectedWrite("cache", key, version))

    async def _write(self, write: ProjectedWrite) -> None:
        if await self.inner.write([write]) != (Answer.TAKEN,):
            raise OutcomeUnknown(f"version {write.version} of {write.key!r} was not written")


class ProjectionOnDocuments(Later):
    """A projection on documents, under test."""

    async def projection(self) -> WrittenProjection:
        return WrittenProjection(DocumentProjection(await self.subject.documents(), "cache", clock=self))

    async def read(self, key: str) -> bytes | None:
        found = await (await self.projection()).inner.get(key)
        return None if found is None else found.body


class TransactionsOnDocuments(Later):
    """Transactions on documents, under test. One entity is their business data."""

    async def transactions(self, endpoint: str = ENDPOINT) -> DocumentTransactions:
        return DocumentTransactions(await self.store(endpoint), retention=RETENTION // timedelta(milliseconds=1))

    async def attempts(self) -> DocumentTransactions:
        """Open the attempts that control messages check."""
        return await self.transactions()

    async def store(self, endpoint: str = ENDPOINT) -> DocumentStore:
        return DocumentStore(await self.subject.documents(), endpoint, clock=self, history=RETENTION)

    async def write(self, opened: OpenTransaction, key: str, value: str) -> None:
        await opened.load(EVERYTHING)
        entities = cast("Entities", opened.resources.get(Entities))
        rows = json.loads(entities.read(EVERYTHING) or b"{}")
        entities.write(EVERYTHING, json.dumps({**rows, key: value}).encode())

    async def read(self) -> dict[str, str]:
        state = (await (await self.store()).look(f"entity/{EVERYTHING}")).state
        return cast("dict[str, str]", json.loads(state)) if state else {}

    async def record(self, record: Record) -> Record | None:
        return await (await self.attempts()).record(record.identity, record.unit)


class OnDocuments(NamedTuple):
    """What is built on documents, as subjects of its suites."""

    dedup: DedupOnDocuments
    tokens: TokensOnDocuments
    transactions: TransactionsOnDocuments


def dedup_and_token_subjects(documents: DocumentsSubject, *, moves_clock: bool = False) -> OnDocuments:
    """Return the subjects for what is built on these documents. All of them may share the documents."""
    return OnDocuments(
        DedupOnDocuments(documents, moves_clock=moves_clock),
        TokensOnDocuments(documents, moves_clock=moves_clock),
        TransactionsOnDocuments(documents, moves_clock=moves_clock),
    )


class DocumentDedupSuite(DedupSuite):
    """The rules of a dedup store, on documents. Override `open_documents`."""

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Open an empty collection of documents for one rule, and clean up afterwards."""
        raise NotImplementedError

    @asynccontextmanager
    async def open_dedup(self) -> AsyncIterator[Any]:
        """Open the dedup store on the documents of `open_documents`. The rules call it; do not override it."""
        async with self.open_documents() as documents:
            yield dedup_and_token_subjects(documents).dedup


class DocumentProjectionSuite(ProjectionSuite):
    """The rules of projections, for documents."""

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Open an empty place for one rule, and clean up afterwards."""
        raise NotImplementedError

    @asynccontextmanager
    async def open_projection(self) -> AsyncIterator[ProjectionOnDocuments]:
        """Open a projection on these documents."""
        async with self.open_documents() as subject:
            yield ProjectionOnDocuments(subject)


class DocumentTokenSuite(TokenSuite):
    """The rules of a token store, on documents. Override `open_documents`."""

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Open an empty collection of documents for one rule, and clean up afterwards."""
        raise NotImplementedError

    @asynccontextmanager
    async def open_tokens(self) -> AsyncIterator[Any]:
        """Open the tokens on the documents of `open_documents`. The rules call it; do not override it."""
        async with self.open_documents() as documents:
            yield dedup_and_token_subjects(documents).tokens


class DocumentTransactionSuite(TransactionSuite, EntitySuite, AttemptSuite, OneEntitySuite):
    """The rules of transactions, on documents. Override `open_documents`."""

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Open an empty collection of documents for one rule, and clean up afterwards."""
        raise NotImplementedError

    @asynccontextmanager
    async def open_transactions(self) -> AsyncIterator[Any]:
        """Open the transactions on the documents of `open_documents`. The rules call it; do not override it."""
        async with self.open_attempts() as subject:
            yield subject

    @asynccontextmanager
    async def open_attempts(self) -> AsyncIterator[Any]:
        """Open the transactions on the documents of `open_documents`. The rules call it; do not override it."""
        async with self.open_documents() as documents:
            yield dedup_and_token_subjects(documents).transactions
