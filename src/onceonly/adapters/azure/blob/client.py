"""Azure Blob: one container, or a folder in it, and what its errors mean.

A blob is written by one request, whatever its size. What is not on the list of definite errors is OutcomeUnknown.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from azure.core import MatchConditions
from azure.storage.blob import ContentSettings
from azure.storage.blob.aio import ContainerClient

from onceonly.adapters.azure.address import read_address
from onceonly.adapters.azure.client import BROKEN, StorageErrors, code_of, connected, setup_errors
from onceonly.documents.limits import DOCUMENT_LIMITS
from onceonly.model.errors import OutcomeUnknown, SetupError

LARGEST = 64 * 1024 * 1024
"""Bytes of a blob. One request could hold more, but it is in memory, and has to be through before a time-out."""
LONGEST = DOCUMENT_LIMITS["Azure Blob"].key
"""Limit for the characters of a blob's name."""
_CONTAINER = re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}")
_FOLDER = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?")
_REFUSED = frozenset({"BlobAlreadyExists", "ConditionNotMet", "BlobNotFound"})
_MISSING = frozenset({"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"})


class Container:
    """A container on its service, by a client of its own. Names are those below the folder that the URL names."""

    def __init__(self, client: ContainerClient, folder: str = "") -> None:
        """Use a client whose retries are off; `folder` is empty, or ends with a slash."""
        self._client = client
        self._errors = StorageErrors(f"container {client.container_name}", _MISSING, _REFUSED, frozenset())
        self._folder = folder
        self.longest = LONGEST - len(folder)

    async def read(self, name: str) -> tuple[str, bytes] | None:
        """Return a blob's ETag and what is in it, or None. Raises CommitFailed."""
        try:
            found = await self._client.download_blob(self._folder + name)
            return str(found.properties.etag), await found.readall()
        except BROKEN as error:
            if code_of(error) == "BlobNotFound":
                return None
            raise self._errors.of_read(error) from error

    async def write(self, name: str, data: bytes, content_type: str, *, etag: str = "") -> str:
        """Write a blob that has this ETag now, or with none does not exist; gives the new one.

        Raises PreconditionFailed, CommitRefused, CommitFailed: it was not written; OutcomeUnknown.
        """
        expected = _if_match(etag) if etag else {"overwrite": False}
        settings = ContentSettings(content_type=content_type)
        try:
            blob = self._client.get_blob_client(self._folder + name)
            answer = await blob.upload_blob(
                data, length=len(data), content_settings=settings, **{"overwrite": True, **expected}
            )
        except BROKEN as error:
            raise self._errors.of_write(error) from error
        if not answer.get("etag"):
            raise OutcomeUnknown(
                f"container {self._client.container_name} returned no version for a write, so its outcome is unknown"
            )
        return str(answer["etag"])

    async def delete(self, name: str, *, etag: str = "") -> None:
        """Delete a blob that has this ETag now, or with none any.

        Raises PreconditionFailed and CommitFailed when it was not deleted, OutcomeUnknown.
        """
        try:
            await self._client.delete_blob(self._folder + name, **(_if_match(etag) if etag else {}))
        except BROKEN as error:
            raise self._errors.of_write(error) from error

    async def names(self, prefix: str, *, token: str | None = None, limit: int = 1000) -> tuple[list[str], str | None]:
        """List one page of names that begin so, and the token of the next page, None for none. Raises CommitFailed."""
        listed: list[str] = []
        try:
            pages = self._client.list_blob_names(name_starts_with=self._folder + prefix, results_per_page=limit)
            by_page = pages.by_page(continuation_token=token)
            async for page in by_page:
                listed = [name[len(self._folder) :] async for name in page]
                break
        except BROKEN as error:
            raise self._errors.of_read(error) from error
        return listed, getattr(by_page, "continuation_token", None) or None

    async def check(self) -> None:
        """Make sure that the container is there. Raises SetupError, RetryableError."""
        try:
            await self._client.download_blob(f"{self._folder}check")
        except BROKEN as error:
            if code_of(error) != "BlobNotFound":
                raise self._errors.of_start(error) from error

    async def create(self) -> None:
        """Make the container, unless it is there. Raises SetupError, RetryableError."""
        try:
            await self._client.create_container()
        except BROKEN as error:
            if code_of(error) != "ContainerAlreadyExists":
                raise self._errors.of_creation(error) from error


@asynccontextmanager
async def open_container(url: str) -> AsyncIterator[Container]:
    """Open `azure-blob://account/container/folder`; connects when it is used. Raises SetupError, DriverMissing."""
    address = read_address(url, "blob")
    name, *folders = address.parts
    if not _CONTAINER.fullmatch(name):
        raise SetupError(f"container {name!r}: use 3 to 63 of a-z, 0-9 and single dashes")
    if any(not _FOLDER.fullmatch(folder) for folder in folders):
        raise SetupError(
            "invalid folder in an azure-blob URL: use letters, digits, dashes and underscores, and dots only inside"
        )
    sizes: dict[str, Any] = {"max_single_put_size": LARGEST, "max_single_get_size": LARGEST}
    async with connected(address) as how:
        with setup_errors("Azure Blob"):
            client = ContainerClient(address.endpoint, name, **how, **sizes)
        async with client:
            yield Container(client, "".join(f"{folder}/" for folder in folders))


async def create(url: str) -> None:
    """Create the container of a URL, unless it is there. Raises SetupError, DriverMissing, RetryableError."""
    async with open_container(url) as container:
        await container.create()


def _if_match(etag: str) -> dict[str, Any]:
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}
