"""Artifacts as blobs in Azure, in one folder of a container; their names are those that readers elsewhere know.

The emulator in the tests cannot prove what Azure makes of odd letters in names: those that its documentation warns of are
refused.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly.adapters.azure.blob.client import LARGEST, Container, create, open_container
from onceonly.adapters.azure.client import PreconditionFailed
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitRefused, OutcomeUnknown

__all__ = ["AzureBlobArtifacts", "create", "open_artifacts"]

_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff\ufffe\uffff]|\.(/|$)|//|^/|/$|^$")
"""Letters that HTTP and XML do not carry, and parts that are empty or end with a dot."""
_MOST_PARTS = 254


class AzureBlobArtifacts:
    """Blobs in one folder. A blob is there whole or not at all, with its content type, and is never written over."""

    def __init__(self, container: Container) -> None:
        self._container = container

    async def create(self, artifact: Artifact) -> None:
        """Make a blob; see the port. A name that is taken by other data is refused."""
        self._check(artifact)
        try:
            await self._container.write(artifact.name, artifact.data, artifact.content_type)
        except PreconditionFailed as error:
            known = await self.read(artifact.name)
            if known is None:
                raise OutcomeUnknown(f"the blob {artifact.name!r} was created before and is being deleted") from error
            if known != artifact.data:
                raise CommitRefused(f"the blob {artifact.name!r} was created before with other data") from error

    async def delete(self, name: str) -> None:
        if self._is_odd(name):
            return
        try:
            await self._container.delete(name)
        except PreconditionFailed:
            return  # there is none

    async def read(self, name: str) -> bytes | None:
        found = None if self._is_odd(name) else await self._container.read(name)
        return found[1] if found else None

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """List the names of all blobs, page by page; see the port."""
        listed, token = await self._container.names(prefix)
        while token:
            page, token = await self._container.names(prefix, token=token)
            listed += page
        return tuple(listed)

    async def check(self) -> tuple[str, ...]:
        """Make sure, at start, that there is a container. Raises SetupError, RetryableError."""
        await self._container.check()
        return ()

    def _check(self, artifact: Artifact) -> None:
        if self._is_odd(artifact.name):
            raise CommitRefused(
                f"Azure Blob cannot store the name {artifact.name[:80]!r}: use at most "
                f"{self._container.longest} characters in at most {_MOST_PARTS} parts, none empty or with a "
                "dot at its end, and no backslash or control character"
            )
        if len(artifact.data) > LARGEST:
            raise CommitRefused(f"the blob {artifact.name!r} is {len(artifact.data)} bytes long; the limit is {LARGEST}")

    def _is_odd(self, name: str) -> bool:
        is_long = len(name) > self._container.longest or name.count("/") >= _MOST_PARTS
        return is_long or _ODD.search(name) is not None


@asynccontextmanager
async def open_artifacts(url: str) -> AsyncIterator[AzureBlobArtifacts]:
    """Open the blobs of `azure-blob://account/container/folder`. Raises SetupError, DriverMissing."""
    async with open_container(url) as container:
        yield AzureBlobArtifacts(container)
