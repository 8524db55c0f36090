"""What the tests of the janitor share: an endpoint in memory whose claims are in a ring, and doubles that say what they do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.bookkeeping import DocumentJournals
from onceonly.model.errors import CommitFailed
from onceonly.model.identity import NAME_BYTES, timed_id
from onceonly.model.maintenance_journal import MaintenanceJournal
from onceonly.model.message import Message
from onceonly.model.ring import bucketing_for
from onceonly.ports.bundle import Ports
from onceonly.ports.maintenance import Maintenance
from onceonly.ports.ring import Rotation, TimeBucket
from onceonly.runtime.environment import Environment, Timer
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly_verify.memory_ports.ring import MemoryRing, MemoryRingStore
from tests.runtime.harness import SHOP, FixedRandomSource, SimulatedEndpoint
from tests.runtime.relay.harness import PassingTimer, record_of

WEEK = 7 * 86_400_000
BUCKETING = bucketing_for(WEEK)
WIDTH = BUCKETING.width
NOW = 100_000 * WIDTH + 5
"""Some instant just behind the beginning of a slice."""
INTERVAL = 60.0


class WatchedRing:
    """A ring that tells when it is looked at, and fails or answers as a test wants it to."""

    def __init__(self, inner: MemoryRing) -> None:
        self._inner = inner
        self.bucketing, self.now, self.leading = inner.bucketing, inner.now, inner.leading
        self.looks = 0
        self.removed = 0
        self.rotated: list[tuple[int, bool]] = []
        self.failures = 0
        self.busy = 0
        self.forbidden: set[int] = set()
        self.looked: Callable[[], Awaitable[object]] = nothing

    async def buckets(self) -> Sequence[TimeBucket]:
        """Look, and tell so; or fail."""
        self.looks += 1
        await self.looked()
        if self.failures:
            self.failures -= 1
            raise CommitFailed("the place is away")
        return await self._inner.buckets()

    async def rotate(self, number: int, *, by_rows: bool = False) -> Rotation:
        """Rotate, unless somebody reads it."""
        self.rotated.append((number, by_rows))
        if number in self.forbidden:
            raise CommitFailed("permission denied")
        if self.busy and not by_rows:
            self.busy -= 1
            return Rotation.BUSY
        return await self._inner.rotate(number, by_rows=by_rows)

    async def remove_expired(self, limit: int = 1000) -> int:
        """Count what is removed."""
        count = await self._inner.remove_expired(limit)
        self.removed += count
        return count


class JanitorHarness:
    """An endpoint whose store forgets in time, and what its janitors share."""

    def __init__(self, timer: Timer | None = None) -> None:
        self.simulated = SimulatedEndpoint()
        live = self.simulated.driver
        self.clock, self.timer = self.simulated.clock, timer or PassingTimer()
        self.clock.advance(NOW - self.clock.now())
        self.store = MemoryRingStore(live, SHOP, bucketing=BUCKETING, clock=self.clock)
        self.ring = WatchedRing(MemoryRing(live, self.store))
        self.journals = DocumentJournals(MemoryDocuments(Live()), SHOP)
        self.stop = asyncio.Event()

    def ports(self, **maintenance: object) -> Ports:
        """Put together what one process has."""
        given = {"ring": self.ring, "leader": self.ring, "journals": self.journals, "retention": WEEK, "interval": INTERVAL}
        chosen = Maintenance(**(given | maintenance))  # type: ignore[arg-type] # a test's own doubles
        return self.simulated.ports._replace(store=self.store, fence=self.store, pending=self.store, maintenance=chosen)

    def janitor(self, ports: Ports | None = None, *, timer: Timer | None = None) -> MaintenanceLoop:
        """Make a janitor, as another process would."""
        environment = Environment(clock=self.clock, random=FixedRandomSource(), timer=timer or self.timer)
        return MaintenanceLoop(ports or self.ports(), grace=5.0, environment=environment)

    async def round(self) -> MaintenanceJournal:
        """Have a janitor do all its tasks once."""
        journal = await self.janitor().clean_up()
        assert journal is not None
        return journal

    async def run(self, *janitors: MaintenanceLoop, until: Callable[[], bool]) -> None:
        """Run janitors beside each other until a condition holds when one looks at the ring."""

        async def looked() -> None:
            if until():
                self.stop.set()

        self.ring.looked = looked
        async with asyncio.timeout(20):
            await asyncio.gather(*(janitor.run(self.stop) for janitor in janitors))

    async def handle(self, *names: str, instant: int = 0, is_pending: bool = False) -> None:
        """Have messages handled, whose records are left if they owe something."""
        messages = [message(name, instant) for name in names]
        unit = await self.store.begin(messages)
        assert not unit.found.undecidable
        await unit.commit([record_of(each.identity) for each in messages])
        if not is_pending:
            await self.store.forget([record_of(each.identity) for each in messages])

    async def is_known(self, name: str, instant: int = 0) -> bool:
        """Tell whether a copy would be known."""
        unit = await self.store.begin([message(name, instant)])
        unit.abandon()
        return bool(unit.found.done)


class OtherLeader:
    """A leadership that somebody else has, until a test says so."""

    def __init__(self) -> None:
        self.is_free = False

    def leading(self) -> AbstractAsyncContextManager[bool]:
        """Tell."""
        return self._leading()

    @asynccontextmanager
    async def _leading(self) -> AsyncIterator[bool]:
        yield self.is_free


def message(name: str, instant: int = 0) -> Message:
    """Make a message, with an instant unless that is 0."""
    id_ = timed_id("web", instant, name.encode().rjust(NAME_BYTES, b"\0")) if instant else name
    return Message(id=id_, source="web", type="order", body=b"{}")


async def nothing() -> None:
    """Do nothing."""
