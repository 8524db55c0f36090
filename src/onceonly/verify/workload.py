"""What the checked endpoint is given to do: which messages arrive, how their handlers behave, how it is set up."""

from collections.abc import Coroutine, Hashable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

from msgspec import Struct

from onceonly.drivers.memory import Driver
from onceonly.model.errors import HandlerFailed, NotNow
from onceonly.model.identity import outgoing_id
from onceonly.model.message import Delivery, Failure, FailureKind, Headers, Message, Send, Unreadable
from onceonly.model.record import Decision
from onceonly.model.retry import Retry, Verdict, judge
from onceonly.ports.bundle import Ports
from onceonly.ports.store import Resources
from onceonly.serialization.cloudevents import message_of, take_apart
from onceonly.verify.asking import Asking
from onceonly.verify.programs import Programs

ENDPOINT, SINK, NOWHERE = "shop", "sink", "nowhere"
SOURCE, KIND = "upstream", "order"
NEVER_TIRED = Retry(immediate=9, delayed=0)


class End(Enum):
    """How one run of a handler ends."""

    WORKS = "works"
    FAILS = "fails"
    NOT_NOW = "is left for later"
    KILLS = "kills its process"
    REFUSED = "makes the commit refused"


class Behaviour(Enum):
    """How a handler may end; every end but the first costs one whim."""

    WORKS = (End.WORKS,)
    UNSTEADY = (End.WORKS, End.FAILS, End.NOT_NOW)
    FAILS = (End.FAILS,)
    KILLS = (End.KILLS,)
    REFUSED = (End.REFUSED,)


class Arrival(Struct, frozen=True):
    """One copy that waits in the queue at the beginning. `name` is its body: what the message is, whatever its id says."""

    id: str
    name: str

    def send(self) -> Send:
        """Give it as the upstream endpoint sent it."""
        return Send(message=Message(id=self.id, source=SOURCE, type=KIND, body=self.name.encode()), to=ENDPOINT)


class Workload(Struct, frozen=True, kw_only=True):
    """Copies that wait, and how each name's handler behaves; each handled message sends `effects` messages to `to`."""

    arrivals: tuple[Arrival, ...]
    behaviours: tuple[tuple[str, Behaviour], ...] = ()
    effects: int = 1
    to: str = SINK
    retry: Retry = NEVER_TIRED
    blocking: bool = True
    may_be_given_up: bool = False
    """That a handler that never fails ends as a dead letter: its process died too often."""

    def behaviour(self, name: str) -> Behaviour:
        """Tell how the handler of this message behaves."""
        return dict(self.behaviours).get(name, Behaviour.WORKS)


def copies(*names: str) -> tuple[Arrival, ...]:
    """Give one arrival for each name; equal names are copies of one message."""
    return tuple(Arrival(name, name) for name in names)


class Standing:
    """A clock that stands still: under the checker, time passes by events."""

    def now(self) -> int:
        """Give the beginning of time."""
        return 0


class CheckedHandlers:
    """Handlers whose every run leaves its own mark in what it commits and in what it sends."""

    def __init__(self, workload: Workload, driver: Asking, notebook: type) -> None:
        """Write into the unit's notebook, of the given class."""
        self._workload = workload
        self._driver = driver
        self._notebook = notebook

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read the CloudEvent."""
        return _read(delivery.headers, delivery.body)

    async def handle(self, message: Message, resources: Resources) -> Decision:
        """Write a row, then end as the checker chooses."""
        name = message.body.decode()
        end = await self._driver.choose(name)
        if end is End.NOT_NOW:
            raise NotNow
        mark = mark_text(self._driver.token())
        async with resources.attempt():
            notebook: Any = resources.get(self._notebook)
            notebook.write(name, mark)
            if end is End.FAILS:
                raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason="the handler failed"))
            if end is End.REFUSED:
                notebook.refuse("a deferred constraint")
        return Decision(tuple(self._effect(message, index, mark) for index in range(self._workload.effects)))

    def verdict(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> Verdict:
        """Judge by the workload's policy, at an instant and with a chance that are always the same."""
        return judge(self._workload.retry, failure, attempts=attempts, history=history, now=0, chance=0)

    def _effect(self, message: Message, index: int, mark: str) -> Send:
        body = f"{message.body.decode()} {index} {mark}".encode()
        fresh = outgoing_id(ENDPOINT, message.identity, index)
        return Send(message=Message(id=fresh, source=ENDPOINT, type="done", body=body), to=self._workload.to)


def mark_text(token: tuple[Hashable, int]) -> str:
    """Write an attempt's name as text without spaces."""
    receipt: Any = token[0]
    return f"{receipt.number}.{receipt.times}.{token[1]}"


@lru_cache(maxsize=10_000)
def _read(headers: Headers, body: bytes) -> Message:
    event = take_apart(headers, body)
    return message_of(event, source=event.attributes["source"], id=event.attributes["id"])


def ports_of(workload: Workload, programs: Programs, driver: Asking) -> Ports:
    """Put the memory adapters of one worker together, on the checker's driver."""
    clock = Standing()
    plain: Driver = driver
    return Ports(
        endpoint=ENDPOINT,
        store=programs.stores.MemoryStore(plain, ENDPOINT, clock=clock, blocking=workload.blocking),
        handlers=CheckedHandlers(workload, driver, programs.stores.Notebook),
        admission=programs.admission.History(),
        transport=programs.transports.MemoryTransport(plain, ENDPOINT, clock=clock),
        dead_letters=programs.stores.MemoryDeadLetters(plain, clock=clock),
    )


def start(workload: Workload, programs: Programs, batch: Sequence[Delivery]) -> tuple[Asking, Coroutine[Any, Any, Any]]:
    """Begin what a worker does with one batch: the shipping delivery shell, and all below it."""
    driver = Asking(batch[0].receipt)
    return driver, program(workload, programs, batch, driver)


def program(workload: Workload, programs: Programs, batch: Sequence[Delivery], driver: Asking) -> Coroutine[Any, Any, Any]:
    """Give what a worker does with one batch, not begun, on this driver."""
    coroutine: Coroutine[Any, Any, Any] = programs.delivery.deliver(batch, ports_of(workload, programs, driver))
    return coroutine
