"""Documents in memory that tell what was called, and that spoil what a test says."""

from collections.abc import Mapping, Sequence

from onceonly.adapters.memory.documents import LIMITS, MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.ports.documents import Change, Document, Version


class RecordingDocuments:
    """Passes everything on, and keeps what was called and what was written; `spoils` are raised by the calls to come."""

    limits = LIMITS

    def __init__(self, driver: Live | None = None) -> None:
        self.inner = MemoryDocuments(driver or Live())
        self.calls: list[str] = []
        self.loaded: list[str] = []
        self.written: list[Change] = []
        self.spoils: dict[int, Exception] = {}
        """By the number of the call, counted from 0."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read."""
        self._tell("load")
        self.loaded += keys
        return await self.inner.load(keys)

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write."""
        self._tell("save")
        self.written += changes
        return await self.inner.save(changes)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List."""
        self._tell("keys")
        return await self.inner.keys(prefix, after=after, limit=limit)

    async def check(self) -> tuple[str, ...]:
        """Find nothing."""
        return ()

    def _tell(self, call: str) -> None:
        self.calls.append(call)
        if spoil := self.spoils.get(len(self.calls) - 1):
            raise spoil


class ContestedDocuments(RecordingDocuments):
    """Documents that somebody else writes before every write."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Be too late."""
        found = await self.inner.load([change.key for change in changes])
        await self.inner.save([Change(key=key, body=each.body, expected=each.version) for key, each in found.items()])
        return await super().save(changes)
