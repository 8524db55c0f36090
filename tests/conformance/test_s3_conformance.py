"""Documents in S3 keep every promise of their port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aws_subjects import KEYS, AwsSubject, Service

from cutting_http import Request
from onceonly.stores.s3 import create, open_documents
from onceonly.testing.documents_suite import DocumentsSuite


def is_write(request: Request) -> bool:
    """Tell whether this request changes an object."""
    return request.method in {"PUT", "DELETE"}


S3 = Service(
    lambda name, endpoint: f"s3://{KEYS}{name}/docs?region=eu-central-1&endpoint={endpoint}", open_documents, create, is_write
)


class TestS3(DocumentsSuite):
    """A bucket for each test."""

    @pytest.fixture(autouse=True)
    def _emulator(self, ministack_endpoint: str) -> None:
        self._endpoint = ministack_endpoint

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AwsSubject]:
        """Make a bucket."""
        async with AwsSubject.open(S3, self._endpoint) as subject:
            yield subject
