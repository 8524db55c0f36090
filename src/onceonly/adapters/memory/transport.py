"""The memory transport: queues with leases, delays, fan-out and suspects in one immutable world.

Nothing survives the process. Time is an argument: live, leases end by the clock; under the model checker, by an event.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, Raises, Step, WallClock, WorldDriver, WorldPart
from onceonly.formats.cloudevents import arrival, encode
from onceonly.model.errors import QueueMissing
from onceonly.model.message import Delivery, Headers, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Depth, FanOut, Topology, Traits
from onceonly.queues.destinations import UnsubscribedEvents

MAX_BODY = 256 * 1024
LEASE_SECONDS = 30.0
NEVER = 2**62
"""An instant that does not come: the end of a lease that only an event ends."""
_POLL_SECONDS = 0.02  # between looks at the clock, while something waits for an instant of it


class MemoryReceipt(Struct, frozen=True, order=True):
    """Which entry, and which of its deliveries: an older delivery of it is no longer the holder."""

    number: int
    times: int


class QueuedCopy(Struct, frozen=True):
    """One copy in one queue; `held_until` is 0 while it waits. `times` is how often it was delivered."""

    number: int
    queue: str
    headers: Headers
    body: bytes
    due: int = 0
    times: int = 0
    held_until: int = 0
    suspect: bool = False

    @property
    def receipt(self) -> MemoryReceipt:
        return MemoryReceipt(self.number, self.times)


class BrokerWorld(Struct, frozen=True):
    """Entries in the order they came, the queues there are, and who subscribed to what."""

    entries: tuple[QueuedCopy, ...] = ()
    queues: frozenset[str] = frozenset()
    subscriptions: frozenset[tuple[str, str]] = frozenset()
    last: int = 0


class SendAnswers(tuple[Answer, ...]):  # noqa: SLOT001 - a tuple takes no other slots
    """The answers to a send. `dropped` are the types of events that had no subscriber; it does not count for equality."""

    dropped: tuple[str, ...]

    def __new__(cls, answers: Sequence[Answer], dropped: tuple[str, ...]) -> Self:
        made = super().__new__(cls, answers)
        made.dropped = dropped
        return made


class Lease(Struct, frozen=True):
    """The instant it is, and the instant at which a delivery taken now ends being held."""

    now: int
    until: int


PLACE = WorldPart("broker", BrokerWorld())


def traits_of(*, lease: float = LEASE_SECONDS, max_body: int = MAX_BODY) -> Traits:
    return Traits(lease=lease, max_body=max_body, longest_delay=None, fan_out=FanOut.BROKER)


class BrokerRules(Struct, frozen=True):
    """What this broker allows: the body's size in bytes, and whether a delivery whose lease ended can still be settled.

    `takes_copies` is whether it takes a copy that carries a count: another broker may find its headers too large.
    """

    max_body: int = MAX_BODY
    accepts_late: bool = False
    takes_copies: bool = True

    def allows(self, one: Send, body: bytes) -> bool:
        """Return whether it accepts a message that it can route."""
        return len(body) <= self.max_body and (self.takes_copies or not (one.attempts or one.alone or one.held))


def declare(world: BrokerWorld, topologies: tuple[Topology, ...]) -> Step:
    """Make queues and subscriptions, and end those to what is gone."""
    names = {topology.endpoint for topology in topologies}
    wanted = frozenset((event, topology.endpoint) for topology in topologies for event in topology.events)
    gone = frozenset((event, topology.endpoint) for topology in topologies for event in topology.gone)
    return replace(world, queues=world.queues | names, subscriptions=(world.subscriptions | wanted) - gone), None


def send(world: BrokerWorld, sends: tuple[Send, ...], rules: BrokerRules) -> Step:
    """Put each message into its queue, or into every queue that subscribed to it."""
    entries, last, answers = list(world.entries), world.last, []
    for one in sends:
        headers, body = encode(one)
        routable = not one.to or one.to in world.queues
        answers.append(Answer.TAKEN if routable and rules.allows(one, body) else Answer.REFUSED)
        if answers[-1] is Answer.TAKEN:
            for queue in _targets(world, one):
                last += 1
                entries.append(QueuedCopy(last, queue, headers, body, due=one.due))
    dropped = tuple(
        one.message.type
        for one, answer in zip(sends, answers, strict=True)
        if answer is Answer.TAKEN and not _targets(world, one)
    )
    return replace(world, entries=tuple(entries), last=last), SendAnswers(answers, dropped)


def receive(world: BrokerWorld, queue: str, limit: int, lease: Lease) -> Step | None:
    """Hand out what is due and free, oldest first; waits while there is nothing."""
    if missing := _missing(world, queue):
        return world, missing
    world = lapse(world, lease.now)
    free = [e for e in world.entries if e.queue == queue and not e.held_until and e.due <= lease.now][:limit]
    if not free:
        return None
    held = {e.number: replace(e, times=e.times + 1, held_until=lease.until) for e in free}
    arrived = tuple(arrival(h.receipt, queue, h.headers, h.body, suspect=h.suspect) for h in held.values())
    return replace(world, entries=tuple(held.get(e.number, e) for e in world.entries)), arrived


def lapse(world: BrokerWorld, now: int) -> BrokerWorld:
    for entry in world.entries:
        if 0 < entry.held_until <= now:
            world, _ = expire(world, entry.receipt)
    return world


def expire(world: BrokerWorld, receipt: MemoryReceipt) -> Step:
    """End one lease: the entry waits again, and is a suspect because it was not released."""
    return _change(world, receipt, lambda entry: replace(entry, held_until=0, suspect=True)), None


def ack(world: BrokerWorld, receipts: tuple[MemoryReceipt, ...], now: int, rules: BrokerRules) -> Step:
    """Remove entries held under these receipts; one whose lease ended is ignored, or removed where the broker accepts that."""
    world = lapse(world, now)
    gone = _settled(world, receipts, rules)
    return replace(world, entries=tuple(entry for entry in world.entries if entry.number not in gone)), None


def release(world: BrokerWorld, receipts: tuple[MemoryReceipt, ...], now: int, rules: BrokerRules) -> Step:
    world = lapse(world, now)
    freed = _settled(world, receipts, rules)
    back = tuple(replace(e, held_until=0, suspect=False) if e.number in freed else e for e in world.entries)
    return replace(world, entries=back), None


def extend(world: BrokerWorld, receipts: tuple[MemoryReceipt, ...], lease: Lease) -> Step:
    world = lapse(world, lease.now)
    for receipt in receipts:
        world = _change(world, receipt, lambda entry: replace(entry, held_until=lease.until))
    return world, None


def depth(world: BrokerWorld, queue: str, now: int) -> Step:
    if missing := _missing(world, queue):
        return world, missing
    mine = [entry for entry in lapse(world, now).entries if entry.queue == queue]
    held = sum(1 for entry in mine if entry.held_until)
    delayed = sum(1 for entry in mine if not entry.held_until and entry.due > now)
    return world, Depth(waiting=len(mine) - held - delayed, held=held, delayed=delayed)


def _missing(world: BrokerWorld, queue: str) -> Raises | None:
    if queue in world.queues:
        return None
    return Raises(QueueMissing, f"queue {queue!r} does not exist: start its endpoint first")


def _targets(world: BrokerWorld, one: Send) -> tuple[str, ...]:
    return (one.to,) if one.to else tuple(sorted(q for event, q in world.subscriptions if event == one.message.type))


def _settled(world: BrokerWorld, receipts: tuple[MemoryReceipt, ...], rules: BrokerRules) -> set[int]:
    if rules.accepts_late:
        return {receipt.number for receipt in receipts}
    named = frozenset(receipts)
    return {entry.number for entry in world.entries if entry.held_until and entry.receipt in named}


def _change(world: BrokerWorld, receipt: MemoryReceipt, change: Callable[[QueuedCopy], QueuedCopy]) -> BrokerWorld:
    entries = tuple(change(e) if e.held_until and e.receipt == receipt else e for e in world.entries)
    return replace(world, entries=entries)


def _receipts(deliveries: Sequence[Delivery]) -> tuple[Hashable, ...]:
    return tuple(delivery.receipt for delivery in deliveries)


class MemoryTransport:
    """One endpoint's way in and out of a broker in memory. All transports on one driver share the broker.

    `accepts_late` chooses what a late ack of a delivery whose lease ended does: nothing (the default), or settle it.
    """

    place = PLACE

    def __init__(
        self,
        driver: WorldDriver,
        queue: str,
        *,
        clock: Clock | None = None,
        lease: float = LEASE_SECONDS,
        rules: BrokerRules | None = None,
    ) -> None:
        """Use the part of the driver's world that is the broker; `lease` is in seconds."""
        self.rules = rules or BrokerRules()
        self.traits = traits_of(lease=lease, max_body=self.rules.max_body)
        self._driver = driver
        self._queue = queue
        self.unsubscribed = UnsubscribedEvents(queue)
        self._clock = clock or WallClock()

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        patience = wait
        while True:
            operation = PortOperation("receive", PLACE, receive, (self._queue, limit, self._lease()))
            try:
                taken: tuple[Delivery, ...] = await self._driver.perform(operation, max(0.0, min(patience, _POLL_SECONDS)))
            except TimeoutError:
                patience -= _POLL_SECONDS
                if patience <= 0:
                    return ()
            else:
                return taken

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Hand over messages; see the port. A body larger than the broker takes is refused."""
        answers: tuple[Answer, ...] = await self._perform("send", send, (tuple(sends), self.rules))
        if isinstance(answers, SendAnswers):  # a driver that injects faults answers with a plain tuple
            for kind in answers.dropped:
                self.unsubscribed.add(kind)
        return answers

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        await self._perform("ack", ack, (_receipts(deliveries), self._clock.now(), self.rules))

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        await self._perform("release", release, (_receipts(deliveries), self._clock.now(), self.rules))

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        await self._perform("extend", extend, (_receipts(deliveries), self._lease()))

    async def declare(self, topologies: Sequence[Topology]) -> None:
        await self._perform("declare", declare, (tuple(topologies),))

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        operation = PortOperation("depth", PLACE, depth, (endpoint, self._clock.now()))
        counted: Depth = await self._driver.perform(operation)
        return counted

    def _lease(self) -> Lease:
        now = self._clock.now()
        return Lease(now, now + int((self.traits.lease or 0) * 1000))

    async def _perform(self, point: str, function: Callable[..., Step | None], arguments: tuple[Any, ...]) -> Any:
        return await self._driver.perform(PortOperation(point, PLACE, function, arguments, many=True))
