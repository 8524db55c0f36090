"""Documents in memory whose list of pending documents breaks one promise of its port each."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.model.errors import OutcomeUnknown
from onceonly.ports.documents import Change, PendingDocument, Version
from onceonly_conformance.suite import ENDPOINT, steps

FAR = 1 << 60
PAUSES = (40, 0, 15, 1, 90, 7, 7)
"""Turns of the event loop between a write and the change of its list, one after the other."""


class Unlisted(MemoryDocuments):
    """It says that the list is missing."""

    async def why_unlisted(self) -> str:
        """Say so."""
        return "the index is missing"


class Common(MemoryDocuments):
    """All endpoints have one list."""

    async def pending(self, endpoint: str, before: int, **options: Any) -> tuple[PendingDocument, ...]:
        """List what is the endpoint's of the rules."""
        return await super().pending(ENDPOINT, before, **options)


class ByKey(MemoryDocuments):
    """Its list is in the order of keys."""

    async def pending(self, endpoint: str, before: int, **options: Any) -> tuple[PendingDocument, ...]:
        """Sort a page."""
        return tuple(sorted(await super().pending(endpoint, before, **options), key=lambda each: each.key))


class Inclusive(MemoryDocuments):
    """It lists what is as late as `before`."""

    async def pending(self, endpoint: str, before: int, **options: Any) -> tuple[PendingDocument, ...]:
        """List one more millisecond."""
        return await super().pending(endpoint, before + 1, **options)


class Skipping(MemoryDocuments):
    """A page begins at the next time, so what has the same time as the entry before is left out."""

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """Skip the rest of that time."""
        behind = after and PendingDocument("\U0010ffff", after.since)
        return await super().pending(endpoint, before, after=behind, limit=limit)


class Searching(MemoryDocuments):
    """It looks for the entry behind which a page begins, and finds no page if that is gone."""

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """Look for it."""
        there = await super().pending(endpoint, FAR, limit=1000)
        return await super().pending(endpoint, before, after=after, limit=limit) if after is None or after in there else ()


class Clinging(MemoryDocuments):
    """A document that was pending stays listed for the same endpoints."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Keep what it was listed for."""
        listed = {each.key: each.since for each in await super().pending(ENDPOINT, FAR, limit=1000)}
        kept = [
            replace(each, pending_for=(*{ENDPOINT, *each.pending_for},), pending_since=each.pending_since or listed[each.key])
            if each.key in listed and each.body is not None
            else each
            for each in changes
        ]
        return await super().save(kept)


class Beside(MemoryDocuments):
    """Its list is beside the documents, and changed by a write of its own. `driver` is where all clients have it."""

    @property
    def _list(self) -> dict[str, tuple[tuple[str, ...], int]]:
        found: dict[str, tuple[tuple[str, ...], int]] = self._driver.__dict__.setdefault("listed", {})
        return found

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """List what is beside them."""
        behind = (after.since, after.key) if after else (0, "")
        there = sorted((since, key) for key, (names, since) in self._list.items() if endpoint in names)
        return tuple(PendingDocument(key, since) for since, key in there if since < before and (since, key) > behind)[:limit]

    def note(self, change: Change) -> None:
        """Change the list as a write does."""
        self._list[change.key] = (change.pending_for if change.body is not None else (), change.pending_since)


class Later(Beside):
    """The list is changed after the document: a lost answer leaves it as it was, and writes that race leave either."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write both, one after the other."""
        versions = await super().save(changes)
        self._driver.__dict__["writes"] = number = self._driver.__dict__.get("writes", 0) + 1
        await steps(PAUSES[number % len(PAUSES)])
        for change, version in zip(changes, versions, strict=True):
            if version is not None:
                self.note(change)
        return versions


class Hasty(Beside):
    """The list is changed before the document, so a refused write changes it as well."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write both, the list first."""
        for change in changes:
            self.note(change)
        return await super().save(changes)


class Ghostly(Beside):
    """A deleted document stays listed."""

    def note(self, change: Change) -> None:
        """Ignore what is deleted."""
        if change.body is not None:
            super().note(change)

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write both, at once, also if the answer is lost."""
        versions: tuple[Version | None, ...] = ("x",) * len(changes)
        try:
            versions = await super().save(changes)
        except OutcomeUnknown as error:
            if "before the write" in str(error):
                raise
            self._note_all(changes, versions)
            raise
        self._note_all(changes, versions)
        return versions

    def _note_all(self, changes: Sequence[Change], versions: Sequence[Version | None]) -> None:
        for change, version in zip(changes, versions, strict=True):
            if version is not None:
                self.note(change)


class FirstFew(MemoryDocuments):
    """Of many documents that are written at once, only the first hundred are listed."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """List the first hundred."""
        rest = [replace(each, pending_for=()) for each in changes[100:]]
        return await super().save([*changes[:100], *rest])


class Caseless(MemoryDocuments):
    """Its list has keys in lower case."""

    async def pending(self, endpoint: str, before: int, **options: Any) -> tuple[PendingDocument, ...]:
        """Lower them."""
        found = await super().pending(endpoint, before, **options)
        return tuple(replace(each, key=each.key.lower()) for each in found)
