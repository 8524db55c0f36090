"""Dedup store, tokens and transactions on a place for documents: whoever has a subject for the documents has theirs as well.

The test of a service binds to it as it binds to the DocumentsSuite, with the same `open_documents`.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import NamedTuple, cast

from onceonly.documents.dedup import DocumentDedupStore
from onceonly.documents.store import DocumentStore
from onceonly.documents.tokens import DocumentTokens
from onceonly.documents.transactions import DocumentTransactions
from onceonly.model.entities import Entities
from onceonly.model.record import Record
from onceonly.ports.transactions import OpenTransaction
from onceonly.testing.dedup_suite import DedupSubject, DedupSuite
from onceonly.testing.documents_subject import DocumentsSubject, Moment
from onceonly.testing.suite import ENDPOINT
from onceonly.testing.token_suite import TokenSubject, TokenSuite
from onceonly.testing.transaction_suite import AttemptsSubject, AttemptSuite, EntitySuite, TransactionSubject, TransactionSuite

__all__ = [
    "DedupOnDocuments",
    "DocumentDedupSuite",
    "DocumentTokenSuite",
    "DocumentTransactionSuite",
    "OnDocuments",
    "TokensOnDocuments",
    "TransactionsOnDocuments",
]

RETENTION = timedelta(days=7)
EVERYTHING = "everything"
"""The entity that is the business data of transactions."""


class Later:
    """The time of a place for documents, set forward by as much as a suite lets pass.

    The service's own clock is moved only where `moves_clock` says that it can be; elsewhere a week would have to be waited for.
    """

    def __init__(self, subject: DocumentsSubject, *, moves_clock: bool = False) -> None:
        self.subject = subject
        self._moves_clock = moves_clock
        self._passed = 0

    def now(self) -> int:
        """Give milliseconds since 1970."""
        return self.subject.now() + self._passed

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        if self._moves_clock:
            await self.subject.pass_time(milliseconds)
        else:
            self._passed += milliseconds


class DedupOnDocuments(Later):
    """A dedup store on documents, under test."""

    async def dedup_store(self) -> DocumentDedupStore:
        """Open it."""
        return DocumentDedupStore(await self.subject.documents(), retention=RETENTION, clock=self)

    async def cut(self, moment: Moment) -> DocumentDedupStore:
        """Open it with a client that is cut off once."""
        return DocumentDedupStore(await self.subject.cut(moment), retention=RETENTION, clock=self)

    def retention(self) -> int:
        """Give its retention."""
        return RETENTION // timedelta(milliseconds=1)


class TokensOnDocuments(Later):
    """Tokens on documents, under test."""

    async def tokens(self) -> DocumentTokens:
        """Open them."""
        return DocumentTokens(await self.subject.documents(), clock=self)

    async def cut(self, moment: Moment) -> DocumentTokens:
        """Open them with a client that is cut off once."""
        return DocumentTokens(await self.subject.cut(moment), clock=self)


class TransactionsOnDocuments(Later):
    """Transactions on documents, under test: their business data is one entity."""

    async def transactions(self, endpoint: str = ENDPOINT) -> DocumentTransactions:
        """Open them."""
        return DocumentTransactions(await self.store(endpoint), retention=RETENTION // timedelta(milliseconds=1))

    async def attempts(self) -> DocumentTransactions:
        """Open them, for whoever gets control messages."""
        return await self.transactions()

    async def store(self, endpoint: str = ENDPOINT) -> DocumentStore:
        """Open the store."""
        return DocumentStore(await self.subject.documents(), endpoint, clock=self, history=RETENTION)

    async def write(self, opened: OpenTransaction, key: str, value: str) -> None:
        """Write into the entity."""
        await opened.load(EVERYTHING)
        entities = cast("Entities", opened.resources.get(Entities))
        rows = json.loads(entities.read(EVERYTHING) or b"{}")
        entities.write(EVERYTHING, json.dumps({**rows, key: value}).encode())

    async def read(self) -> dict[str, str]:
        """Read the entity."""
        state = (await (await self.store()).look(f"entity/{EVERYTHING}")).state
        return cast("dict[str, str]", json.loads(state)) if state else {}

    async def record(self, record: Record) -> Record | None:
        """Read it."""
        return await (await self.attempts()).record(record.identity, record.unit)


class OnDocuments(NamedTuple):
    """What is built on documents, as subjects of their suites."""

    dedup: DedupOnDocuments
    tokens: TokensOnDocuments
    transactions: TransactionsOnDocuments


def dedup_and_token_subjects(documents: DocumentsSubject, *, moves_clock: bool = False) -> OnDocuments:
    """Give the subjects for the suites of what is built on this place; all may share it."""
    return OnDocuments(
        DedupOnDocuments(documents, moves_clock=moves_clock),
        TokensOnDocuments(documents, moves_clock=moves_clock),
        TransactionsOnDocuments(documents, moves_clock=moves_clock),
    )


class DocumentDedupSuite(DedupSuite):
    """Every promise of a dedup store, kept on documents. Override `open_documents`."""

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Give an empty place, and clean up afterwards."""
        raise NotImplementedError

    @asynccontextmanager
    async def open_dedup(self) -> AsyncIterator[DedupSubject]:
        """Open a dedup store in the place."""
        async with self.open_documents() as documents:
            yield dedup_and_token_subjects(documents).dedup


class DocumentTokenSuite(TokenSuite):
    """Every promise of a token store, kept on documents. Override `open_documents`."""

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Give an empty place, and clean up afterwards."""
        raise NotImplementedError

    @asynccontextmanager
    async def open_tokens(self) -> AsyncIterator[TokenSubject]:
        """Open tokens in the place."""
        async with self.open_documents() as documents:
            yield dedup_and_token_subjects(documents).tokens


class DocumentTransactionSuite(TransactionSuite, EntitySuite, AttemptSuite):
    """Every promise of transactions, kept on documents. Override `open_documents`."""

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Give an empty place, and clean up afterwards."""
        raise NotImplementedError

    @asynccontextmanager
    async def open_transactions(self) -> AsyncIterator[TransactionSubject]:
        """Open transactions in the place."""
        async with self.open_attempts() as subject:
            yield subject

    @asynccontextmanager
    async def open_attempts(self) -> AsyncIterator[AttemptsSubject]:
        """Open transactions in the place."""
        async with self.open_documents() as documents:
            yield dedup_and_token_subjects(documents).transactions
