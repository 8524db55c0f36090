"""Documents in DynamoDB, and what is built on them, keep every promise of their ports."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from onceonly.adapters.aws.address import read_dynamodb
from onceonly.adapters.aws.dynamodb.client import opened
from onceonly.adapters.aws.dynamodb.documents import create, open_documents
from onceonly.ports.documents import DocumentAddress
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.on_documents import (
    DocumentDedupSuite,
    DocumentProjectionSuite,
    DocumentTokenSuite,
    DocumentTransactionSuite,
)
from onceonly_conformance.pending_list_suite import PendingListSuite
from onceonly_conformance.saves_together_suite import SavesTogetherSuite
from tests.conformance.aws_subjects import KEYS, AwsSubject, Service
from tests.servers.cutting_http import Request

OPERATIONS = ("PutItem", "DeleteItem", "BatchExecuteStatement", "TransactWriteItems")
WRITES = frozenset(f"DynamoDB_20120810.{operation}" for operation in OPERATIONS)


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


class TestProjectionsInDynamoDB(InDynamoDB, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInDynamoDB(InDynamoDB, DocumentDedupSuite):
    """The dedup store for every service, here."""


class TestTokensInDynamoDB(InDynamoDB, DocumentTokenSuite):
    """The tokens for every service, here."""


class TestTransactionsInDynamoDB(InDynamoDB, DocumentTransactionSuite):
    """The transactions for every service, here."""


class TestSavedTogetherInDynamoDB(InDynamoDB, SavesTogetherSuite):
    """Items of the application, in the table of the store and in a table of their own, each with its time to live."""

    rounds: ClassVar[int] = 6
    lapse: ClassVar[int] = 250  # the emulator removes nothing within seconds
    cannot_hold: ClassVar[Mapping[str, str]] = {
        "extreme floats": "numbers end at 9.9E+125",
        "unusual names": "no attribute has an empty name",
    }

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AwsSubject]:
        """Make two tables."""
        async with super().open_documents() as subject:
            self._table = f"{read_dynamodb(subject.url).table}-receipts"
            async with opened(read_dynamodb(subject.url)) as client:
                await client.create_table(
                    TableName=self._table,
                    KeySchema=[{"AttributeName": "receipt", "KeyType": "HASH"}],
                    AttributeDefinitions=[{"AttributeName": "receipt", "AttributeType": "S"}],
                    BillingMode="PAY_PER_REQUEST",
                )
                ttl = {"Enabled": True, "AttributeName": "ends"}
                await client.update_time_to_live(TableName=self._table, TimeToLiveSpecification=ttl)
            yield subject

    def collections(self) -> Sequence[str]:
        """Name both."""
        return ("", self._table)

    def key_fields(self, key: str, address: DocumentAddress) -> Mapping[str, Any]:
        """Return the attribute of the primary key, where the table is the application's."""
        return {"receipt": address.key[0]} if address.collection else {}
