"""Messages of a type that a process does not handle wait for one that does: deployments with old and new processes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from onceonly import Endpoint, WorkerSettings
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.settlement import BatchReport
from onceonly.assembly import open_database, open_dead_letters, open_store, open_transport
from onceonly.endpoint import message_types
from onceonly.endpoint.host import host_of
from onceonly.endpoint.message_types import TAKEN_SECONDS, UnknownTypes
from onceonly.endpoint.received_message import ReceivedMessage
from onceonly.errors import SetupError
from onceonly.formats.log_events import LoggedKeys
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.health import STALE_SECONDS, ProcessReport, ProcessState
from onceonly.model.message import PARTITION_KEY, Failure, FailureKind, Message, Send, expiry_text
from onceonly.model.record import Answer
from onceonly.model.retry import HISTORY_KEPT, UNHANDLED, Retry, decide_retry, unhandled_since
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance import presence
from onceonly.runtime.maintenance.presence import FRESH_SECONDS, TypesElsewhere
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA
from onceonly_conformance.clock import ManualClock
from tests.adapters.aws.sqs import harness as sqs_harness
from tests.adapters.rabbitmq import harness as rabbitmq
from tests.endpoint.harness import FixedRandomSource

FAST = WorkerSettings(wait=0.02)
NEW_MESSAGES = 100
PATIENCE = 60.0


@dataclass
class Known:
    """A message that both versions handle."""

    number: int


@dataclass
class Added:
    """A message that only the new version handles."""

    number: int


class Deployment:
    """Two versions of the endpoint `shop` with one store and one queue. Counts what each version handles."""

    def __init__(self, store: str, queue: str, **settings: Any) -> None:
        self._given = {"store": store, "transport": queue, "worker": FAST} | settings
        self.store, self.queue = store, queue
        self.handled: Counter[tuple[str, int]] = Counter()
        self.order: list[tuple[str, int]] = []
        self._changed = asyncio.Condition()

    def version(self, name: str, *kinds: type) -> Endpoint:
        """Return an endpoint that handles these types."""
        shop = Endpoint("shop", **self._given)
        for kind in kinds:
            shop.handler(self._handler(name, kind))
        return shop

    def _handler(self, name: str, kind: type) -> Any:
        async def handle(body: Any) -> None:
            async with self._changed:
                self.handled[name, body.number] += 1
                self.order.append((name, body.number))
                self._changed.notify_all()

        handle.__annotations__["body"] = kind
        return handle

    async def until(self, count: int) -> None:
        """Return when this many messages were handled."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.handled) >= count)

    async def send(self, kind: str, numbers: Sequence[int], *, key: str = "") -> None:
        """Send a command of this type for each number."""
        extensions = ((PARTITION_KEY, key),) if key else ()
        sends = [
            Send(
                message=Message(id=f"{kind}{n}", source="web", type=kind, body=b'{"number":%d}' % n, extensions=extensions),
                to="shop",
            )
            for n in numbers
        ]
        async with open_transport(self.queue, "web") as transport:
            assert set(await transport.send(sends)) == {Answer.TAKEN}

    async def dead(self) -> tuple[DeadLetter, ...]:
        """Return the dead letters."""
        async with open_dead_letters(self.store) as letters:
            return await letters.page(Filter())


class Watch:
    """Lets a test wait for what became of messages."""

    def __init__(self) -> None:
        self.counts: Counter[Point] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Count the items once the call has returned."""
        yield
        async with self._changed:
            self.counts[call.point] += call.count
            self._changed.notify_all()

    async def until(self, count: int) -> None:
        """Return when this many messages were put off or given up."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self.counts[Point.RETRY_COPY] + self.counts[Point.DEAD_LETTER] >= count)

    async def until_dead(self) -> None:
        """Return when a message was given up."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self.counts[Point.DEAD_LETTER])


@pytest.fixture
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages wait for a tenth of a second at a time."""
    monkeypatch.setattr(message_types, "SHORTEST_SECONDS", 0.1)


async def deploy(deployment: Deployment) -> None:
    """Let an old process receive 100 messages of a new type. Start the new one, and later stop the old one."""
    old, new, watch = deployment.version("old", Known), deployment.version("new", Known, Added), Watch()
    async with AsyncExitStack() as former:
        await former.enter_async_context(host_of(old).running(observer=watch))
        await deployment.send("Added", range(NEW_MESSAGES))
        await watch.until(NEW_MESSAGES)
        assert watch.counts[Point.DEAD_LETTER] == 0
        async with host_of(new).running():
            await deployment.until(NEW_MESSAGES // 2)
            await former.aclose()
            await deployment.until(NEW_MESSAGES)
    assert {name for name, _ in deployment.handled} == {"new"}
    assert set(deployment.handled.values()) == {1}
    assert await deployment.dead() == ()


@pytest.mark.usefixtures("in_haste")
async def test_no_message_of_a_new_type_is_lost_to_an_old_process(tmp_path: Path) -> None:
    """On SQLite."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    await deploy(Deployment(url, url))


@pytest.mark.usefixtures("in_haste")
async def test_the_same_holds_without_reports_of_processes() -> None:
    """In memory, where the time alone decides."""
    place = "memory://unknown-types"
    async with open_dead_letters(place), open_transport(place, "web"):
        await deploy(Deployment(place, place))


@pytest.mark.usefixtures("in_haste")
async def test_the_same_holds_on_rabbitmq_and_postgresql(postgresql_url: str) -> None:
    """With a store and a broker that many processes share."""
    async with open_database(postgresql_url) as database:
        await create(database, SCHEMA)
    async with rabbitmq.opened(Topology(endpoint="shop", commands=("Known", "Added"))) as broker:
        await deploy(Deployment(postgresql_url, broker.url))


async def test_a_strictly_ordered_queue_keeps_its_documented_order(ministack_endpoint: str, tmp_path: Path) -> None:
    """A message that waits goes to the end of its group, as a retry does. The others of its group stay in order."""
    async with sqs_harness.opened(ministack_endpoint, options="&fifo=true") as broker:
        deployment = Deployment(f"sqlite:///{tmp_path / 'shop.db'}", broker.url)
        old, new, watch = deployment.version("old", Known), deployment.version("new", Known, Added), Watch()
        async with host_of(old).running(observer=watch):
            await deployment.send("Added", [0], key="k")
            await deployment.send("Known", [1, 2, 3], key="k")
            await deployment.until(3)
            await watch.until(1)
            assert deployment.order == [("old", 1), ("old", 2), ("old", 3)]
            async with host_of(new).running():
                await deployment.until(4)
        assert deployment.order[3] == ("new", 0)
        assert await deployment.dead() == ()


class Simulation:
    """An old process on a clock that a test moves. Its queue is in memory."""

    def __init__(self, ports: Ports, clock: ManualClock) -> None:
        self.ports, self.clock = ports, clock

    async def put(self, kind: str = "Added", **extensions: str) -> None:
        """Send a message of this type."""
        sent = Message(id="m", source="web", type=kind, body=b'{"number":1}', extensions=tuple(extensions.items()))
        assert await self.ports.transport.send([Send(message=sent, to="shop")]) == (Answer.TAKEN,)

    async def work(self) -> BatchReport:
        """Handle what is due now."""
        report = BatchReport()
        while batch := await self.ports.transport.receive(100, 0):
            report += await deliver(batch, self.ports)
        return report

    async def dead(self) -> tuple[DeadLetter, ...]:
        """Return the dead letters."""
        return tuple(await self.ports.dead_letters.page(Filter()))  # type: ignore[attr-defined] # in memory


@asynccontextmanager
async def simulated(**settings: Any) -> AsyncIterator[Simulation]:
    """Open a process of the endpoint that handles `Known` only."""
    clock, place = ManualClock(), f"memory://{uuid4().hex}"
    shop = Deployment(place, place, **settings).version("old", Known)
    async with host_of(shop).opened(environment=Environment(clock=clock, random=FixedRandomSource())) as ports:
        yield Simulation(ports, clock)


async def test_after_its_wait_it_is_a_dead_letter_that_names_what_was_looked_for_and_where() -> None:
    """300 seconds after its first receipt. None of its receipts is counted."""
    async with simulated() as old:
        await old.put()
        looks = 0
        for _ in range(300):
            report = await old.work()
            looks += report.retried
            assert (report.dead, report.retried) in {(0, 0), (0, 1)}
            old.clock.advance(1000)
        assert await old.dead() == ()
        old.clock.advance(1)
        assert (await old.work()).dead == 1
        (letter,) = await old.dead()
        assert 40 < looks < 60
        assert letter.attempts == 1
        assert [each.kind for each in letter.history] == [FailureKind.LATER, FailureKind.REJECTED]
        assert letter.reason == (
            "no handler of endpoint 'shop' takes 'Added'; it takes Known. It has waited 300 s. Whether another process "
            "takes it is unknown: its store has no reports of processes"
        )


async def test_the_time_counts_from_the_first_receipt_by_any_process() -> None:
    """Its copies carry it: another process, or the same one after a restart, does not begin anew."""
    async with simulated() as old:
        await old.put()
        await old.work()
        old.clock.advance(299_000)
        (arrived,) = await old.ports.transport.receive(1, 0)
        assert unhandled_since(arrived.history) == ManualClock().now()
        assert arrived.attempts == 0
        await deliver([arrived], old.ports)
        old.clock.advance(1001)
        assert (await old.work()).dead == 1


@pytest.mark.parametrize("wait", [0, 0.0])
async def test_without_a_wait_it_is_a_dead_letter_at_once(wait: float) -> None:
    """With the reason of earlier versions."""
    async with simulated(unknown_types_wait=wait) as old:
        await old.put()
        assert (await old.work()).dead == 1
        (letter,) = await old.dead()
        assert letter.reason == "no handler of endpoint 'shop' takes 'Added'; it takes Known"


async def test_a_message_that_expires_while_it_waits_is_given_up_for_that() -> None:
    """No process would handle it."""
    async with simulated() as old:
        await old.put(expirytime=expiry_text(ManualClock().now() + 10_000))
        assert (await old.work()).retried == 1
        old.clock.advance(11_000)
        await old.work()
        (letter,) = await old.dead()
        assert letter.reason.startswith("expired at ")


async def test_others_of_its_batch_are_handled() -> None:
    """Its unit is undone, and runs without it."""
    async with simulated() as old:
        await old.put()
        await old.ports.transport.send(
            [Send(message=Message(id=f"k{n}", source="web", type="Known", body=b'{"number":2}'), to="shop") for n in range(9)]
        )
        report = await old.work()
        assert (report.handled, report.retried, report.dead) == (9, 1, 0)


def process(*types: str, age: float = 0.0, name: str = "web-2:7:b") -> ProcessState:
    """Return a process that handles these types."""
    return ProcessState(report=ProcessReport(process=name, host="web-2", pid=7, version="1", types=types), age=age)


class CountingTimer:
    """A timer that a test moves."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return its time."""
        return self._seconds

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds

    async def sleep(self, seconds: float) -> None:
        """Pass at once."""
        self.pass_by(seconds)


class Late:
    """A message without a handler, after its time: what other processes handle decides."""

    def __init__(self) -> None:
        self.elsewhere, self.timer = TypesElsewhere(), CountingTimer()
        self.elsewhere.begin(self.timer)
        self.rule = UnknownTypes("shop", ("Known",), 300.0, self.elsewhere, ManualClock(), FixedRandomSource(), LoggedKeys())

    def failure(self) -> Failure:
        """Return what becomes of it."""
        since = ManualClock().now() - 400_000
        return self.rule.failure_of(
            ReceivedMessage(id="m", source="web", type="Added", body=b"", unhandled_since=since)
        ).failure


async def test_it_waits_as_long_as_a_live_process_takes_it() -> None:
    """After its time, too."""
    late = Late()
    late.elsewhere.learn([process("Known"), process("Added", "Known", name="web-3:8:c")])
    found = late.failure()
    assert (found.kind, found.delay) == (FailureKind.LATER, TAKEN_SECONDS)
    assert found.reason == "no handler of endpoint 'shop' takes 'Added' here; web-3:8:c does, and has to receive it"


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ([process("Known", "Paid")], ", and no other live process takes it: web-2:7:b take Known, Paid"),
        ([process()], ", and no other live process takes it: web-2:7:b take no known type"),
        ([process("Added", age=STALE_SECONDS + 1)], ", and no other process of the endpoint is live"),
        ([], ", and no other process of the endpoint is live"),
    ],
    ids=["others do not", "an earlier version", "it is gone", "none"],
)
async def test_its_dead_letter_names_its_type_and_what_the_others_take(others: list[ProcessState], reason: str) -> None:
    """A process that has not reported for a while does not count."""
    late = Late()
    late.elsewhere.learn(others)
    found = late.failure()
    assert found.kind is FailureKind.REJECTED
    assert found.reason == f"no handler of endpoint 'shop' takes 'Added'; it takes Known. It has waited 400 s{reason}"


async def test_it_is_not_given_up_by_what_was_known_earlier() -> None:
    """The processes are read again, also those that could not be read. Meanwhile it waits."""
    late = Late()
    for _ in range(2):
        assert late.failure().kind is FailureKind.LATER
        async with asyncio.timeout(PATIENCE):
            await late.elsewhere.wanted()
        late.elsewhere.learn((), "the store is away")
        assert late.failure().reason.endswith("Whether another process takes it is unknown: the store is away")
        late.timer.pass_by(FRESH_SECONDS)


async def test_a_long_list_of_types_does_not_hide_the_rest_of_the_reason() -> None:
    """It names 20 of them."""
    late = Late()
    late.rule = late.rule._replace(types=[f"type-{number}" for number in range(500)])
    late.elsewhere.learn([process(*(f"other-{number:03}" for number in range(500)))])
    reason = late.failure().reason
    assert "type-19 and 480 more. It has waited 400 s, and no other live process takes it: web-2:7:b take other-000, " in reason
    assert reason.endswith("other-019 and 480 more")


def test_the_first_receipt_stays_before_all_failures() -> None:
    """Failures that follow are counted as ever, and push it out only when there are more than a history keeps."""
    waits = Failure(kind=FailureKind.LATER, reason=f"{UNHANDLED}'shop' takes 'Added' here; it waits", delay=1.0)
    raised = Failure(kind=FailureKind.EXCEPTION, reason="ValueError: no")

    def decide(failure: Failure, history: tuple[Failure, ...], now: int) -> tuple[Failure, ...]:
        decided = decide_retry(Retry(delayed=50), failure, attempts=1, history=history, now=now, fraction=0.0)
        return decided.history

    first = decide(waits, (), 1000)
    assert (unhandled_since(first), len(first)) == (1000, 1)
    assert decide(waits, first, 2000) == first
    failed = decide(raised, first, 3000)
    assert [each.kind for each in failed] == [FailureKind.LATER, FailureKind.EXCEPTION]
    assert decide(waits, failed, 4000) == failed
    late = decide(waits, (replace_at(raised, 1),) * HISTORY_KEPT, 5000)
    assert (unhandled_since(late), len(late)) == (5000, HISTORY_KEPT)


def replace_at(failure: Failure, at: int) -> Failure:
    """Return the failure at another time."""
    return Failure(kind=failure.kind, reason=failure.reason, at=at)


@pytest.mark.parametrize("wait", [-1, 86_401, float("nan"), float("inf"), "300", None, True, timedelta(seconds=300)])
def test_a_wrong_wait_is_refused(wait: Any) -> None:
    """With its value."""
    with pytest.raises(SetupError, match="unknown_types_wait must be a number of seconds from 0") as refused:
        Endpoint("shop", store="memory://a", transport="memory://a", unknown_types_wait=wait)
    assert repr(wait) in str(refused.value)


async def test_processes_see_in_the_store_what_the_others_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message waits while a live process takes it, and is a dead letter when that one has gone."""
    monkeypatch.setattr(presence, "FRESH_SECONDS", 0.05)
    monkeypatch.setattr(message_types, "SHORTEST_SECONDS", 0.02)
    monkeypatch.setattr(message_types, "LONGEST_SECONDS", 0.02)
    url, watch = f"sqlite:///{tmp_path / 'shop.db'}", Watch()
    deployment = Deployment(url, url, unknown_types_wait=0.01)
    old = deployment.version("old", Known)
    async with open_store(old.settings) as opened:
        assert opened.presence is not None
        async with host_of(old).running(observer=watch):
            await opened.presence.report(process("Added").report)
            await deployment.send("Added", [1])
            await watch.until(10)
            assert watch.counts[Point.DEAD_LETTER] == 0
            await opened.presence.remove("web-2:7:b")
            await watch.until_dead()
    (letter,) = await deployment.dead()
    assert letter.reason.endswith(", and no other process of the endpoint is live")
    assert "takes 'Added'; it takes Known" in letter.reason
