"""Dedup store, tokens and artifacts in memory as subjects of their suites."""

from datetime import timedelta
from typing import Any

from onceonly.adapters.memory.artifacts import MemoryArtifacts
from onceonly.adapters.memory.world import Live, PortOperation, WorldDriver
from onceonly.model.errors import OutcomeUnknown
from onceonly.model.retention import always
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.documents_subject import Moment
from onceonly_verify.memory_ports.dedup import MemoryMarkStore
from onceonly_verify.memory_ports.tokens import MemoryTokens

READS = {"dedup-contains", "token-live", "token-prepared"}


class CutOnce:
    """A driver whose first write is cut off, before or after it is applied."""

    def __init__(self, inner: Live, moment: Moment) -> None:
        self._inner = inner
        self._moment = moment
        self._is_cut = False

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        """Carry it out, or not, and do not say."""
        if operation.point in READS or self._is_cut:
            return await self._inner.perform(operation, patience)
        self._is_cut = True
        if self._moment == "after":
            await self._inner.perform(operation, patience)
        raise OutcomeUnknown("the connection was lost")

    def at_once(self, operation: PortOperation) -> Any:
        """Carry it out."""
        return self._inner.at_once(operation)

    def token(self) -> Any:
        """Return a name."""
        return self._inner.token()


class InMemory:
    """A world, and a clock that the suite may move."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.driver = Live()

    def now(self) -> int:
        """Return the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        self.clock.advance(milliseconds)

    def cutting(self, moment: Moment) -> WorldDriver:
        """Return a driver that is cut off once."""
        return CutOnce(self.driver, moment)


class MemoryDedup(InMemory):
    """The memory dedup store, which forgets nothing by itself."""

    async def dedup_store(self) -> MemoryMarkStore:
        """Open it."""
        return self._on(self.driver)

    async def cut(self, moment: Moment) -> MemoryMarkStore:
        """Open one that is cut off once."""
        return self._on(self.cutting(moment))

    def _on(self, driver: WorldDriver) -> MemoryMarkStore:
        return MemoryMarkStore(driver, retention=always(self.retention()), clock=self.clock)

    def retention(self) -> int:
        """Return some retention."""
        return timedelta(days=7) // timedelta(milliseconds=1)


class MemoryTokenPlace(InMemory):
    """The memory token store."""

    async def tokens(self) -> MemoryTokens:
        """Open it."""
        return MemoryTokens(self.driver, clock=self.clock)

    async def cut(self, moment: Moment) -> MemoryTokens:
        """Open one that is cut off once."""
        return MemoryTokens(self.cutting(moment), clock=self.clock)


class MemoryArtifactsPlace(InMemory):
    """Artifacts in memory."""

    async def artifacts(self) -> MemoryArtifacts:
        """Open the place."""
        return MemoryArtifacts(self.driver)
