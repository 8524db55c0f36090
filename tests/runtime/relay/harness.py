"""What the tests of the relay share: an endpoint in memory with records in its store, and doubles that say what they do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.model.identity import Identity, outgoing_id
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer, Record
from onceonly.ports.bundle import Ports
from onceonly.runtime.environment import Environment, Timer
from onceonly.runtime.observe.observed_ports import by_relay, observed
from onceonly.runtime.observe.observer import Observer, Observers, Point, PortCall
from onceonly.runtime.processes.notifier import Notifier
from onceonly.runtime.relay.relay import Relay
from onceonly_conformance.clock import ManualClock
from tests.runtime.harness import SHOP, SINK, CallTally, FixedRandomSource, SimulatedEndpoint, StopWhen

AFTER = 10.0
OLD = int(AFTER * 1000) + 1


class PassingTimer:
    """Time passes by sleeping only, also on the clock if there is one, and every sleep ends at once."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.now = 0.0
        self._clock = clock

    def seconds(self) -> float:
        """Return what has been slept."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.now += seconds
        if self._clock is not None:
            self._clock.advance(round(seconds * 1000))
        await asyncio.sleep(0)


class StandingTimer:
    """Time stands still: no sleep ends."""

    def seconds(self) -> float:
        """Return the one moment."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Sleep for ever."""
        await asyncio.Event().wait()


class UnsureTransport:
    """A transport that sends and does not know it, so often; all it is asked for here is to send."""

    def __init__(self, inner: MemoryTransport, times: int) -> None:
        self.traits = inner.traits
        self._inner, self._times = inner, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send, and say less than one knows."""
        answers = await self._inner.send(sends)
        self._times -= 1
        return answers if self._times < 0 else tuple(Answer.UNKNOWN for _ in answers)


class FailsAt:
    """An observer that fails some calls, before they are made or after; None lets one pass, and so does the end of the list."""

    def __init__(self, point: Point, *errors: Exception | None, after: bool = False) -> None:
        self._point, self._errors, self._after = point, list(errors), after

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Fail, or do not."""
        if not self._after:
            self._fail(call)
        yield
        if self._after:
            self._fail(call)

    def _fail(self, call: PortCall) -> None:
        error = self._errors.pop(0) if call.point is self._point and self._errors else None
        if error is not None:
            raise error


class RelayHarness:
    """An endpoint in memory with records in its store, and relays of it."""

    def __init__(self, timer: Timer | None = None) -> None:
        self.simulated = SimulatedEndpoint()
        self.timer = timer or PassingTimer(self.simulated.clock)
        self.notifier = Notifier()
        self.tally = CallTally()
        self.stop = asyncio.Event()

    async def open(self) -> "RelayHarness":
        """Declare the queues."""
        await self.simulated.open()
        return self

    async def commit(self, *names: str, to: str = "", old: bool = True) -> list[Identity]:
        """Commit a record for each name, with one message; gives their identities."""
        messages = [Message(id=name, source=SHOP, type="", body=b"") for name in names]
        unit = await self.simulated.store.begin(messages)
        await unit.commit([record_of(message.identity, to) for message in messages])
        if old:
            self.simulated.clock.advance(OLD)
        return [message.identity for message in messages]

    def relay(self, *observers: Observer, ports: Ports | None = None) -> Relay:
        """Make a relay, as another process would."""
        watched = observed(ports or self.simulated.ports, Observers(self.tally, *observers))
        environment = Environment(clock=self.simulated.clock, random=FixedRandomSource(), timer=self.timer)
        searched = watched.for_relay()
        assert searched is not None
        return Relay(by_relay(searched), after=AFTER, grace=5.0, notifier=self.notifier, environment=environment)

    async def run(self, *observers: Observer, until: Callable[[], bool] | None = None) -> None:
        """Run a relay until a condition holds after some call; until all is sent and forgotten, when none is given."""
        stop = asyncio.Event()
        async with asyncio.timeout(20):
            await self.relay(StopWhen(stop, until or self.is_empty), *observers).run(stop)

    def left(self) -> list[str]:
        """Name the records that are left."""
        return [stored.record.identity.id for stored in self.simulated.driver.part(self.simulated.store.place).records]

    def is_empty(self) -> bool:
        """Tell whether no record is left."""
        return not self.left()

    def looked(self, times: int) -> Callable[[], bool]:
        """Make the condition that the store was asked so often."""
        return lambda: self.tally.calls.get(Point.TAKE, 0) >= times

    def wire(self) -> list[str]:
        """Return the ids that lie in the sink, each as often as it was sent."""
        return [dict(entry.headers)["ce-id"] for entry in self.simulated.broker().entries if entry.queue == SINK]


def record_of(identity: Identity, to: str = "") -> Record:
    """Make a record with one message, whose body is the record's name."""
    message = Message(id=outgoing_id(SHOP, identity, 0), source=SHOP, type="done", body=identity.id.encode())
    return Record(identity, (Send(message=message, to=to),))
