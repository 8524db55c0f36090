"""The worker: takes what waits, whatever happens to it and around it."""

import asyncio
from collections.abc import Sequence

import pytest

from onceonly.adapters.memory.store import MemoryStore
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.config.worker import WorkerSettings
from onceonly.model.errors import CommitFailed, ConflictError, OutcomeUnknown, QueueMissing, SetupError, WorkerStopped
from onceonly.model.message import Delivery, FailureKind, Message, Send, Unreadable
from onceonly.ports.store import Resources, Unit
from onceonly.ports.transport import Topology
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from onceonly.runtime.observe.observer import Point
from onceonly.runtime.processes.counters import DEAD, HANDLED, HELD, KNOWN, RECEIVED, RETRIED, SharedCounters
from onceonly.runtime.worker.batched_delete import WINDOW_SECONDS
from onceonly.runtime.worker.worker import Worker, run_all, side_by_side
from tests.log_events import event_in, events
from tests.runtime.harness import FAST, CallTally, ScriptedHandlers, SimulatedEndpoint, failing


class ConflictedStore(MemoryStore):
    """Loses every race with a unit of more than two messages."""

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Fail as the class says."""
        if len(messages) > 2:
            raise ConflictError("another worker has one of these")
        return await super().begin(messages, isolated=isolated)


class StoreInOutage(MemoryStore):
    """Does not answer the first few calls."""

    failures = 5

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Fail as the class says."""
        self.failures -= 1
        if self.failures >= 0:
            raise OutcomeUnknown("connection refused")
        return await super().begin(messages, isolated=isolated)


class BrokerInOutage(MemoryTransport):
    """Does not answer the first few receives, nor the first few releases."""

    failures = 0
    release_failures = 0

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Fail as the class says."""
        self.failures -= 1
        if self.failures >= 0:
            raise OSError("connection reset")
        return await super().receive(limit, wait)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Fail as the class says."""
        self.release_failures -= 1
        if self.release_failures >= 0:
            raise CommitFailed("connection reset")
        await super().release(deliveries)


class DeletedQueue(MemoryTransport):
    """Has no queue until it is declared again. That fails at first, as for a broker that blocks a deleted name."""

    missing, failures = True, 2

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Refuse while there is no queue."""
        if self.missing:
            raise QueueMissing("queue 'shop' does not exist: start its endpoint first")
        return await super().receive(limit, wait)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Fail as the class says."""
        self.failures -= 1
        if self.failures >= 0:
            raise CommitFailed("the queue is being deleted")
        await super().declare(topologies)
        self.missing = False


class RefusingQueue(MemoryTransport):
    """Refuses this user at first."""

    refusals, declared = 2, 0

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Fail as the class says."""
        self.refusals -= 1
        if self.refusals >= 0:
            raise SetupError("cannot receive from queue 'shop': access refused")
        return await super().receive(limit, wait)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Count."""
        self.declared += 1


class BrokerThatCancels(MemoryTransport):
    """Cancels whoever receives, as a driver with a mistake may."""

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Fail as the class says."""
        raise asyncio.CancelledError


def messages_in(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    """Return what the worker said at one level."""
    return [event_in(r) for r in caplog.records if r.name == "onceonly.worker" and r.levelname == level]


async def test_every_message_is_handled_once_and_copies_are_known() -> None:
    """A copy that comes later is answered by the claim."""
    simulated = await SimulatedEndpoint().open("a", "b", "c", "b")
    first = await simulated.work(WorkerSettings(batch_size=2, wait=0.05))
    await simulated.send("a")
    second = await simulated.work()
    assert simulated.noted() == ["a", "b", "c"]
    assert simulated.announced() == ["a", "b", "c"]
    assert (first.report.handled, first.report.known, second.report.known) == (3, 1, 1)


async def test_what_happened_is_counted_on_the_board(tmp_path: object) -> None:
    """Received, handled, known, retried and dead; nothing is held at the end."""

    def script(message: Message, _resources: Resources) -> None:
        if message.id == "bad":
            raise failing("no such order", FailureKind.REJECTED)
        if message.id == "slow" and handlers.started.count("slow") == 1:
            raise failing("try again")

    handlers = ScriptedHandlers(script)
    simulated = await SimulatedEndpoint(handlers).open("a", "bad", "slow")
    await simulated.send("a")
    with SharedCounters.create(f"{tmp_path}/board", 1) as counters:
        stop = asyncio.Event()
        row = counters.row(0)
        worker = Worker(simulated.ports, FAST, environment=simulated.environment, counters=row)
        running = asyncio.create_task(worker.run(stop))
        await simulated.settled()
        stop.set()
        await running
        counted = {column: row.get(column) for column in (RECEIVED, HANDLED, KNOWN, RETRIED, DEAD, HELD)}
    assert counted == {RECEIVED: 5, HANDLED: 2, KNOWN: 1, RETRIED: 1, DEAD: 1, HELD: 0}


async def test_lost_races_are_retried_in_smaller_batches() -> None:
    """Batches of eight lose, batches of two win; nothing is counted against a message."""
    simulated = SimulatedEndpoint()
    simulated.ports = simulated.ports._replace(store=ConflictedStore(simulated.driver, "shop", clock=simulated.clock))
    await simulated.open(*"abcdefgh")
    worker = await simulated.work(WorkerSettings(batch_size=8, wait=0.05))
    assert simulated.noted() == list("abcdefgh")
    assert worker.report.conflicted >= 12
    assert worker.report.retried == worker.report.dead == 0
    assert simulated.timer.slept
    assert max(simulated.timer.slept) < 0.5


async def test_an_outage_of_the_store_counts_nothing_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Waits grow; the message is handled afterwards with no failure counted."""
    caplog.set_level("INFO")
    simulated = SimulatedEndpoint()
    simulated.ports = simulated.ports._replace(store=StoreInOutage(simulated.driver, "shop", clock=simulated.clock))
    await simulated.open("a")
    worker = await simulated.work()
    assert simulated.noted() == ["a"]
    assert worker.report.retried == worker.report.dead == 0
    *pauses, last = simulated.timer.slept
    assert pauses == sorted(pauses)
    assert (len(pauses), last) == (5, WINDOW_SECONDS)
    assert len(messages_in(caplog, "WARNING")) == 1
    assert messages_in(caplog, "INFO") == ["worker started", "worker recovered", "worker stopped"]


async def test_an_outage_of_the_broker_kills_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    """Even an error that is none of ours, as a driver may raise it."""
    caplog.set_level("INFO")
    simulated = SimulatedEndpoint()
    broker = BrokerInOutage(simulated.driver, "shop", clock=simulated.clock)
    broker.failures = 4
    simulated.ports = simulated.ports._replace(transport=broker)
    await simulated.open("a")
    await simulated.work()
    assert simulated.noted() == ["a"]
    assert len(messages_in(caplog, "WARNING") + messages_in(caplog, "ERROR")) == 1
    assert "worker recovered" in messages_in(caplog, "INFO")


async def test_a_release_that_failed_is_made_up_for() -> None:
    """The store is away, and so is the broker when the message is given back; it does not become a suspect."""
    simulated = SimulatedEndpoint()
    broker = BrokerInOutage(simulated.driver, "shop", clock=simulated.clock)
    broker.release_failures = 3
    store = StoreInOutage(simulated.driver, "shop", clock=simulated.clock)
    store.failures = 1
    simulated.ports = simulated.ports._replace(transport=broker, store=store)
    await simulated.open("a")
    worker = await simulated.work()
    assert simulated.noted() == ["a"]
    assert worker.report.retried == 0  # a suspect's start would have been counted


async def test_a_bug_is_said_with_its_traceback_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Something that nobody foresaw comes out of the algorithm twice; the deliveries go back, and are handled later."""

    class ForeignBug(ScriptedHandlers):
        left = 2

        def read(self, delivery: Delivery) -> Message | Unreadable:
            self.left -= 1
            if self.left >= 0:
                raise ZeroDivisionError("a bug")
            return super().read(delivery)

    simulated = await SimulatedEndpoint(ForeignBug()).open("a", "b")
    worker = await simulated.work()
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert simulated.noted() == ["a", "b"]
    assert worker.report.retried == worker.report.dead == 0
    assert len(errors) == 2
    assert all(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in errors)


async def test_slow_handlers_end_the_unit_when_its_time_is_used() -> None:
    """Every handler takes longer than the whole budget: the first of each unit runs, the rest comes again uncounted."""

    def script(_message: Message, _resources: Resources) -> None:
        simulated.timer.now += 2.0

    simulated = SimulatedEndpoint(ScriptedHandlers(script))
    tally = CallTally()
    await simulated.open(*"abcde")
    worker = await simulated.work(WorkerSettings(batch_size=5, budget=1.0, wait=0.05), also=[tally])
    assert simulated.noted() == list("abcde")
    assert simulated.handlers.started == sorted(simulated.handlers.started)
    assert tally.calls[Point.COMMIT] == 5
    assert worker.report.postponed >= 4
    assert worker.report.retried == 0


async def test_a_worker_whose_queue_was_deleted_declares_it_again(caplog: pytest.LogCaptureFixture) -> None:
    """As a restart would, with the backoff of an outage."""
    simulated = await SimulatedEndpoint().open("1")
    transport = DeletedQueue(simulated.driver, "shop", clock=simulated.clock)
    ports = simulated.ports._replace(transport=transport, declared=(Topology(endpoint="shop", events=("order",)),))
    await simulated.work(ports=ports)
    assert simulated.noted() == ["1"]
    assert ("shop", "order") in {(queue, event) for event, queue in simulated.broker().subscriptions}
    assert messages_in(caplog, "WARNING")[-1] == "queue was missing, declared again"


async def test_a_worker_without_rights_declares_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Only a queue that is missing is declared again, not one that refuses."""
    simulated = await SimulatedEndpoint().open("1")
    transport = RefusingQueue(simulated.driver, "shop", clock=simulated.clock)
    ports = simulated.ports._replace(transport=transport, declared=(Topology(endpoint="shop", events=("order",)),))
    await simulated.work(ports=ports)
    assert simulated.noted() == ["1"]
    assert transport.declared == 0
    assert messages_in(caplog, "WARNING") == ["worker cannot receive, retrying with backoff"]


async def test_a_stop_finishes_what_is_in_work_and_receives_no_more() -> None:
    """The handler is running when the stop comes; its message is committed, sent and acknowledged."""
    begun, go, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait_for_it() -> None:
        begun.set()
        await go.wait()

    simulated = await SimulatedEndpoint(ScriptedHandlers(lambda _message, _resources: wait_for_it())).open("a")
    tally = CallTally()
    running = asyncio.create_task(simulated.worker(observer=tally).run(stop))
    await begun.wait()
    await simulated.send("b")
    stop.set()
    go.set()
    await running
    assert (simulated.noted(), simulated.announced()) == (["a"], ["a"])
    assert tally.calls[Point.RECEIVE] == 1
    assert (await simulated.transport.depth("shop")).waiting == 1


async def test_what_outlasts_the_grace_time_is_cut_off_and_given_back(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of it is visible, its delivery waits again, it is no suspect, and somebody should know."""
    caplog.set_level("INFO", "onceonly")
    begun, stop = asyncio.Event(), asyncio.Event()

    async def never_end() -> None:
        begun.set()
        await asyncio.Event().wait()

    simulated = await SimulatedEndpoint(ScriptedHandlers(lambda _message, _resources: never_end())).open("a")
    running = asyncio.create_task(simulated.worker(WorkerSettings(wait=0.05, grace=0.01)).run(stop))
    await begun.wait()
    stop.set()
    await running
    again = await simulated.transport.receive(1, 0.05)
    assert simulated.noted() == []
    assert [(d.suspect, d.attempts) for d in again] == [(False, 0)]
    assert "worker releases deliveries" in events(caplog.records)


async def test_what_arrives_after_the_stop_is_given_back_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """The receive that was under way brings something; it is not begun, and that is a normal end."""
    caplog.set_level("INFO", "onceonly")
    stop = asyncio.Event()

    class LateBroker(MemoryTransport):
        async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
            """Fail as the class says."""
            taken = await super().receive(limit, wait)
            stop.set()
            return taken

    simulated = await SimulatedEndpoint().open("a")
    late = LateBroker(simulated.driver, "shop", clock=simulated.clock)
    await simulated.worker(ports=simulated.ports._replace(transport=late)).run(stop)
    assert simulated.handlers.started == []
    assert (await simulated.transport.depth("shop")).waiting == 1
    assert events(caplog.records) == ["worker started", "worker stopped"]


async def test_leases_are_renewed_while_a_batch_is_in_work() -> None:
    """The handler takes longer than three leases; nobody else gets the message meanwhile."""
    begun, go = asyncio.Event(), asyncio.Event()

    class LeaseTimer:
        """Ends a sleep whenever the test says so."""

        def __init__(self) -> None:
            self.asked: asyncio.Queue[float] = asyncio.Queue()
            self.over = asyncio.Semaphore(0)

        def seconds(self) -> float:
            """Return what has been slept."""
            return 0.0

        async def sleep(self, seconds: float) -> None:
            """Sleep in the way the class says."""
            if seconds == WINDOW_SECONDS:
                return
            self.asked.put_nowait(seconds)
            await self.over.acquire()

    async def wait_for_it() -> None:
        begun.set()
        await go.wait()

    timer = LeaseTimer()
    simulated = await SimulatedEndpoint(ScriptedHandlers(lambda _message, _resources: wait_for_it())).open("a")
    simulated.environment = simulated.environment._replace(timer=timer)
    stop, tally = asyncio.Event(), CallTally()
    running = asyncio.create_task(simulated.worker(observer=tally).run(stop))
    await begun.wait()
    for _ in range(10):
        simulated.clock.advance(int(await timer.asked.get() * 1000))
        timer.over.release()
    await timer.asked.get()
    assert tally.calls[Point.EXTEND] == 10
    assert await simulated.transport.receive(1, 0.0) == ()
    stop.set()
    go.set()
    await running
    assert simulated.idle()


async def test_many_loops_and_many_endpoints_share_a_process() -> None:
    """Two workers with three loops each compete for one queue."""
    simulated = await SimulatedEndpoint().open(*(f"m{number:03}" for number in range(100)))
    stop = asyncio.Event()
    settings = WorkerSettings(batch_size=7, concurrency=3, wait=0.05)
    workers = [simulated.worker(settings), simulated.worker(settings)]
    running = asyncio.create_task(run_all(workers, stop))
    await simulated.settled()
    stop.set()
    await running
    assert simulated.noted() == [f"m{number:03}" for number in range(100)]
    assert sum(worker.report.handled for worker in workers) == 100


async def test_a_suspect_runs_alone() -> None:
    """Its process died while it held it: a copy is sent, not counted yet, and handled in a unit of its own."""
    simulated = await SimulatedEndpoint().open("poison", "b", "c")
    await simulated.transport.receive(1, 0.05)
    await simulated.bury_the_dead()
    copies: list[Send] = []

    class WritesCopiesDown(CallTally):
        def around(self, call):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - the double only looks
            if call.point is Point.RETRY_COPY:
                copies.extend(call.items)
            return super().around(call)

    await simulated.work(also=[WritesCopiesDown()])
    assert simulated.noted() == ["b", "c", "poison"]
    assert [(copy.message.id, copy.attempts, copy.alone) for copy in copies] == [("poison", 0, True)]


async def test_a_cancelled_worker_is_a_crashed_one() -> None:
    """Nothing is settled and nothing given back: the leases end by themselves, and the message is a suspect."""
    begun = asyncio.Event()

    async def never_end() -> None:
        begun.set()
        await asyncio.Event().wait()

    simulated = await SimulatedEndpoint(ScriptedHandlers(lambda _message, _resources: never_end())).open("a")
    running = asyncio.create_task(simulated.worker().run(asyncio.Event()))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await simulated.transport.depth("shop")).held == 1
    await simulated.bury_the_dead()
    assert [delivery.suspect for delivery in await simulated.transport.receive(1, 0.05)] == [True]


async def test_a_crash_in_one_loop_ends_them_all() -> None:
    """A process dies as a whole: no loop of it goes on."""
    simulated = await SimulatedEndpoint().open("a", "b")
    workers = [simulated.worker(WorkerSettings(concurrency=3, wait=0.05), CrashAt("after-commit")), simulated.worker()]
    with pytest.raises(ProcessCrash):
        await run_all(workers, asyncio.Event())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_could_not_be_acknowledged_is_given_back() -> None:
    """Everything is done, the ack is lost, and so is the release; the copy is known, not suspected."""

    class LosesAcks(BrokerInOutage):
        ack_failures = 1

        async def ack(self, deliveries: Sequence[Delivery]) -> None:
            """Fail at first."""
            self.ack_failures -= 1
            if self.ack_failures >= 0:
                raise OutcomeUnknown("connection reset")
            await super().ack(deliveries)

    simulated = SimulatedEndpoint()
    broker = LosesAcks(simulated.driver, "shop", clock=simulated.clock)
    broker.release_failures = 2
    simulated.ports = simulated.ports._replace(transport=broker)
    await simulated.open("a")
    worker = await simulated.work()
    assert (simulated.noted(), simulated.announced()) == (["a"], ["a"])
    assert (worker.report.known, worker.report.retried) == (1, 0)


async def test_a_loop_that_ends_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    """It must not go on without receiving while its probes say that all is well."""
    simulated = SimulatedEndpoint()
    simulated.ports = simulated.ports._replace(transport=BrokerThatCancels(simulated.driver, "shop", clock=simulated.clock))
    worker = Worker(simulated.ports, FAST, environment=simulated.environment)
    with pytest.raises(WorkerStopped, match="without a stop request"):
        await run_all([worker], asyncio.Event())
    assert any("worker failed" in said for said in messages_in(caplog, "ERROR"))


async def test_a_runner_that_is_cancelled_ends_those_beside_it() -> None:
    """A cancelled task is no exception to whoever waits for tasks."""
    ended: list[str] = []

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("the other")

    with pytest.raises(WorkerStopped):
        await side_by_side([endless(), cancelled()])
    assert ended == ["the other"]
