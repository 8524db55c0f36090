"""A whole endpoint in memory for the runtime's tests, and doubles that say what they do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from onceonly.adapters.memory.store import MemoryDeadLetters, MemoryStore, Notebook
from onceonly.adapters.memory.transport import BrokerWorld, MemoryTransport
from onceonly.adapters.memory.world import Live, PortOperation
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.effects import NoArtifacts
from onceonly.config.worker import WorkerSettings
from onceonly.formats.cloudevents import message_of, take_apart
from onceonly.model.errors import HandlerFailed
from onceonly.model.identity import outgoing_id
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send, Unreadable
from onceonly.model.record import Answer, Decision
from onceonly.model.retry import Retry, RetryDecision, decide_retry
from onceonly.ports.bundle import Ports
from onceonly.ports.store import Resources
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import Environment
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.observe.observer import Observer, Observers, Point, PortCall
from onceonly.runtime.worker.worker import Worker
from onceonly_conformance.clock import ManualClock
from tests.one_by_one import OneByOne

SHOP, SINK = "shop", "sink"
LEASE = 30.0
FAST = WorkerSettings(wait=0.05, grace=5.0)

Script = Callable[[Message, Resources], object]


class ScriptedHandlers(OneByOne):
    """Write a note, publish one event, and before that do what the script says; the script may raise or be a coroutine."""

    def __init__(self, script: Script | None = None, retry: Retry | None = None) -> None:
        self.script: Script = script or (lambda _message, _resources: None)
        self.retry = retry or Retry()
        self.started: list[str] = []

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read CloudEvents headers."""
        event = take_apart(delivery.headers, delivery.body)
        if "id" not in event.attributes:
            return Unreadable(reason="no id")
        return message_of(event, source=event.attributes["source"], id=event.attributes["id"])

    async def handle(self, message: Message, resources: Resources, attempt: str = "", response: object = None) -> Decision:
        """Follow the script, write, publish."""
        self.started.append(message.id)
        result = self.script(message, resources)
        if asyncio.iscoroutine(result):
            await result
        notebook = resources.get(Notebook)
        assert isinstance(notebook, Notebook)
        notebook.write(message.id, len(self.started))
        out = Message(id=outgoing_id(SHOP, message.identity, 0), source=SHOP, type="done", body=message.id.encode())
        return Decision((Send(message=out),))

    def decide_retry(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Judge at time zero."""
        return decide_retry(self.retry, failure, attempts=attempts, history=history, now=0, fraction=0.0)


class FixedRandomSource:
    """Always the same number."""

    def fraction(self) -> float:
        """Return it."""
        return 0.0


class HastyTimer:
    """Short sleeps end at once and are written down; long ones (leases) never end. Its seconds move by its sleeps only."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.now = 0.0

    def seconds(self) -> float:
        """Return what has been slept."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Sleep in the way the class says."""
        if seconds > LEASE / 4:
            await asyncio.Event().wait()
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class StopWhen:
    """An observer that sets `stop` as soon as a condition holds after some call."""

    def __init__(self, stop: asyncio.Event, condition: Callable[[], bool]) -> None:
        self._stop, self._condition = stop, condition

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Watch one call."""
        try:
            yield
        finally:
            if self._condition():
                self._stop.set()


class SimulatedEndpoint:
    """One endpoint `shop` with everything in memory, and a queue `sink` that is subscribed to what it publishes."""

    def __init__(self, handlers: ScriptedHandlers | None = None) -> None:
        self.driver, self.clock, self.timer = Live(), ManualClock(), HastyTimer()
        self.handlers = handlers or ScriptedHandlers()
        self.store = MemoryStore(self.driver, SHOP, clock=self.clock)
        self.letters = MemoryDeadLetters(self.driver, clock=self.clock)
        self.transport = MemoryTransport(self.driver, SHOP, clock=self.clock, lease=LEASE)
        store, handlers = self.store, self.handlers
        self.ports = Ports(SHOP, store, store, store, handlers, StoreAdmission(), NoArtifacts(), self.transport, self.letters)
        self.environment = Environment(clock=self.clock, random=FixedRandomSource(), timer=self.timer)

    async def open(self, *ids: str) -> "SimulatedEndpoint":
        """Declare the queues and send one message for each id."""
        await self.transport.declare([Topology(endpoint=SHOP), Topology(endpoint=SINK, events=("done",))])
        await self.send(*ids)
        return self

    async def send(self, *ids: str) -> None:
        """Send one message for each id."""
        sends = [Send(message=Message(id=i, source="test", type="order", body=b"{}"), to=SHOP) for i in ids]
        await self.transport.send(sends)

    def worker(self, settings: WorkerSettings = FAST, observer: Observer | None = None, ports: Ports | None = None) -> Worker:
        """Make a worker of this endpoint."""
        return Worker(observed(ports or self.ports, observer), settings, environment=self.environment)

    async def work(
        self,
        settings: WorkerSettings = FAST,
        *,
        ports: Ports | None = None,
        until: Callable[[], bool] | None = None,
        also: Sequence[Observer] = (),
    ) -> Worker:
        """Run a worker until a condition holds; until the queue is empty, when none is given."""
        stop = asyncio.Event()
        watch = StopWhen(stop, until or self.idle)
        worker = self.worker(settings, Observers(watch, *also), ports)
        await worker.run(stop)
        return worker

    def broker(self) -> BrokerWorld:
        """Show the broker as it is."""
        world = self.driver.part(self.transport.place)
        assert isinstance(world, BrokerWorld)
        return world

    def idle(self) -> bool:
        """Tell whether nothing waits, is held or is delayed."""
        return not any(entry.queue == SHOP for entry in self.broker().entries)

    async def settled(self) -> None:
        """Return when the queue is empty."""
        while not self.idle():  # noqa: ASYNC110 - the broker is a value, and tells nobody that it changed
            await asyncio.sleep(0)

    def noted(self) -> list[str]:
        """Return what handlers wrote and was committed."""
        return sorted(key for key, _ in self.store.notes())

    def announced(self) -> list[str]:
        """What arrived at the sink, each logical message once: a receiver that deduplicates."""
        arrived = {dict(e.headers)["ce-id"]: e.body.decode() for e in self.broker().entries if e.queue == SINK}
        return sorted(arrived.values())

    async def bury_the_dead(self) -> None:
        """A process that died holds no open unit; its leases end with time."""
        close = PortOperation("close", self.store.place, lambda world: (replace(world, open=()), None), ())
        await self.driver.perform(close)
        self.clock.advance(int(LEASE * 1000) + 1)


def failing(reason: str, kind: FailureKind = FailureKind.EXCEPTION) -> HandlerFailed:
    """Return what a handler's failure looks like."""
    return HandlerFailed(Failure(kind=kind, reason=reason, traceback=f"Traceback of {reason}"))


class SlowBroker(MemoryTransport):
    """Takes nothing before it is opened, and tells when somebody waits for that."""

    def wait_here(self) -> None:
        """Begin closed."""
        self.opened, self.waiting, self.waited_for = asyncio.Event(), asyncio.Semaphore(0), 0

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Wait, then send."""
        self.waited_for += 1
        self.waiting.release()
        await self.opened.wait()
        return await super().send(sends)


async def slow_endpoint(*ids: str, handlers: ScriptedHandlers | None = None) -> tuple[SimulatedEndpoint, SlowBroker]:
    """Return an endpoint whose broker takes nothing yet, with these messages waiting."""
    simulated = SimulatedEndpoint(handlers)
    await simulated.open(*ids)
    broker = SlowBroker(simulated.driver, SHOP, clock=simulated.clock)
    broker.wait_here()
    simulated.ports = simulated.ports._replace(transport=broker)
    return simulated, broker


class CallTally:
    """Counts port calls by name, and how many raised."""

    def __init__(self) -> None:
        self.calls: dict[Point, int] = {}
        self.failures: dict[Point, int] = {}

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        self.calls[call.point] = self.calls.get(call.point, 0) + 1
        try:
            yield
        except BaseException:
            self.failures[call.point] = self.failures.get(call.point, 0) + 1
            raise
