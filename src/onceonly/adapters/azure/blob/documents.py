"""Documents in Azure Blob: a blob for each document, in one folder of a container.

It takes a request for each document, so it is for documents that are large, or few; for many small ones there is Azure Table.
A blob is named after its key, with `.json` behind it, so that people can find and read it. Versions are the service's ETags,
which differ between any two writes; they are made from the time of the write in units of 100 ns.

*What azurite, the emulator in the tests, cannot prove*: how Azure throttles, fails over and answers then; its ETags, which are
random numbers there; what it makes of names with odd letters (none are used); timing; durability.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from onceonly.adapters.azure.blob.client import Container, create, open_container
from onceonly.adapters.azure.client import PreconditionFailed, escaped, unescaped
from onceonly.documents.bulk import read_all, write_all
from onceonly.documents.limits import DOCUMENT_LIMITS, check_limits, shorter
from onceonly.ports.documents import Change, Document, Documents, Version
from onceonly.ports.environment import Clock

__all__ = ["AzureBlobDocuments", "create", "open_documents"]

_ENDING = ".json"
_AT_ONCE = 32
_VERSION = re.compile(r'"[^"]+"')
_DOUBLED = re.compile(r"(?<![^/])/")  # the first slash, and those behind another one: proxies would fold them


class AzureBlobDocuments:
    """Documents in one folder, which is theirs alone. They stay when they have expired: the service removes nothing."""

    def __init__(self, container: Container) -> None:
        limits = DOCUMENT_LIMITS["Azure Blob"]
        self.limits = shorter(limits, taken=limits.key - container.longest + len(_ENDING), encoded=len("~00"))
        self._container = container
        self._page: tuple[str, str, str | None] = ("", "", None)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read documents by their keys, several at once; see the port."""
        wanted = tuple(dict.fromkeys(keys))
        found = await read_all(wanted, self._read, at_once=_AT_ONCE)
        return {key: document for key, document in zip(wanted, found, strict=True) if document is not None}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        check_limits(changes, self.limits)
        return await write_all(changes, self._write, at_once=_AT_ONCE)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys in the order of their blobs' names; see the port.

        Going on behind the last key of the page before costs one request, behind any other key as many as there are pages.
        """
        start, behind = _escaped(prefix), _name(after) if after else ""
        token = self._page[2] if self._page[:2] == (prefix, after) else None
        while True:
            page, token = await self._container.names(start, token=token, limit=limit)
            listed = [name for name in page if name > behind and name.endswith(_ENDING)]
            if listed or not token:
                break
        keys = tuple(unescaped(name.removesuffix(_ENDING)) for name in listed)
        self._page = (prefix, keys[-1], token) if keys else ("", "", None)
        return keys

    async def check(self) -> tuple[str, ...]:
        """Make sure that the container is there; see the port."""
        await self._container.check()
        return ()

    async def _read(self, key: str) -> Document | None:
        name = _name(key)
        found = await self._container.read(name) if len(name) <= self._container.longest else None
        return Document(body=found[1], version=found[0]) if found else None

    async def _write(self, change: Change) -> Version | None:
        if change.expected and not _VERSION.fullmatch(change.expected):
            return None  # no version of this service
        if change.body is None and not change.expected:
            return "" if await self._read(change.key) is None else None
        try:
            if change.body is None:
                await self._container.delete(_name(change.key), etag=change.expected)
                return ""
            return await self._container.write(_name(change.key), change.body, _content_type(change.body), etag=change.expected)
        except PreconditionFailed:
            return None


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock) -> AsyncIterator[Documents]:  # noqa: ARG001 - nothing expires here
    """Open the documents of `azure-blob://account/container/folder`. Raises SetupError, DriverMissing."""
    async with open_container(url) as container:
        yield AzureBlobDocuments(container)


def _name(key: str) -> str:
    return _escaped(key) + _ENDING


def _escaped(key: str) -> str:
    return _DOUBLED.sub("~2f", escaped(key))


def _content_type(body: bytes) -> str:
    return "application/json" if body[:1] == b"{" else "application/octet-stream"
