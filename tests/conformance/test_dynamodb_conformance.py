"""Documents in DynamoDB keep every promise of their port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aws_subjects import KEYS, AwsSubject, Service

from cutting_http import Request
from onceonly.stores.dynamodb import create, open_documents
from onceonly.testing.documents_suite import DocumentsSuite

WRITES = frozenset({"DynamoDB_20120810.PutItem", "DynamoDB_20120810.DeleteItem"})


def is_write(request: Request) -> bool:
    """Tell whether this request changes an item."""
    return request.headers.get("x-amz-target") in WRITES


DYNAMODB = Service(
    lambda name, endpoint: f"dynamodb://{KEYS}eu-central-1/{name}?endpoint={endpoint}", open_documents, create, is_write
)


class TestDynamoDB(DocumentsSuite):
    """A table for each test."""

    @pytest.fixture(autouse=True)
    def _emulator(self, ministack_endpoint: str) -> None:
        self._endpoint = ministack_endpoint

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AwsSubject]:
        """Make a table."""
        async with AwsSubject.open(DYNAMODB, self._endpoint) as subject:
            yield subject
