"""The register in memory: the rows of attempts in an immutable world, and how a commit takes its own away."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, Raises, Step, WallClock, WorldDriver, WorldPart
from onceonly.model.artifact import Reservation
from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.ports.environment import Clock


class RegisterWorld(Struct, frozen=True):
    """The rows there are, in the order they were opened."""

    rows: tuple[Reservation, ...] = ()


def open_rows(world: RegisterWorld, rows: tuple[Reservation, ...], now: int) -> Step:
    """Write new rows, each by itself; a ConflictError when one was there."""
    known = {row.attempt for row in world.rows}
    fresh = tuple(replace(row, at=row.at or now, cancelled=False) for row in rows if row.attempt not in known)
    outcome = Raises(ConflictError, "a row of this attempt is there already") if len(fresh) < len(rows) else None
    return RegisterWorld(world.rows + fresh), outcome


def take(world: RegisterWorld, rows: tuple[Reservation, ...]) -> RegisterWorld | None:
    """Take rows away, as a commit does in the same write.

    Returns None when one is cancelled or gone: the commit is a ConflictError then.
    """
    mine = {row.attempt for row in rows}
    open_now = {row.attempt for row in world.rows if not row.cancelled}
    return RegisterWorld(tuple(row for row in world.rows if row.attempt not in mine)) if mine <= open_now else None


def cancel(world: RegisterWorld, row: Reservation) -> Step:
    """Make a row cancelled; the outcome is whether there is one."""
    wanted = row.attempt
    rows = tuple(replace(each, cancelled=True) if each.attempt == wanted else each for each in world.rows)
    return RegisterWorld(rows), any(each.attempt == wanted for each in rows)


def remove(world: RegisterWorld, row: Reservation) -> Step:
    """Remove a cancelled row; an open one stays."""
    wanted = row.attempt
    return RegisterWorld(tuple(each for each in world.rows if each.attempt != wanted or not each.cancelled)), None


def rows_of(world: RegisterWorld, identities: tuple[Identity, ...], unit: str) -> Step:
    """Give the rows of these messages in one unit."""
    return world, tuple(row for row in world.rows if row.identity in identities and row.unit == unit)


def old(world: RegisterWorld, older_than: int, limit: int) -> Step:
    """List old rows, oldest first."""
    found = sorted((row for row in world.rows if row.at < older_than), key=lambda row: row.at)
    return world, tuple(found[:limit])


class MemoryRegister:
    """The register of one endpoint, in a part of the world of its own."""

    def __init__(self, driver: WorldDriver, endpoint: str, *, clock: Clock | None = None) -> None:
        """Use the part of the driver's world that belongs to this endpoint; the clock says when rows were opened."""
        self.place = WorldPart(f"register of {endpoint}", RegisterWorld())
        self._driver = driver
        self._clock = clock or WallClock()

    async def open(self, rows: Sequence[Reservation]) -> None:
        """Write new rows; see the port."""
        arguments = (tuple(rows), self._clock.now())
        await self._driver.perform(PortOperation("row-open", self.place, open_rows, arguments, many=True))

    async def cancel(self, row: Reservation) -> bool:
        """Make a row cancelled; see the port."""
        there: bool = await self._driver.perform(PortOperation("row-cancel", self.place, cancel, (row,)))
        return there

    async def remove(self, row: Reservation) -> None:
        """Remove a cancelled row; see the port."""
        await self._driver.perform(PortOperation("row-remove", self.place, remove, (row,)))

    async def rows(self, identities: Sequence[Identity], unit: str = "") -> tuple[Reservation, ...]:
        """Give rows; see the port."""
        found: tuple[Reservation, ...] = await self._driver.perform(
            PortOperation("row-rows", self.place, rows_of, (tuple(identities), unit))
        )
        return found

    async def old(self, older_than: int, limit: int) -> tuple[Reservation, ...]:
        """List old rows; see the port."""
        found: tuple[Reservation, ...] = await self._driver.perform(
            PortOperation("row-old", self.place, old, (older_than, limit))
        )
        return found
