"""The contract of the Register port, rule by rule: reservations of artifacts, which the commit of their unit consumes."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from onceonly.model.artifact import Reservation
from onceonly.model.errors import ConflictError
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.effects import Register
from onceonly.ports.store import BeginResult
from onceonly_conformance.samples import message
from onceonly_conformance.store_subject import LATER, StoreSubject, look, wins, write
from onceonly_conformance.suite import ENDPOINT, OTHER, Suite, raises

NAMES = ("m1", "m2", "m3")
OPENED_MS = 5
"""When the oldest reservation was opened, in milliseconds since 1970."""


class RegisterSubject(StoreSubject, Protocol):
    """A store under test, with the register of its reservations."""

    async def register(self, endpoint: str = ENDPOINT) -> Register:
        """Open the register of an endpoint. Each call opens it as a separate process would."""


def reservation(name: str = "m1", attempt: str = "", *, unit: str = "", at: int = OPENED_MS) -> Reservation:
    """Return the reservation of an attempt at a message. The attempt is named after the message."""
    return Reservation(identity=message(name).identity, unit=unit, attempt=attempt or f"attempt-{name}", at=at)


class RegisterSuite(Suite):
    """The rules of a register. Override `open_register`."""

    def open_register(self) -> AbstractAsyncContextManager[RegisterSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_reservations_are_found_by_message_and_unit(self) -> None:
        """`rows` returns the complete reservations of the given messages in one unit, and no others."""
        first, second, other = reservation("m1", "a"), reservation("m1", "b"), reservation("m2", "c", unit="order/17")
        async with self.open_register() as subject:
            await (await subject.register()).open([first, second, other])
            register = await subject.register()
            found = await register.rows([message("m1").identity, message("m2").identity])
            assert sorted(found, key=lambda row: row.attempt) == [first, second]
            assert await register.rows([message("m2").identity], "order/17") == (other,)
            assert await register.rows([message("m3").identity]) == ()

    async def test_an_endpoint_has_its_own_reservations(self) -> None:
        """Neither `rows` nor `old` returns the reservations of another endpoint."""
        async with self.open_register() as subject:
            await (await subject.register()).open([reservation()])
            other = await subject.register(OTHER)
            assert (await other.rows([message().identity]), await other.old(LATER, 10)) == ((), ())

    async def test_old_lists_the_oldest_first(self) -> None:
        """`old` returns at most `limit` reservations, the oldest first. `older_than` is exclusive."""
        ages = {"m1": 2, "m2": 0, "m3": 1}
        rows = [reservation(name, at=OPENED_MS + age) for name, age in ages.items()]
        async with self.open_register() as subject:
            register = await subject.register()
            await register.open(rows)
            assert await register.old(LATER, 2) == (rows[1], rows[2])
            assert await register.old(OPENED_MS + 2, 10) == (rows[1], rows[2])

    async def test_a_reservation_is_stamped_with_the_time(self) -> None:
        """A reservation without an instant gets the time of the call."""
        async with self.open_register() as subject:
            before = subject.now()
            await (await subject.register()).open([reservation(at=0)])
            (found,) = await (await subject.register()).rows([message().identity])
            assert before <= found.at <= subject.now()

    async def test_an_attempt_is_reserved_once(self) -> None:
        """A second `open` of an attempt raises ConflictError, and does not revive a cancelled reservation."""
        async with self.open_register() as subject:
            register = await subject.register()
            await register.open([reservation()])
            await register.cancel(reservation())
            async with raises(ConflictError):
                await register.open([reservation()])
            assert [row.cancelled for row in await register.rows([message().identity])] == [True]

    async def test_cancel_reports_whether_there_is_a_reservation(self) -> None:
        """`cancel` returns True, also when repeated, until the reservation is removed. It cancels no other."""
        async with self.open_register() as subject:
            register = await subject.register()
            await register.open([reservation("m1"), reservation("m2")])
            there = [await register.cancel(reservation(name)) for name in ("m1", "m1", "m3")]
            found = await register.rows([message(name).identity for name in NAMES])
            assert there == [True, True, False]
            assert {row.attempt: row.cancelled for row in found} == {"attempt-m1": True, "attempt-m2": False}

    async def test_only_a_cancelled_reservation_is_removed(self) -> None:
        """`remove` deletes one cancelled reservation. It is harmless if there is none, and leaves an open one."""
        async with self.open_register() as subject:
            register = await subject.register()
            await register.open([reservation(name) for name in NAMES])
            for name in ("m1", "m3"):
                await register.cancel(reservation(name))
            for name in ("m1", "m1", "m2"):
                await register.remove(reservation(name))
            found = await register.rows([message(name).identity for name in NAMES])
            assert {row.attempt: row.cancelled for row in found} == {"attempt-m2": False, "attempt-m3": True}

    async def test_a_commit_consumes_its_reservations(self) -> None:
        """The commit deletes the reservations of its attempts. Those of other attempts stay."""
        other = reservation("m1", "other")
        async with self.open_register() as subject:
            register = await subject.register()
            await register.open([*map(reservation, NAMES), other])
            assert await self._commits(subject)
            assert await register.rows([message(name).identity for name in NAMES]) == (other,)
            assert not await register.cancel(reservation("m2"))

    async def test_very_many_reservations_are_opened_found_and_consumed(self) -> None:
        """`open`, `rows` and the commit accept more reservations than one request of the system."""
        asked = [message(f"m{number}") for number in range(self.many)]
        rows = [reservation(each.id) for each in asked]
        async with self.open_register() as subject:
            register = await subject.register()
            await register.open(rows)
            found = await register.rows([each.identity for each in asked])
            assert sorted(row.attempt for row in found) == sorted(row.attempt for row in rows)
            unit = await (await subject.store()).begin(asked)
            await unit.commit([Record(row.identity, attempt=row.attempt) for row in rows])
            assert await register.rows([each.identity for each in asked]) == ()

    async def test_a_commit_fails_without_one_of_its_reservations(self) -> None:
        """The commit raises ConflictError if any of its reservations is cancelled or deleted. It changes nothing."""
        for position, name in enumerate(NAMES):
            for is_removed in (False, True):
                async with self.open_register() as subject:
                    rows = [reservation(each, f"{each}-{position}-{is_removed}") for each in NAMES]
                    register = await subject.register()
                    await register.open(rows)
                    await register.cancel(rows[position])
                    if is_removed:
                        await register.remove(rows[position])
                    assert not await self._commits(subject, rows)
                    asked = [message(each) for each in NAMES]
                    assert await look(subject, *asked) == BeginResult(new=tuple(asked))
                    assert await subject.read() == {}
                    left = {row.attempt for row in await register.rows([each.identity for each in asked])}
                    assert left.issuperset(row.attempt for row in rows if row.identity.id != name)

    async def test_of_a_commit_and_a_cancellation_one_wins(self) -> None:
        """`cancel` returns False if the commit wins. The commit raises ConflictError if the cancellation wins."""
        async with self.open_register() as subject:
            for step in range(4):
                asked, row = message(f"m{step}"), reservation(f"m{step}")
                register = await subject.register()
                await register.open([row])
                unit = await (await subject.store()).begin([asked])
                cancelling = asyncio.create_task(register.cancel(row))
                for _ in range(5 * step):
                    await asyncio.sleep(0)
                won = await wins(unit, Record(asked.identity, attempt=row.attempt))
                unit.abandon()
                async with asyncio.timeout(self.patience):
                    assert await cancelling is not won

    async def _commits(self, subject: RegisterSubject, rows: list[Reservation] | None = None) -> bool:
        """Handle all messages in one unit with their attempts. Return False for a ConflictError."""
        asked: list[Message] = [message(name) for name in NAMES]
        unit = await (await subject.store()).begin(asked)
        await write(subject, unit, "m1")
        used = rows or [reservation(name) for name in NAMES]
        won = await wins(unit, *(Record(row.identity, attempt=row.attempt) for row in used))
        unit.abandon()
        return won
