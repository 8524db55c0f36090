"""What the rules about rings share: a store with a retention, its ring, and time that a rule moves."""

from typing import NamedTuple, Protocol

from onceonly.model.identity import NAME_BYTES, Identity, instant_in, timed_id
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import ANYWAY, TIME_BUCKETS, Bucketing, Undecidable
from onceonly.ports.ring import Ring, Rotation
from onceonly.ports.store import Store
from onceonly_conformance.store_subject import StoreSubject, write
from onceonly_conformance.suite import ENDPOINT

WIDTH_MS = 1000
RETENTION_MS = TIME_BUCKETS * WIDTH_MS
INSIDE_MS = WIDTH_MS * 3 // 5
"""How far the clock is inside a time slice: neither at its start, nor where rounding leads to it."""
SOURCE = "till"


class RingSubject(StoreSubject, Protocol):
    """A store under test whose claims are kept for `RETENTION_MS` milliseconds."""

    async def ring(self) -> Ring:
        """Open the ring. Each call opens it as a separate process would."""


class Seen(NamedTuple):
    """The result of a unit's `begin`, by names."""

    new: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    undecidable: tuple[tuple[str, Undecidable], ...] = ()


def at(instant: int, name: str = "m1", body: bytes = b"{}", *, anyway: bool = False) -> Message:
    """Return a message with an instant, as an endpoint sends it; 0 means that it is from another sender.

    A name has at most 10 letters.
    """
    id_ = timed_id(SOURCE, instant, name.encode().rjust(NAME_BYTES, b"\0")) if instant else name
    extensions = ((ANYWAY, "1"),) if anyway else ()
    return Message(id=id_, source=SOURCE, type="shop.order.v1", body=body, extensions=extensions)


def name_of(identity: Identity) -> str:
    """Return the name that the message was created with."""
    return identity.id if instant_in(identity) is None else bytes.fromhex(identity.id[13:33]).lstrip(b"\0").decode()


async def see(subject: RingSubject, *asked: Message, endpoint: str = ENDPOINT, store: Store | None = None) -> Seen:
    """Read as a separate process, and leave nothing."""
    unit = await (store or await subject.store(endpoint)).begin(asked)
    unit.abandon()
    return Seen(
        tuple(name_of(each.identity) for each in unit.found.new),
        tuple(name_of(each.identity) for each in unit.found.pending),
        tuple(name_of(each.identity) for each in unit.found.done),
        tuple(name_of(each.identity) for each in unit.found.mismatched),
        tuple((name_of(each.message.identity), each.reason) for each in unit.found.undecidable),
    )


async def take(subject: RingSubject, *asked: Message, mark: str, store: Store | None = None) -> tuple[str, ...]:
    """Handle the new ones of these messages in one unit, and return their names."""
    unit = await (store or await subject.store()).begin(asked)
    for each in unit.found.new:
        await write(subject, unit, f"{each.id}/{mark}")
    if unit.found.new:
        await unit.commit([Record(each.identity) for each in unit.found.new])
    else:
        unit.abandon()
    return tuple(name_of(each.identity) for each in unit.found.new)


async def begun(subject: RingSubject, *, inside: int = INSIDE_MS) -> tuple[Bucketing, int]:
    """Initialize the ring at an instant inside a time slice, `inside` milliseconds after its start.

    Return the time slices and the time.
    """
    await subject.pass_time((inside - subject.now()) % WIDTH_MS)
    ring = await subject.ring()
    await ring.buckets()
    return await ring.bucketing(), subject.now()


async def rotated(subject: RingSubject, instant: int) -> Rotation:
    """Rotate the bucket of an instant as a separate process."""
    ring = await subject.ring()
    return await ring.rotate((await ring.bucketing()).bucket(instant))


async def rotate_all(subject: RingSubject) -> set[Rotation]:
    ring = await subject.ring()
    return {await ring.rotate(number) for number in range((await ring.bucketing()).buckets)}
