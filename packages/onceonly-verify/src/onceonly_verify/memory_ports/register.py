"""The register in memory: the rows of attempts in the world of the store, whose commit takes its own away (`take_rows`)."""

from collections.abc import Sequence

from msgspec.structs import replace

from onceonly.adapters.memory.store import StoreWorld
from onceonly.adapters.memory.world import PortOperation, Raises, Step, WallClock, WorldDriver, WorldPart
from onceonly.model.artifact import Reservation
from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.ports.environment import Clock


def open_rows(world: StoreWorld, rows: tuple[Reservation, ...], now: int) -> Step:
    """Write new rows, each on its own; a ConflictError when one was there."""
    known = {row.attempt for row in world.rows}
    fresh = tuple(replace(row, at=row.at or now, cancelled=False) for row in rows if row.attempt not in known)
    outcome = (
        Raises(ConflictError, "this attempt id is already registered: use a new id for each attempt")
        if len(fresh) < len(rows)
        else None
    )
    return replace(world, rows=world.rows + fresh), outcome


def cancel(world: StoreWorld, row: Reservation) -> Step:
    """Make a row cancelled; the outcome is whether there is one."""
    wanted = row.attempt
    rows = tuple(replace(each, cancelled=True) if each.attempt == wanted else each for each in world.rows)
    return replace(world, rows=rows), any(each.attempt == wanted for each in rows)


def remove(world: StoreWorld, row: Reservation) -> Step:
    """Remove a cancelled row; an open one stays."""
    wanted = row.attempt
    left = tuple(each for each in world.rows if each.attempt != wanted or not each.cancelled)
    return replace(world, rows=left), None


def rows_of(world: StoreWorld, identities: tuple[Identity, ...], unit: str) -> Step:
    """Return the rows of these messages in one unit."""
    return world, tuple(row for row in world.rows if row.identity in identities and row.unit == unit)


def old(world: StoreWorld, older_than: int, limit: int) -> Step:
    found = sorted((row for row in world.rows if row.at < older_than), key=lambda row: row.at)
    return world, tuple(found[:limit])


class MemoryRegister:
    """The register of one endpoint, in its memory store."""

    def __init__(self, driver: WorldDriver, endpoint: str, *, clock: Clock | None = None) -> None:
        """Use the same part of the driver's world as the store of this endpoint; the clock says when rows were opened."""
        self.place = WorldPart(f"store of {endpoint}", StoreWorld())
        self._driver = driver
        self._clock = clock or WallClock()

    async def open(self, rows: Sequence[Reservation]) -> None:
        arguments = (tuple(rows), self._clock.now())
        await self._driver.perform(PortOperation("row-open", self.place, open_rows, arguments, many=True))

    async def cancel(self, row: Reservation) -> bool:
        there: bool = await self._driver.perform(PortOperation("row-cancel", self.place, cancel, (row,)))
        return there

    async def remove(self, row: Reservation) -> None:
        await self._driver.perform(PortOperation("row-remove", self.place, remove, (row,)))

    async def rows(self, identities: Sequence[Identity], unit: str = "") -> tuple[Reservation, ...]:
        found: tuple[Reservation, ...] = await self._driver.perform(
            PortOperation("row-rows", self.place, rows_of, (tuple(identities), unit))
        )
        return found

    async def old(self, older_than: int, limit: int) -> tuple[Reservation, ...]:
        found: tuple[Reservation, ...] = await self._driver.perform(
            PortOperation("row-old", self.place, old, (older_than, limit))
        )
        return found
