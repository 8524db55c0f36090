"""Memory adapters as subjects of the suites: one world, however many processes look at it."""

from collections.abc import Callable
from typing import Any, ClassVar, cast

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.store import MemoryDeadLetters, MemoryStore, Notebook
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live, PortOperation
from onceonly.model.errors import OutcomeUnknown, SetupError
from onceonly.model.ring import bucketing_for
from onceonly.ports.documents import Documents
from onceonly.ports.store import Resources
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.documents_subject import Moment
from onceonly_conformance.ring_subject import RETENTION_MS
from onceonly_conformance.suite import ENDPOINT
from onceonly_verify.memory_ports.ring import MemoryRing, MemoryRingStore

LEASE = 30.0


class Timed:
    """What has a clock that the suite may move."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.driver = Live()

    def now(self) -> int:
        """Return the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        self.clock.advance(milliseconds)

    async def lapse(self) -> None:
        """Let every lease end."""
        self.clock.advance(int(LEASE * 1000))


class MemoryStores(Timed):
    """The memory store of two endpoints, whose notes are the business data."""

    def __init__(self, *, blocking: bool) -> None:
        super().__init__()
        self._blocking = blocking

    async def store(self, endpoint: str = ENDPOINT) -> MemoryStore:
        """Open a store."""
        return MemoryStore(self.driver, endpoint, clock=self.clock, blocking=self._blocking)

    async def write(self, resources: Resources, key: str, value: str) -> None:
        """Write a note."""
        self.write_now(resources.get, key, value)

    def write_now(self, get: Callable[[type], object], key: str, value: str) -> None:
        """Write a note."""
        cast("Notebook", get(Notebook)).write(key, value)

    async def refuse(self, resources: Resources) -> None:
        """Have the commit refused."""
        cast("Notebook", resources.get(Notebook)).refuse("for this test")

    async def read(self) -> dict[str, str]:
        """Read the notes."""
        return dict((await self.store()).notes())


class MemoryRings(MemoryStores):
    """The same of stores that forget."""

    async def store(self, endpoint: str = ENDPOINT) -> MemoryRingStore:
        """Open a store."""
        return MemoryRingStore(
            self.driver, endpoint, bucketing=bucketing_for(RETENTION_MS), clock=self.clock, blocking=self._blocking
        )

    async def ring(self) -> MemoryRing:
        """Open the ring of the endpoint."""
        return MemoryRing(self.driver, await self.store())


class MemoryTransports(Timed):
    """The memory transport."""

    async def transport(self, endpoint: str = ENDPOINT) -> MemoryTransport:
        """Open a transport."""
        return MemoryTransport(self.driver, endpoint, clock=self.clock, lease=LEASE)

    async def ahead(self, endpoint: str, milliseconds: int) -> MemoryTransport:
        """Open a transport: all are in one process, and have one clock."""
        return await self.transport(endpoint)


class MemoryLetters(Timed):
    """Dead letters in memory."""

    async def dead_letters(self) -> MemoryDeadLetters:
        """Open them."""
        return MemoryDeadLetters(self.driver, clock=self.clock)


class MemoryPlace(Timed):
    """Documents in memory."""

    async def documents(self) -> Documents:
        """Open them."""
        return MemoryDocuments(self.driver)

    async def cut(self, moment: Moment) -> Documents:
        """Open them by a driver that loses one answer."""
        return MemoryDocuments(CutDriver(self.driver, moment))

    async def missing(self) -> Documents:
        """Open what says of itself that it is not there: memory always is."""
        return MissingDocuments(self.driver)


class CutDriver(Live):
    """Carries out operations in another driver's world; its first save is cut off."""

    writes: ClassVar[frozenset[str]] = frozenset({"save", "save_together"})

    def __init__(self, inner: Live, moment: Moment) -> None:
        super().__init__()
        self._inner = inner
        self._moment: Moment | None = moment

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        """Carry it out, and lose the answer once."""
        moment, self._moment = (self._moment, None) if operation.point in self.writes else (None, self._moment)
        if moment == "before":
            raise OutcomeUnknown("the connection was cut before the write")
        answer = await self._inner.perform(operation, patience)
        if moment == "after":
            raise OutcomeUnknown("the connection was cut before the answer")
        return answer


class MissingDocuments(MemoryDocuments):
    """Documents in a place that is not there."""

    async def check(self) -> tuple[str, ...]:
        """Say so."""
        raise SetupError("there is no such place: make it")
