"""Documents in S3, what is built on them, and artifacts keep every promise of their ports."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ClassVar
from uuid import uuid4

import pytest

from onceonly.adapters.aws.address import read_s3
from onceonly.adapters.aws.s3.artifacts import open_artifacts
from onceonly.adapters.aws.s3.client import opened
from onceonly.adapters.aws.s3.documents import create, open_documents
from onceonly.model.artifact import Artifact
from onceonly.ports.effects import ArtifactStore
from onceonly_conformance.artifact_suite import ArtifactStoreSuite
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.on_documents import DocumentDedupSuite, DocumentProjectionSuite, DocumentTokenSuite
from tests.conformance.aws_subjects import KEYS, AwsSubject, Service
from tests.servers.cutting_http import Request


def is_write(request: Request) -> bool:
    """Tell whether this request changes an object."""
    return request.method in {"PUT", "DELETE"}


S3 = Service(
    lambda name, endpoint: f"s3://{KEYS}{name}/docs?region=eu-central-1&endpoint={endpoint}", open_documents, create, is_write
)


class InS3:
    """A bucket for each test."""

    service: ClassVar[str] = "s3"

    @pytest.fixture(autouse=True)
    def _emulator(self, ministack_endpoint: str) -> None:
        self._endpoint = ministack_endpoint

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AwsSubject]:
        """Make a bucket."""
        async with AwsSubject.open(S3, self._endpoint) as subject:
            yield subject


class TestS3(InS3, DocumentsSuite):
    """Documents themselves."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 100  # a request holds one
    lapse: ClassVar[int] = 250  # nothing expires here


class TestProjectionsInS3(InS3, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInS3(InS3, DocumentDedupSuite):
    """The dedup store for every service, here."""


class TestTokensInS3(InS3, DocumentTokenSuite):
    """The tokens for every service, here."""


class S3Blobs:
    """A bucket under test, opened each time by a client of its own."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url, self._stack = url, stack

    async def artifacts(self) -> ArtifactStore:
        """Open it."""
        return await self._stack.enter_async_context(open_artifacts(self._url))


class TestS3Artifacts(ArtifactStoreSuite):
    """A bucket for each test."""

    @pytest.fixture(autouse=True)
    def _emulator(self, ministack_endpoint: str) -> None:
        self._endpoint = ministack_endpoint

    @asynccontextmanager
    async def open_artifacts(self) -> AsyncIterator[S3Blobs]:
        """Make a bucket."""
        url = S3.url(f"t{uuid4().hex[:16]}", self._endpoint)
        await create(url)
        async with AsyncExitStack() as stack:
            yield S3Blobs(url, stack)

    async def test_a_thing_has_its_content_type(self) -> None:
        """Whoever reads it without this library learns what it is; its key is its name behind the prefix."""
        url = S3.url(f"t{uuid4().hex[:16]}", self._endpoint)
        await create(url)
        async with open_artifacts(url) as artifacts, opened(read_s3(url)) as client:
            await artifacts.create(Artifact(kind="blob", name="2026/a-b.pdf", data=b"%PDF", content_type="application/pdf"))
            found = await client.head_object(Bucket=read_s3(url).bucket, Key="docs/2026/a-b.pdf")
        assert (found["ContentType"], found["ContentLength"]) == ("application/pdf", 4)
