"""Documents in DynamoDB, and what is built on them, keep every promise of their ports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly.adapters.aws.dynamodb.documents import create, open_documents
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.on_documents import DocumentDedupSuite, DocumentTokenSuite, DocumentTransactionSuite
from onceonly_conformance.pending_list_suite import PendingListSuite
from tests.conformance.aws_subjects import KEYS, AwsSubject, Service
from tests.servers.cutting_http import Request

WRITES = frozenset({"DynamoDB_20120810.PutItem", "DynamoDB_20120810.DeleteItem", "DynamoDB_20120810.BatchExecuteStatement"})


def is_write(request: Request) -> bool:
    """Tell whether this request changes an item."""
    return request.headers.get("x-amz-target") in WRITES


DYNAMODB = Service(
    lambda name, endpoint: f"dynamodb://{KEYS}eu-central-1/{name}?endpoint={endpoint}", open_documents, create, is_write
)


class InDynamoDB:
    """A table for each test."""

    service: ClassVar[str] = "dynamodb"

    @pytest.fixture(autouse=True)
    def _emulator(self, ministack_endpoint: str) -> None:
        self._endpoint = ministack_endpoint

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AwsSubject]:
        """Make a table."""
        async with AwsSubject.open(DYNAMODB, self._endpoint) as subject:
            yield subject


class TestDynamoDB(InDynamoDB, DocumentsSuite):
    """Documents themselves."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 130  # a request holds 100 at most
    lapse: ClassVar[int] = 250  # the emulator removes nothing within seconds


class TestPendingInDynamoDB(InDynamoDB, PendingListSuite):
    """The list of documents with unsent messages."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 130


class TestDedupInDynamoDB(InDynamoDB, DocumentDedupSuite):
    """The dedup store for every service, here."""


class TestTokensInDynamoDB(InDynamoDB, DocumentTokenSuite):
    """The tokens for every service, here."""


class TestTransactionsInDynamoDB(InDynamoDB, DocumentTransactionSuite):
    """The transactions for every service, here."""
