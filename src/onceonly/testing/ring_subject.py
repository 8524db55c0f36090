"""What the rules about rings look at, and how: a store that forgets, the upkeep of its ring, and time that a rule moves."""

from typing import NamedTuple, Protocol

from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import INSTANT, Bar, Slicing
from onceonly.ports.ring import Recycling, Ring
from onceonly.ports.store import Store
from onceonly.testing.store_subject import StoreSubject, write
from onceonly.testing.suite import ENDPOINT

WIDTH = 1000
RETENTION = 12 * WIDTH


class RingSubject(StoreSubject, Protocol):
    """A store under test whose claims are kept for `RETENTION` milliseconds."""

    async def ring(self) -> Ring:
        """Open the ring, each time as a process of its own would."""


class Seen(NamedTuple):
    """What a unit's `begin` found, by ids."""

    new: tuple[str, ...] = ()
    owed: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    clashing: tuple[str, ...] = ()
    barred: tuple[tuple[str, Bar], ...] = ()


def at(instant: int, name: str = "m1", body: bytes = b"{}") -> Message:
    """Make a message of an instant; 0 for none."""
    extensions = ((INSTANT, str(instant)),) if instant else ()
    return Message(id=name, source="till", type="shop.order.v1", body=body, extensions=extensions)


async def see(subject: RingSubject, *asked: Message, endpoint: str = ENDPOINT, store: Store | None = None) -> Seen:
    """Look as a process of its own, and leave no trace."""
    unit = await (store or await subject.store(endpoint)).begin(asked)
    unit.abandon()
    return Seen(
        tuple(each.id for each in unit.new),
        tuple(each.identity.id for each in unit.owed),
        tuple(each.id for each in unit.done),
        tuple(each.id for each in unit.clashing),
        tuple((each.message.id, each.bar) for each in unit.barred),
    )


async def take(subject: RingSubject, *asked: Message, mark: str, store: Store | None = None) -> tuple[str, ...]:
    """Handle what is new of these, in one unit; gives their ids."""
    unit = await (store or await subject.store()).begin(asked)
    for each in unit.new:
        await write(subject, unit, f"{each.id}/{mark}")
    if unit.new:
        await unit.commit([Record(each.identity) for each in unit.new])
    else:
        unit.abandon()
    return tuple(each.id for each in unit.new)


async def begun(subject: RingSubject) -> tuple[Slicing, int]:
    """Have the ring decided and labelled; gives how time is cut, and the time."""
    ring = await subject.ring()
    await ring.slots()
    return await ring.slicing(), subject.now()


async def recycled(subject: RingSubject, instant: int) -> Recycling:
    """Recycle the slot for an instant, as a process of its own."""
    ring = await subject.ring()
    return await ring.recycle((await ring.slicing()).slot(instant))


async def recycle_all(subject: RingSubject) -> set[Recycling]:
    """Recycle every slot."""
    ring = await subject.ring()
    return {await ring.recycle(number) for number in range((await ring.slicing()).slots)}
