"""A store in memory with several rings, one for each retention that its endpoint ever had (protocols, section 7).

It is what the model checker explores of stores that do the same in SQL. A process claims by the routes that it has read. Where
a bucket lacks the label of a message's slice, nothing of the unit is there: it reads the routes and the label, in two steps.
Whether a ring is closed is read in the step that rotates a bucket. When it closes, and what it holds then, is the arithmetic of
`model.ring`, as in SQL.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.store import Claim, MemoryStore, MemoryUnit, Note, UnitChanges
from onceonly.adapters.memory.world import PortOperation, Raises, Step, WorldDriver, WorldPart
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import BUCKETS, Bucketing, route_at
from onceonly.ports.environment import Clock
from onceonly.ports.ring import Rotation
from onceonly.ports.store import BeginResult, UndecidableMessage
from onceonly_verify.memory_ports.ring import BucketContent


class KnownRoute(Struct, frozen=True):
    """The ring, by its number, for messages from an instant on."""

    since: int
    ring: int


FIRST_ROUTES = (KnownRoute(0, 0),)
"""What a process knows that has not read any change."""


class ClosableRing(Struct, frozen=True):
    """One ring: how its time is cut, and what its buckets hold."""

    bucketing: Bucketing
    buckets: tuple[BucketContent, ...]

    def held(self, start: int) -> int | None:
        """Return the label of the bucket for the slice that begins at `start`."""
        return self.buckets[self.bucketing.bucket(start)].start

    def put(self, number: int, content: BucketContent) -> "ClosableRing":
        return replace(self, buckets=(*self.buckets[:number], content, *self.buckets[number + 1 :]))


class ClaimPlace(Struct, frozen=True, order=True):
    """Where a message is claimed: the slice that begins at `start`, in one ring."""

    start: int
    ring: int


class OpenRingsUnit(Struct, frozen=True):
    """A unit that is neither committed nor abandoned: its claims, and where each of its messages belongs."""

    token: Hashable
    claims: tuple[Claim, ...]
    places: tuple[tuple[Identity, ClaimPlace], ...]
    fenced: bool = False


class PlacedRecord(Struct, frozen=True):
    """A pending record, when it was stored and last taken, and where its message is claimed."""

    record: Record
    at: int
    place: ClaimPlace
    taken: int | None = None


class RingsWorld(Struct, frozen=True):
    """Everything one endpoint's store knows, and what its clock shows.

    `changed` is when each change was made; only the auditor reads it.
    """

    rings: tuple[ClosableRing, ...] = ()
    routes: tuple[KnownRoute, ...] = FIRST_ROUTES
    changed: tuple[int, ...] = ()
    records: tuple[PlacedRecord, ...] = ()
    notes: tuple[Note, ...] = ()
    open: tuple[OpenRingsUnit, ...] = ()
    now: int = 0

    @property
    def stored(self) -> frozenset[Claim]:
        """All claims in all rings."""
        return frozenset(claim for ring in self.rings for held in ring.buckets for claim in held.claims)

    @property
    def claimed(self) -> frozenset[Identity]:
        """The messages that are known to be handled."""
        return frozenset(identity for identity, _ in self.stored)


class MissingLabel(Struct, frozen=True):
    """The answer of a `begin` that claimed nothing: a bucket has not the label of the slice of these messages."""

    place: ClaimPlace
    messages: tuple[Message, ...]


def place_of(world: RingsWorld, routes: tuple[KnownRoute, ...], instant: int) -> ClaimPlace:
    """Return where a message of this instant is claimed by a process that knows these routes."""
    number = route_at(routes, instant).ring
    return ClaimPlace(world.rings[number].bucketing.start(instant), number)


def begin(world: RingsWorld, messages: tuple[Message, ...], token: Hashable, routes: tuple[KnownRoute, ...]) -> Step | None:
    """Claim messages for a new unit by these routes, each where it belongs; nothing where one's label is missing."""
    places = {message.identity: place_of(world, routes, message.instant) for message in messages}
    for place in sorted(set(places.values())):
        if world.rings[place.ring].held(place.start) != place.start:
            return world, MissingLabel(place, tuple(m for m in messages if places[m.identity] == place))
    if any(
        claimed in places and dict(unit.places)[claimed] == places[claimed] for unit in world.open for claimed, _ in unit.claims
    ):
        return None
    known = {identity: body for identity, place in places.items() for body in _bodies(world, identity, place)}
    pending = {waiting.record.identity: waiting.record for waiting in world.records}
    same = [m for m in messages if known.get(m.identity) == m.fingerprint]
    found = BeginResult(
        new=tuple(m for m in messages if m.identity not in known),
        pending=tuple(pending[m.identity] for m in same if m.identity in pending),
        done=tuple(m for m in same if m.identity not in pending),
        mismatched=tuple(m for m in messages if known.get(m.identity, m.fingerprint) != m.fingerprint),
    )
    claims = tuple((message.identity, message.fingerprint) for message in found.new)
    return replace(world, open=(*world.open, OpenRingsUnit(token, claims, tuple(places.items())))), found


def read_routes(world: RingsWorld) -> Step:
    return world, world.routes


def read_label(world: RingsWorld, place: ClaimPlace) -> Step:
    """Return what is the matter with the messages of a slice, None for nothing yet."""
    ring = world.rings[place.ring]
    return world, ring.bucketing.undecidable_reason(place.start, ring.held(place.start), world.now)


def commit(world: RingsWorld, token: Hashable, changes: UnitChanges) -> Step:
    """Make a unit final in one step. It is over whatever comes of it; no bucket that it uses is rotated before."""
    unit = next((unit for unit in world.open if unit.token == token), None)
    if unit is None:
        return world, Raises(CommitFailed, "this unit has already been committed or abandoned")
    closed = replace(world, open=tuple(unit for unit in world.open if unit.token != token))
    if unit.fenced:
        return closed, Raises(ConflictError, "another process gave up a message of this unit, so it cannot be committed")
    if changes.refusal:
        return closed, Raises(CommitRefused, changes.refusal)
    places, handled = dict(unit.places), {record.identity for record in changes.records}
    rings = list(world.rings)
    for claim in unit.claims:
        if claim[0] in handled:
            place = places[claim[0]]
            ring, number = rings[place.ring], rings[place.ring].bucketing.bucket(place.start)
            held = ring.buckets[number]
            rings[place.ring] = ring.put(number, replace(held, claims=held.claims | {claim}))
    stored = tuple(PlacedRecord(each, world.now, places[each.identity]) for each in changes.records if each.is_pending)
    return replace(closed, rings=tuple(rings), records=world.records + stored, notes=world.notes + changes.notes), None


def rotate(world: RingsWorld, place: tuple[int, int], labels_later: bool) -> Step:  # noqa: FBT001 - positional
    """Empty the bucket of this ring and number, and label it; or say why not. The label may come with the next call only."""
    number = place[1]
    ring = world.rings[place[0]]
    held = ring.buckets[number].start
    wanted = ring.bucketing.to_hold(number, held, world.now)
    if held == wanted:
        return world, Rotation.CURRENT
    if held is not None and not ring.bucketing.may_forget(held, world.now):
        return world, Rotation.EARLY
    if any(_is_in(each, place, ring) for unit in world.open for _, each in unit.places):
        return world, Rotation.BUSY
    if held is not None and any(_is_in(each.place, place, ring) for each in world.records):
        return world, Rotation.PENDING
    label = None if labels_later and held is not None else wanted
    rings = (*world.rings[: place[0]], ring.put(number, BucketContent(label)), *world.rings[place[0] + 1 :])
    return replace(world, rings=rings), Rotation.ROTATED


def change_retention(world: RingsWorld, kept: int, bucketing: Bucketing, is_shared: bool) -> Step:  # noqa: FBT001 - positional
    """Close the ring that is used last, where it ends, and open another one that is cut like this; harmless when it is so.

    Where other endpoints share the ring, its last slices are not kept for a shorter time.
    """
    latest = world.routes[-1]
    if world.rings[latest.ring].bucketing.width == bucketing.width:
        return world, None
    *before, left = (_labelled(ring, world.now) for ring in world.rings)
    keep = max(kept, left.bucketing.retention) if is_shared else kept
    labels = [held.start for held in left.buckets if held.start is not None]
    closed = left.bucketing.closed(labels, latest.since, world.now, keep)
    fresh = ClosableRing(bucketing, first_labels(bucketing, world.now))
    earlier = [replace(ring, bucketing=ring.bucketing.kept_for(kept)) for ring in before]
    rings = (*earlier, replace(left, bucketing=closed), fresh)
    routes = (*world.routes, KnownRoute(closed.closes, len(world.rings)))
    return replace(world, rings=rings, routes=routes, changed=(*world.changed, world.now)), None


def tick(world: RingsWorld, by: int) -> Step:
    return replace(world, now=world.now + by), None


def first_labels(bucketing: Bucketing, now: int) -> tuple[BucketContent, ...]:
    """Return the empty buckets of a new ring: nothing was handled before."""
    return tuple(BucketContent(bucketing.wanted(number, now)) for number in range(bucketing.buckets))


def _labelled(ring: ClosableRing, now: int) -> ClosableRing:
    """Label what a janitor has emptied, by what held until now."""
    cut = ring.bucketing
    missing = [number for number, held in enumerate(ring.buckets) if held.start is None]
    for number in missing:
        ring = ring.put(number, BucketContent(cut.to_hold(number, None, now)))
    return ring


def _bodies(world: RingsWorld, identity: Identity, place: ClaimPlace) -> list[bytes]:
    """Return the fingerprint with which a message is claimed in its place, if it is."""
    ring = world.rings[place.ring]
    return [body for claimed, body in ring.buckets[ring.bucketing.bucket(place.start)].claims if claimed == identity]


def _is_in(each: ClaimPlace, place: tuple[int, int], ring: ClosableRing) -> bool:
    return each.ring == place[0] and ring.bucketing.bucket(each.start) == place[1]


class MemoryRingsStore(MemoryStore):
    """One endpoint's store whose retention changes, as one process sees it. It waits in `begin`, like SQL."""

    def __init__(self, driver: WorldDriver, endpoint: str, *, clock: Clock | None = None) -> None:
        """Use the part of the driver's world that belongs to this endpoint."""
        super().__init__(driver, endpoint, clock=clock)
        self.place = WorldPart(f"rings of {endpoint}", RingsWorld())
        self._routes: tuple[KnownRoute, ...] | None = None

    def started_early(self) -> None:
        """Have it know what a process has read that was started before any change."""
        self._routes = FIRST_ROUTES

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> MemoryUnit:
        """Claim messages. Where a label is missing, read what there is by now, and begin again."""
        if self._routes is None:
            self._routes = await self._perform("routes", read_routes, ())
        asked, undecidable = tuple(messages), tuple[UndecidableMessage, ...]()
        token = self._driver.token()
        for _ in range(2 * BUCKETS):
            found = await self._perform("begin", begin, (asked, token, self._routes))
            if isinstance(found, BeginResult):
                return MemoryUnit(self, token, replace(found, undecidable=undecidable), isolated=isolated)
            undecidable += await self._check_bucket(found)
            gone = {each.message.identity for each in undecidable}
            asked = tuple(message for message in asked if message.identity not in gone)
        raise ConflictError(f"gave up after {2 * BUCKETS} attempts: time buckets kept rotating")

    async def commit(self, token: Hashable, changes: UnitChanges) -> None:
        await self._perform("commit", commit, (token, changes))

    async def _check_bucket(self, missing: MissingLabel) -> tuple[UndecidableMessage, ...]:
        """Look what a bucket holds instead; none of the messages is undecidable if they belong to another ring by now.

        The routes are read after the label, because a ring that is closed between the two may get a label that refuses them.
        """
        reason = await self._perform("label", read_label, (missing.place,))
        self._routes = routes = await self._perform("routes", read_routes, ())
        if route_at(routes, missing.messages[0].instant).ring != missing.place.ring:
            return ()
        return tuple(UndecidableMessage(message, reason) for message in missing.messages) if reason is not None else ()


class MemoryRings:
    """What janitors and an operator do with all rings of a store."""

    def __init__(self, driver: WorldDriver, store: MemoryRingsStore) -> None:
        self._driver = driver
        self._place = store.place

    async def rotate(self, ring: int, number: int, *, labels_later: bool = False) -> Rotation:
        """Rotate a bucket, if it can be, as a janitor does. With `labels_later` it is one that dies before it labels."""
        found: Rotation = await self._perform("ring-rotate", rotate, ((ring, number), labels_later))
        return found

    async def change(self, kept: int, bucketing: Bucketing, *, is_shared: bool) -> None:
        """Change the retention, as the command does."""
        await self._perform("ring-change", change_retention, (kept, bucketing, is_shared))

    async def move_clock(self, by: int) -> None:
        """Let time pass."""
        await self._perform("ring-tick", tick, (by,))

    async def _perform(self, point: str, function: Any, arguments: tuple[Any, ...]) -> Any:
        return await self._driver.perform(PortOperation(point, self._place, function, arguments))
