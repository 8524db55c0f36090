"""Documents in memory: an immutable world in which every document has its own count of writes, kept also when it is deleted.

Nothing survives the process. It serves users' tests, and the model checker explores what is built on it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, Step, WorldDriver, WorldPart
from onceonly.documents.limits import DOCUMENT_LIMITS, check_limits, check_writes
from onceonly.ports.documents import (
    Change,
    Document,
    DocumentAddress,
    DocumentLimits,
    DocumentWrite,
    PendingDocument,
    Version,
)

LIMITS = DOCUMENT_LIMITS["memory"]


class WrittenDocument(Struct, frozen=True):
    """What became of one key: how often it was written, and what is there now; None when it was deleted.

    `pending_for` and `pending_since` are those of the last write.
    """

    key: str
    count: int
    body: bytes | None
    pending_for: tuple[str, ...] = ()
    pending_since: int = 0

    @property
    def version(self) -> Version:
        """The count, so that no version comes again."""
        return "" if self.body is None else str(self.count)


class ApplicationDocument(Struct, frozen=True):
    """What became of one document of the application; None for `body` when it was deleted."""

    address: DocumentAddress
    count: int
    body: bytes | None

    @property
    def version(self) -> Version:
        return "" if self.body is None else str(self.count)


class DocumentsWorld(Struct, frozen=True):
    """All documents of one place, and the counts of those that were there; no order, so that worlds compare.

    `application` has the documents of the application.
    """

    written: frozenset[WrittenDocument] = frozenset()
    application: frozenset[ApplicationDocument] = frozenset()


def load(world: DocumentsWorld, keys: tuple[str, ...]) -> Step:
    """Read documents; the outcome has them in the order asked."""
    known = {each.key: each for each in world.written if each.body is not None}
    found = (known[key] for key in dict.fromkeys(keys) if key in known)
    return world, tuple((each.key, Document(each.body or b"", each.version)) for each in found)


def save(world: DocumentsWorld, changes: tuple[Change, ...]) -> Step:
    """Write each document that has the expected version; the outcome says for each what became of it."""
    return _saved(world, changes)


def _saved(world: DocumentsWorld, changes: tuple[Change, ...]) -> tuple[DocumentsWorld, tuple[Version | None, ...]]:
    known = {each.key: each for each in world.written}
    answers: list[Version | None] = []
    for change in changes:
        now = known.get(change.key, WrittenDocument(change.key, 0, None))
        if change.expected != now.version:
            answers.append(None)
            continue
        listed = (change.pending_for, change.pending_since) if change.body is not None else ((), 0)
        known[change.key] = WrittenDocument(change.key, now.count + 1, change.body, *listed)
        answers.append(known[change.key].version)
    return replace(world, written=frozenset(known.values())), tuple(answers)


def read(world: DocumentsWorld, addresses: tuple[DocumentAddress, ...]) -> Step:
    known = {each.address: each for each in world.application if each.body is not None}
    found = (known[address] for address in dict.fromkeys(addresses) if address in known)
    return world, tuple((each.address, Document(each.body or b"", each.version)) for each in found)


def save_together(world: DocumentsWorld, change: Change, writes: tuple[DocumentWrite, ...]) -> Step:
    """Write all of them, or none; the outcome is the version of the store's document, or None."""
    after, answers = _saved(world, (change,))
    (version,) = answers
    known = {each.address: each for each in world.application}
    for write in writes:
        now = known.get(write.address, ApplicationDocument(write.address, 0, None))
        if version is None or write.expected not in {None, now.version}:
            return world, None
        known[write.address] = ApplicationDocument(write.address, now.count + 1, write.body)
    return replace(after, application=frozenset(known.values())), version


def keys(world: DocumentsWorld, prefix: str, after: str, limit: int) -> Step:
    there = sorted(each.key for each in world.written if each.body is not None and each.key.startswith(prefix))
    return world, tuple(key for key in there if key > after)[:limit]


def pending(  # noqa: PLR0917 - the arguments of the port
    world: DocumentsWorld, endpoint: str, before: int, after: PendingDocument | None, limit: int
) -> Step:
    """List the pending documents of an endpoint; the outcome has them by their times, then by their keys."""
    there = sorted((each.pending_since, each.key) for each in world.written if endpoint in each.pending_for)
    behind = (after.since, after.key) if after is not None else (0, "")
    some = [PendingDocument(key, since) for since, key in there if since < before and (since, key) > behind]
    return world, tuple(some[:limit])


class MemoryDocuments:
    """Documents of one place in memory, by its name. They never expire: that is a hint."""

    max_together = 100

    def __init__(self, driver: WorldDriver, name: str = "documents", *, limits: DocumentLimits = LIMITS) -> None:
        """Use the part of the driver's world that has this name."""
        self.place = WorldPart(name, DocumentsWorld())
        self.limits = limits
        self._driver = driver

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        found: tuple[tuple[str, Document], ...] = await self._perform("load", load, (tuple(keys),))
        return dict(found)

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write documents, each on its own; see the port. Raises CommitRefused for what is over the limits."""
        check_limits(changes, self.limits)
        answers: tuple[Version | None, ...] = await self._perform("save", save, (tuple(changes),), many=True)
        return answers

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        listed: tuple[str, ...] = await self._perform("keys", keys, (prefix, after, limit))
        return listed

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        listed: tuple[PendingDocument, ...] = await self._perform("pending", pending, (endpoint, before, after, limit))
        return listed

    async def why_unlisted(self) -> str:
        return ""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Mapping[DocumentAddress, Document]:
        found: tuple[tuple[DocumentAddress, Document], ...] = await self._perform("read", read, (tuple(addresses),))
        return dict(found)

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write all or none; see the port. Raises CommitRefused for what is over the limits."""
        check_limits([change], self.limits)
        check_writes(self, change.key, writes)
        version: Version | None = await self._perform("save_together", save_together, (change, tuple(writes)))
        return version

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        size = len(write.body or b"")
        return f"it is {size:,} bytes long; the limit of memory is {self.limits.body:,}" if size > self.limits.body else ""

    async def why_not_together(self) -> str:
        return ""

    async def check(self) -> tuple[str, ...]:
        return ()

    async def _perform(
        self, point: str, function: Callable[..., Step], arguments: tuple[Any, ...], *, many: bool = False
    ) -> Any:
        return await self._driver.perform(PortOperation(point, self.place, function, arguments, many=many))
