"""The environment of a test: its transport, and the time, random numbers and ids that it controls.

The endpoint's own queue is real, and messages to other endpoints are only recorded.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from onceonly.adapters.memory.transport import BrokerWorld, QueuedCopy, expire
from onceonly.algorithms.control import CONTROL
from onceonly.model.message import Headers, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Transport
from onceonly.runtime.observe.observed_ports import is_retry_copy

START = 1_750_000_000_000
"""When every run begins: 2025-06-15, 15:06:40 UTC."""


class RunClock:
    """A clock that stands still until the test advances it. Delays, retries and leases use it."""

    def __init__(self, start: int = START) -> None:
        self._now = start

    def now(self) -> int:
        """Return the time in milliseconds since 1970."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward. The next `settle()` or `deliver(...)` delivers what became due."""
        if seconds < 0:
            raise ValueError("time only moves forward: use a duration of 0 or more")
        self._now += round(seconds * 1000)


class FixedRandomSource:
    def fraction(self) -> float:
        return 0.0


class CountedIdGenerator:
    """Ids that count up, so that two runs of a test see the same ones."""

    def __init__(self) -> None:
        self._issued = 0

    def new_id(self) -> str:
        self._issued += 1
        return f"{self._issued:032x}"


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
        self._sends.extend(sends)


class TapedTransport:
    """Uses the endpoint's own queue, and records commands to other endpoints as TAKEN without delivering them.

    Retry copies and control messages are not messages of the endpoint, and are not recorded.
    """

    def __init__(self, inner: Transport, endpoint: str, tape: Tape) -> None:
        self.traits = inner.traits
        self.receive, self.ack, self.release, self.extend = inner.receive, inner.ack, inner.release, inner.extend
        self.declare, self.depth = inner.declare, inner.depth
        self._inner = inner
        self._endpoint = endpoint
        self._tape = tape

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Take everything; events and commands to itself also reach the endpoint's own queue."""
        inward = [send for send in sends if send.to in ("", self._endpoint)]
        answered = iter(await self._inner.send(inward) if inward else ())
        answers = tuple(next(answered) if send.to in ("", self._endpoint) else Answer.TAKEN for send in sends)
        taken = [send for send, answer in zip(sends, answers, strict=True) if answer is Answer.TAKEN]
        own = [send for send in taken if send.message.type != CONTROL]
        self._tape.write(send for send in own if not is_retry_copy(send, self._endpoint))
        return answers


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
