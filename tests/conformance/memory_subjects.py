"""Memory adapters as subjects of the suites: one world, however many processes look at it."""

from collections.abc import Callable
from typing import cast

from onceonly.drivers.memory import Live
from onceonly.ports.store import Resources
from onceonly.stores.memory import MemoryDeadLetters, MemoryStore, Notebook
from onceonly.testing.clock import ManualClock
from onceonly.testing.suite import ENDPOINT
from onceonly.transports.memory import MemoryTransport

LEASE = 30.0


class Timed:
    """What has a clock that the suite may move."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.driver = Live()

    def now(self) -> int:
        """Give the time."""
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


class MemoryTransports(Timed):
    """The memory transport."""

    async def transport(self, endpoint: str = ENDPOINT) -> MemoryTransport:
        """Open a transport."""
        return MemoryTransport(self.driver, endpoint, clock=self.clock, lease=LEASE)


class MemoryLetters(Timed):
    """Dead letters in memory."""

    async def dead_letters(self) -> MemoryDeadLetters:
        """Open them."""
        return MemoryDeadLetters(self.driver, clock=self.clock)
