"""A store in memory whose claims are forgotten in time (protocols, section 7): a ring of buckets, and a list for all others.

It is what the model checker explores of stores that do the same in SQL. Each call is one step, so a unit's look at a bucket's
label and its claims there are one; who rotates a bucket finds it BUSY while a unit uses it, or has that unit conflict.
"""

from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.store import Claim, MemoryStore, MemoryUnit, Note, UnitChanges
from onceonly.adapters.memory.world import PortOperation, Raises, Step, WorldDriver, WorldPart
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import Bucketing
from onceonly.ports.environment import Clock
from onceonly.ports.ring import PENDING_COUNTED, Rotation, TimeBucket, bucket_as_found
from onceonly.ports.store import BeginResult, UndecidableMessage


class BucketContent(Struct, frozen=True):
    """What a bucket holds: the beginning of its slice, None without one, and the claims of that slice."""

    start: int | None
    claims: frozenset[Claim] = frozenset()


class OpenRingUnit(Struct, frozen=True):
    """A unit that is neither committed nor abandoned: its claims, and the slices of all its messages that are in one."""

    token: Hashable
    claims: tuple[Claim, ...]
    slices: tuple[tuple[Identity, int], ...]
    fenced: bool = False


class PendingEntry(Struct, frozen=True):
    """A pending record: when it was stored and last taken, and the start of its message's time slice, if it has one."""

    record: Record
    at: int
    slice: int | None
    taken: int | None = None


class RingWorld(Struct, frozen=True):
    """Everything one endpoint's store knows. `arrivals` are claims outside of the ring, each with when it was made."""

    buckets: tuple[BucketContent, ...] = ()
    arrivals: tuple[tuple[Claim, int], ...] = ()
    records: tuple[PendingEntry, ...] = ()
    notes: tuple[Note, ...] = ()
    open: tuple[OpenRingUnit, ...] = ()
    leader: Hashable = None

    @property
    def claimed(self) -> frozenset[Identity]:
        """The messages that are known to be handled."""
        inside = frozenset(identity for held in self.buckets for identity, _ in held.claims)
        return inside | {identity for (identity, _), _ in self.arrivals}


class RingSettings(Struct, frozen=True):
    """How time is cut, what time it is, and whether `begin` waits for a claim."""

    bucketing: Bucketing
    now: int
    blocking: bool = True

    def slice_of(self, message: Message) -> int | None:
        """Return the beginning of a message's slice; None for one without an instant."""
        return self.bucketing.start(message.instant) if message.instant else None


def begin(world: RingWorld, messages: tuple[Message, ...], token: Hashable, dial: RingSettings) -> Step | None:
    """Claim messages for a new unit, each where it belongs; those are left out whose bucket holds another slice."""
    world = _labelled(world, dial)
    asked = {message.identity: message for message in messages}
    if dial.blocking and any(identity in asked for unit in world.open for identity, _ in unit.claims):
        return None
    slices = {m.identity: start for m in messages if (start := dial.slice_of(m)) is not None}
    refused = _undecidable(world, messages, slices, dial)
    anyway = {each.message.identity for each in refused if each.is_wanted_anyway}
    undecidable = tuple(each for each in refused if each.message.identity not in anyway)
    slices = {identity: start for identity, start in slices.items() if identity not in anyway}
    shut = {each.message.identity for each in undecidable}
    open_to = tuple(m for m in messages if m.identity not in shut)
    known = {identity: body for identity, body in _claims(world, slices) if identity in asked}
    pending = {waiting.record.identity: waiting.record for waiting in world.records}
    same = [m for m in open_to if known.get(m.identity) == m.fingerprint]
    found = BeginResult(
        new=tuple(m for m in open_to if m.identity not in known),
        pending=tuple(pending[m.identity] for m in same if m.identity in pending),
        done=tuple(m for m in same if m.identity not in pending),
        mismatched=tuple(m for m in open_to if known.get(m.identity, m.fingerprint) != m.fingerprint),
        undecidable=undecidable,
    )
    used = tuple((m.identity, slices[m.identity]) for m in open_to if m.identity in slices)
    unit = OpenRingUnit(token, tuple((m.identity, m.fingerprint) for m in found.new), used)
    return replace(world, open=(*world.open, unit)), found


def commit(world: RingWorld, token: Hashable, changes: UnitChanges, dial: RingSettings) -> Step:
    """Make a unit final in one step, unless a bucket that it used was rotated meanwhile. It is over whatever comes of it."""
    unit = next((unit for unit in world.open if unit.token == token), None)
    if unit is None:
        return world, Raises(CommitFailed, "this unit has already been committed or abandoned")
    closed = replace(world, open=tuple(unit for unit in world.open if unit.token != token))
    if unit.fenced:
        return closed, Raises(ConflictError, "another process gave up a message of this unit, so it cannot be committed")
    if changes.refusal:
        return closed, Raises(CommitRefused, changes.refusal)
    slices = dict(unit.slices)
    if any(world.buckets[dial.bucketing.bucket(start)].start != start for start in slices.values()):
        return closed, Raises(ConflictError, "a time bucket of this unit was rotated before the commit")
    handled = {record.identity for record in changes.records}
    kept = frozenset(claim for claim in unit.claims if claim[0] in handled)
    if {identity for identity, _ in kept} & {identity for identity, _ in _claims(world, slices)}:
        return closed, Raises(ConflictError, "another unit committed a claim on a message of this unit first")
    buckets = tuple(
        replace(held, claims=held.claims | {claim for claim in kept if slices.get(claim[0], -1) == held.start})
        for held in world.buckets
    )
    stored = tuple(PendingEntry(each, dial.now, slices.get(each.identity)) for each in changes.records if each.is_pending)
    arrived = tuple((claim, dial.now) for claim in sorted(kept) if claim[0] not in slices)
    return replace(
        closed,
        buckets=buckets,
        arrivals=world.arrivals + arrived,
        records=world.records + stored,
        notes=world.notes + changes.notes,
    ), None


def rotate(world: RingWorld, number: int, dial: RingSettings) -> Step:
    """Forget what a bucket holds, and label it; or say why not."""
    world = _labelled(world, dial)
    bucketing, held, wanted = dial.bucketing, world.buckets[number], dial.bucketing.wanted(number, dial.now)
    if held.start == wanted:
        return world, Rotation.CURRENT
    if held.start is not None and not bucketing.may_forget(held.start, dial.now):
        return world, Rotation.EARLY
    if dial.blocking and any(bucketing.bucket(start) == number for unit in world.open for _, start in unit.slices):
        return world, Rotation.BUSY
    if held.start is not None and any(waiting.slice == held.start for waiting in world.records):
        return world, Rotation.PENDING
    buckets = (*world.buckets[:number], BucketContent(wanted), *world.buckets[number + 1 :])
    return replace(world, buckets=buckets), Rotation.ROTATED


def remove_expired(world: RingWorld, limit: int, dial: RingSettings) -> Step:
    """Remove old claims from outside of the ring, but for those that have pending effects; the outcome is how many."""
    pending = {waiting.record.identity for waiting in world.records}
    horizon = dial.now - dial.bucketing.retention
    old = [each for each in world.arrivals if each[1] < horizon and each[0][0] not in pending][:limit]
    return replace(world, arrivals=tuple(each for each in world.arrivals if each not in old)), len(old)


def look(world: RingWorld, dial: RingSettings) -> Step:
    world = _labelled(world, dial)
    found = tuple(
        bucket_as_found(number, held.start, pending=_pending(world, held), bucketing=dial.bucketing, now=dial.now)
        for number, held in enumerate(world.buckets)
    )
    return world, found


def lead(world: RingWorld, token: Hashable) -> Step:
    """Become the leader if there is none; the outcome shows whether this is the one."""
    leader = token if world.leader is None else world.leader
    return replace(world, leader=leader), leader == token


def stop_leading(world: RingWorld, token: Hashable) -> Step:
    return replace(world, leader=None if world.leader == token else world.leader), None


def _labelled(world: RingWorld, dial: RingSettings) -> RingWorld:
    """Set the first label of all buckets, as a database gets them with its first use: nothing was handled before."""
    if world.buckets:
        return world
    bucketing = dial.bucketing
    return replace(
        world, buckets=tuple(BucketContent(bucketing.wanted(number, dial.now)) for number in range(bucketing.buckets))
    )


def _undecidable(
    world: RingWorld, messages: Sequence[Message], slices: dict[Identity, int], dial: RingSettings
) -> tuple[UndecidableMessage, ...]:
    checked = [
        (message, dial.bucketing.undecidable_reason(start, world.buckets[dial.bucketing.bucket(start)].start, dial.now))
        for message in messages
        if (start := slices.get(message.identity)) is not None
    ]
    return tuple(UndecidableMessage(message, reason) for message, reason in checked if reason is not None)


def _claims(world: RingWorld, slices: dict[Identity, int]) -> frozenset[Claim]:
    """Return the claims where these messages have theirs."""
    inside = frozenset(claim for held in world.buckets for claim in held.claims if slices.get(claim[0]) == held.start)
    return inside | {claim for claim, _ in world.arrivals if claim[0] not in slices}


def _pending(world: RingWorld, held: BucketContent) -> int:
    pending = sum(waiting.slice == held.start for waiting in world.records) if held.start is not None else 0
    return min(pending, PENDING_COUNTED)


class MemoryRingStore(MemoryStore):
    """One endpoint's store that forgets; `bucketing` describes how time is cut. A blocking one waits in `begin`, like SQL."""

    def __init__(
        self, driver: WorldDriver, endpoint: str, *, bucketing: Bucketing, clock: Clock | None = None, blocking: bool = True
    ) -> None:
        """Use the part of the driver's world that belongs to this endpoint."""
        super().__init__(driver, endpoint, clock=clock, blocking=blocking)
        self.place = WorldPart(f"ring of {endpoint}", RingWorld())
        self._bucketing = bucketing

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> MemoryUnit:
        token = self._driver.token()
        found = await self._perform("begin", begin, (tuple(messages), token, self.dial()))
        return MemoryUnit(self, token, found, isolated=isolated)

    async def commit(self, token: Hashable, changes: UnitChanges) -> None:
        await self._perform("commit", commit, (token, changes, self.dial()))

    def dial(self) -> RingSettings:
        return RingSettings(self._bucketing, self._clock.now(), self._blocking)


class MemoryRing:
    def __init__(self, driver: WorldDriver, store: MemoryRingStore) -> None:
        self._driver = driver
        self._store = store

    async def bucketing(self) -> Bucketing:
        return self._store.dial().bucketing

    async def now(self) -> int:
        return self._store.dial().now

    async def buckets(self) -> tuple[TimeBucket, ...]:
        found: tuple[TimeBucket, ...] = await self._driver.perform(
            PortOperation("buckets", self._store.place, look, (self._store.dial(),))
        )
        return found

    async def rotate(self, number: int, *, by_rows: bool = False) -> Rotation:
        arguments = (number, self._store.dial())
        found: Rotation = await self._driver.perform(PortOperation("rotate", self._store.place, rotate, arguments))
        return found

    async def remove_expired(self, limit: int = 1000) -> int:
        """Remove old claims without an instant; see the port."""
        arguments = (limit, self._store.dial())
        gone: int = await self._driver.perform(PortOperation("remove-expired", self._store.place, remove_expired, arguments))
        return gone

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[bool]:
        token = self._driver.token()
        is_leader: bool = await self._driver.perform(PortOperation("lead", self._store.place, lead, (token,)))
        try:
            yield is_leader
        finally:
            self._driver.at_once(PortOperation("stop-leading", self._store.place, stop_leading, (token,)))
