"""The transport of a test: the endpoint's own queue is real, and messages to other endpoints are only recorded."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from onceonly.adapters.memory.transport import BrokerWorld, QueuedCopy, expire
from onceonly.algorithms.control import CONTROL
from onceonly.model.message import Delivery, Headers, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology, Transport
from onceonly.runtime.observe.observed import is_retry_copy


class Tape:
    """Everything an endpoint put on the wire, in order; it outlives the endpoint's crashes."""

    def __init__(self) -> None:
        self._sends: list[Send] = []

    @property
    def raw(self) -> tuple[Send, ...]:
        """Every send that was taken, copies included: after a crash the same message may be sent again."""
        return tuple(self._sends)

    @property
    def distinct(self) -> tuple[Send, ...]:
        """One send for each identity: what receivers that deduplicate will handle."""
        first: dict[tuple[str, str], Send] = {}
        for send in self._sends:
            first.setdefault(send.message.identity, send)
        return tuple(first.values())

    def write(self, sends: Iterable[Send]) -> None:
        """Write sends down."""
        self._sends.extend(sends)


class TapedTransport:
    """Uses the endpoint's own queue, and records commands to other endpoints as TAKEN without delivering them.

    Retry copies and control messages are not messages of the endpoint, and are not recorded.
    """

    def __init__(self, inner: Transport, endpoint: str, tape: Tape) -> None:
        self.traits = inner.traits
        self._inner = inner
        self._endpoint = endpoint
        self._tape = tape

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Receive from the endpoint's own queue."""
        return await self._inner.receive(limit, wait)

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Take everything; events and commands to itself also reach the endpoint's own queue."""
        inward = [send for send in sends if send.to in ("", self._endpoint)]
        answered = iter(await self._inner.send(inward) if inward else ())
        answers = tuple(next(answered) if send.to in ("", self._endpoint) else Answer.TAKEN for send in sends)
        taken = [send for send, answer in zip(sends, answers, strict=True) if answer is Answer.TAKEN]
        own = [send for send in taken if send.message.type != CONTROL]
        self._tape.write(send for send in own if not is_retry_copy(send, self._endpoint))
        return answers

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge."""
        await self._inner.ack(deliveries)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release."""
        await self._inner.release(deliveries)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Extend."""
        await self._inner.extend(deliveries)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Declare."""
        await self._inner.declare(topologies)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count what waits."""
        return await self._inner.depth(endpoint, events)


def put(world: BrokerWorld, queue: str, headers: Headers, body: bytes) -> tuple[BrokerWorld, None]:
    """Put one delivery into a queue exactly as it is given, readable or not."""
    entry = QueuedCopy(world.last + 1, queue, headers, body)
    return replace(world, entries=(*world.entries, entry), last=world.last + 1), None


def drop_holders(world: BrokerWorld) -> tuple[BrokerWorld, None]:
    """End every lease: who held a delivery is dead, and what was held comes again as a suspect."""
    for entry in world.entries:
        if entry.held_until:
            world, _ = expire(world, entry.receipt)
    return world, None
