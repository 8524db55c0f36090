"""What the rules about stores share: a store under test, and functions that check it as separate processes."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Protocol

from msgspec.structs import replace

from onceonly.model.errors import ConflictError
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.ports.store import BeginResult, Fence, PendingRecords, Resources, Store, Unit
from onceonly_conformance.samples import effects, message
from onceonly_conformance.suite import ENDPOINT, steps

LATER = 1 << 52
MOMENT_SECONDS = 0.5
"""Seconds in which a call that does not wait for another process ends."""
ONE_EFFECT = effects()[:1]


class FencedStore(Store, Fence, Protocol):
    """A store that is its own fence."""


class ListedStore(FencedStore, Protocol):
    """A store whose pending records the rules can list, by the PendingRecords port or by a function of the test."""

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        """List all records as a separate process."""


class WholeStore(FencedStore, PendingRecords, Protocol):
    """A store that can be searched."""


class StoreSubject(Protocol):
    """A store under test. Its business data is a table of texts by key."""

    async def store(self, endpoint: str = ENDPOINT) -> ListedStore:
        """Open the store of an endpoint. Each call opens it as a separate process would."""

    async def write(self, resources: Resources, key: str, value: str) -> None:
        """Write one value, as a handler does."""

    def write_now(self, get: Callable[[type], object], key: str, value: str) -> None:
        """Write one business value within a unit, as a synchronous handler would."""

    async def refuse(self, resources: Resources) -> None:
        """Write something in a unit that only the commit detects as impossible, such as a violated deferred constraint."""

    async def read(self) -> dict[str, str]:
        """Read the committed business data outside of any unit."""

    def now(self) -> int:
        """Return the store's time, in milliseconds since 1970."""

    async def pass_time(self, milliseconds: int) -> None:
        """Let the store's time pass."""


class SearchedSubject(StoreSubject, Protocol):
    """A store under test that can be searched."""

    async def store(self, endpoint: str = ENDPOINT) -> WholeStore:
        """Open the store of an endpoint. Each call opens it as a separate process would."""


async def look(subject: StoreSubject, *asked: Message, endpoint: str = ENDPOINT) -> BeginResult:
    """Begin and abandon a unit as a separate process. Return what `begin` found, without the ages, which depend on time."""
    unit = await (await subject.store(endpoint)).begin(asked)
    unit.abandon()
    return replace(unit.found, ages=())


async def undispatched(subject: StoreSubject) -> tuple[Record, ...]:
    """List all records as a separate process."""
    return await (await subject.store()).undispatched(LATER, 100)


async def handle(subject: StoreSubject, *asked: Message, decided: tuple[Send, ...] = (), store: Store | None = None) -> None:
    """Handle messages as the algorithm does. Write one value under the id of each new message."""
    unit = await (store or await subject.store()).begin(asked)
    for each in unit.found.new:
        await write(subject, unit, each.id)
    await unit.commit([Record(each.identity, decided) for each in unit.found.new])


class FenceResult(Enum):
    OUT = "no attempt that began earlier can be committed"
    COMMITTED = "there is a record"
    NOT = "an attempt is under way"


async def fence(subject: StoreSubject, unit: str) -> FenceResult:
    """Fence the message in this unit as a separate process."""
    try:
        found = await (await subject.store()).fence(unit, message().identity, message())
    except ConflictError:
        return FenceResult.NOT
    return FenceResult.OUT if found is None else FenceResult.COMMITTED


async def unit_of(subject: StoreSubject) -> str:
    """Return the key of the message's unit."""
    unit = await (await subject.store()).begin([message()])
    unit.abandon()
    return unit.key


async def write(subject: StoreSubject, unit: Unit, key: str) -> None:
    """Write one value, as a handler does."""
    async with unit.resources.attempt():
        await subject.write(unit.resources, key, "handled")


async def write_and_fail(subject: StoreSubject, unit: Unit, key: str) -> None:
    """Write one value and raise an error, as a failing handler does."""
    async with unit.resources.attempt():
        await subject.write(unit.resources, key, "handled")
        raise ZeroDivisionError


async def every_one_is_new(subject: StoreSubject, asked: Sequence[Message]) -> None:
    """Handle every second message, and check that the others are still new."""
    unit = await (await subject.store()).begin(asked[::2])
    await unit.commit([Record(each.identity) for each in asked[::2]])
    found = await look(subject, *asked)
    assert (set(found.done), set(found.new)) == (set(asked[::2]), set(asked[1::2]))


async def compete(subject: StoreSubject, mark: str, *, commits: bool = True) -> BeginResult | None:
    """Try to handle the message that a first unit holds. Return what was found, or None for a ConflictError."""
    try:
        unit = await (await subject.store()).begin([message()])
        found = replace(unit.found, ages=())
        if not (commits and unit.found.new):
            unit.abandon()
            return found
        await write(subject, unit, mark)
        await unit.commit([Record(message().identity)])
    except ConflictError:
        return None
    return found


async def wins(unit: Unit, *records: Record) -> bool:
    """Return whether the unit was committed. False means that it lost to another unit."""
    try:
        await unit.commit(records)
    except ConflictError:
        return False
    return True


async def work(subject: StoreSubject, mark: str, asked: Sequence[Message]) -> None:
    """Handle a batch as a worker does: start again from `begin` after each ConflictError."""
    store = await subject.store()
    while True:
        try:
            unit = await store.begin(asked)
            for each in unit.found.new:
                await write(subject, unit, f"{each.id}/{mark}")
            await unit.commit([Record(each.identity) for each in unit.found.new])
        except ConflictError:
            await steps(1)
        else:
            return


async def cancel(call: Coroutine[Any, Any, None], turns: int) -> None:
    """Start a call, cancel it after some turns of the event loop, and wait for its end."""
    task = asyncio.create_task(call)
    await steps(turns)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
