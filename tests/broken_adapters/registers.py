"""Registers that lose, share or keep reservations, and stores whose commits do not consume them."""

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from onceonly.model.artifact import Reservation
from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.ports.effects import Register
from onceonly_conformance.register_suite import RegisterSubject
from onceonly_conformance.suite import ENDPOINT
from tests.broken_adapters.wrapped_stores import WrappedStores, WrappedUnit


class WrappedRegister:
    """A register that passes every call on to its owner."""

    def __init__(self, owner: "WrappedRegisters", inner: Register) -> None:
        self._owner = owner
        self._inner = inner

    async def open(self, rows: Sequence[Reservation]) -> None:
        """Pass on."""
        await self._owner.open(self._inner, rows)

    async def cancel(self, row: Reservation) -> bool:
        """Pass on."""
        return await self._owner.cancel(self._inner, row)

    async def remove(self, row: Reservation) -> None:
        """Pass on."""
        await self._owner.remove(self._inner, row)

    async def rows(self, identities: Sequence[Identity], unit: str = "") -> tuple[Reservation, ...]:
        """Pass on."""
        return await self._owner.rows(self._inner, identities, unit)

    async def old(self, older_than: int, limit: int) -> tuple[Reservation, ...]:
        """Pass on."""
        return await self._owner.old(self._inner, older_than, limit)


class WrappedRegisters(WrappedStores):
    """A subject that passes everything on. A broken one overrides one of these methods."""

    def __init__(self, inner: RegisterSubject) -> None:
        super().__init__(inner)
        self.registers = inner

    async def register(self, endpoint: str = ENDPOINT) -> Register:
        """Open the register."""
        return WrappedRegister(self, await self.registers.register(endpoint))

    async def open(self, register: Register, rows: Sequence[Reservation]) -> None:
        """Store reservations."""
        await register.open(rows)

    async def cancel(self, register: Register, row: Reservation) -> bool:
        """Cancel a reservation."""
        return await register.cancel(row)

    async def remove(self, register: Register, row: Reservation) -> None:
        """Delete a reservation."""
        await register.remove(row)

    async def rows(self, register: Register, identities: Sequence[Identity], unit: str) -> tuple[Reservation, ...]:
        """Find reservations."""
        return await register.rows(identities, unit)

    async def old(self, register: Register, older_than: int, limit: int) -> tuple[Reservation, ...]:
        """List old reservations."""
        return await register.old(older_than, limit)


class UnitBlindRegisters(WrappedRegisters):
    """Stores no reservation under its unit."""

    async def open(self, register: Register, rows: Sequence[Reservation]) -> None:
        """Store them under no unit."""
        await super().open(register, [replace(row, unit="") for row in rows])


class SharingRegisters(WrappedRegisters):
    """Has one register for all endpoints."""

    async def register(self, endpoint: str = ENDPOINT) -> Register:
        """Open that one."""
        return await super().register(ENDPOINT)


class UnsortedRegisters(WrappedRegisters):
    """Lists the newest reservations first."""

    async def old(self, register: Register, older_than: int, limit: int) -> tuple[Reservation, ...]:
        """Turn the list around."""
        return (await super().old(register, older_than, 1000))[::-1][:limit]


class TimelessRegisters(WrappedRegisters):
    """Stores no time."""

    async def open(self, register: Register, rows: Sequence[Reservation]) -> None:
        """Store the first instant there is."""
        await super().open(register, [replace(row, at=row.at or 1) for row in rows])


class ForgivingRegisters(WrappedRegisters):
    """Accepts an attempt again."""

    async def open(self, register: Register, rows: Sequence[Reservation]) -> None:
        """Hide the error."""
        with suppress(ConflictError):
            await super().open(register, rows)


class BoastingRegisters(WrappedRegisters):
    """Reports that it cancelled whatever it was asked to cancel."""

    async def cancel(self, register: Register, row: Reservation) -> bool:
        """Cancel."""
        await super().cancel(register, row)
        return True


class RuthlessRegisters(WrappedRegisters):
    """Deletes open reservations."""

    async def remove(self, register: Register, row: Reservation) -> None:
        """Cancel first."""
        await register.cancel(row)
        await super().remove(register, row)


class UnconsumingRegisters(WrappedRegisters):
    """Commits without a look at the reservations."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Leave the attempts out."""
        await super().commit(unit, [replace(record, attempt="") for record in records])


class FirstAttemptRegisters(WrappedRegisters):
    """Checks the reservation of the first message only."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Leave the other attempts out."""
        await super().commit(unit, [*records[:1], *(replace(record, attempt="") for record in records[1:])])


class FirstRequestRegisters(WrappedRegisters):
    """Finds the reservations of as many messages as one request takes."""

    async def rows(self, register: Register, identities: Sequence[Identity], unit: str) -> tuple[Reservation, ...]:
        """Ask for some."""
        return await super().rows(register, identities[:100], unit)
