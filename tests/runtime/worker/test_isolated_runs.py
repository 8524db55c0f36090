"""A message that may end its process has the process to itself; the record of its run outlasts outages, not the run."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import pytest

from onceonly.adapters.memory.run_markers import MemoryRunMarkers
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.deaths import MOST_HELD
from onceonly.config.worker import WorkerSettings
from onceonly.model.errors import CommitFailed, HandlerStuck, WorkerStopped
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import FailureKind, Message, Send
from onceonly.ports.run_markers import BEGUN, NO_DEATHS, DeadRuns, StartResult
from onceonly.ports.store import Resources
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly.runtime.processes.counters import Column, SharedCounters
from onceonly.runtime.worker.handlers import LoopHandlers
from onceonly.runtime.worker.isolated_runs import GateMember, IsolatedRuns, UnitGate
from onceonly.runtime.worker.worker import Worker, run_all
from tests.conformance.run_markers_contract import MESSAGE
from tests.runtime.harness import FAST, ScriptedHandlers, SimulatedEndpoint, failing


class Unsteady(MemoryRunMarkers):
    """Does not answer the first few removals."""

    failures = 3

    async def finish(self, identity: Identity) -> None:
        """Fail as the class says."""
        self.failures -= 1
        if self.failures >= 0:
            raise CommitFailed("connection refused")
        await super().finish(identity)


class NoWait:
    """A timer that does not wait."""

    def seconds(self) -> float:
        """Return the time."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Return others a turn."""
        await asyncio.sleep(0)


def alone(
    run_markers: MemoryRunMarkers, membership: GateMember | None = None, counters: SharedCounters | None = None
) -> IsolatedRuns:
    """Enclose them."""
    environment = LIVE._replace(timer=NoWait())
    row = counters.row(0) if counters is not None else None
    return IsolatedRuns(run_markers, membership or GateMember(), endpoint="shop", environment=environment, row=row)


async def test_one_that_is_alone_waits_for_all_others_and_keeps_new_ones_out() -> None:
    """Of whatever endpoint: one crowd is all units of the process."""
    gate, said = UnitGate(), list[str]()
    await gate.enter()
    await gate.enter()

    async def by_itself() -> None:
        await gate.clear()
        said.append("alone")
        await asyncio.sleep(0)
        said.append("over")
        gate.reopen()

    async def another() -> None:
        await gate.enter()
        said.append("another")
        gate.leave()

    first, second = asyncio.create_task(by_itself()), asyncio.create_task(by_itself())
    await asyncio.sleep(0)
    third = asyncio.create_task(another())
    await asyncio.sleep(0)
    assert said == []
    gate.leave()
    gate.leave()
    await asyncio.gather(first, second, third)
    assert said.index("another") not in {1, said.index("over", 2)}
    assert said.count("alone") == said.count("over") == 2
    assert all(said[index + 1] == "over" for index, word in enumerate(said) if word == "alone")


async def test_one_that_is_cancelled_while_it_waits_lets_others_in() -> None:
    """A stop must not leave the process closed."""
    gate = UnitGate()
    await gate.enter()
    waiting = asyncio.create_task(gate.clear())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await gate.enter()


@pytest.mark.parametrize("ends", ["cancelled", "stuck"])
async def test_a_worker_that_ends_in_any_way_lets_other_workers_go_on(ends: str) -> None:
    """The gate is one for all endpoints of the event loop. What was recorded of a cancelled run is removed: nobody died."""
    running = asyncio.Event()

    async def script(message: Message, _resources: Resources) -> None:
        if message.id == "suspect":
            running.set()
            if ends == "stuck":
                raise HandlerStuck("a handler did not end")
            await asyncio.Event().wait()

    simulated = await SimulatedEndpoint(ScriptedHandlers(script)).open()
    message = Message(id="suspect", source="test", type="order", body=b"{}")
    await simulated.ports.transport.send([Send(message=message, to="shop", alone=True)])
    world = Live()
    ports = simulated.ports._replace(run_markers=MemoryRunMarkers(world, "shop", lasts=3600))
    first = asyncio.create_task(Worker(ports, FAST, environment=simulated.environment).run(asyncio.Event()))
    await running.wait()
    if ends == "cancelled":
        first.cancel()
    (error,) = await asyncio.gather(first, return_exceptions=True)
    assert isinstance(error, asyncio.CancelledError if ends == "cancelled" else WorkerStopped)
    if ends == "cancelled":
        assert await MemoryRunMarkers(world, "shop").begin(message.identity, 0) == BEGUN
    other = await SimulatedEndpoint(ScriptedHandlers()).open("1")
    stop = asyncio.Event()
    second = asyncio.create_task(Worker(other.ports, FAST, environment=other.environment).run(stop))
    async with asyncio.timeout(30):
        await other.settled()
    stop.set()
    await second
    assert other.noted() == ["1"]


async def test_who_waits_for_longer_than_the_longest_handler_says_for_what(caplog: pytest.LogCaptureFixture) -> None:
    """A unit for the message that runs alone, and a message that is to run alone for the units that are open."""
    gate = UnitGate()
    await gate.enter("billing", patience=0.0)
    clearing = asyncio.create_task(gate.clear("shop: upstream 1", patience=0.0))
    await logged(caplog, 1)
    gate.leave("billing")
    await clearing
    entering = asyncio.create_task(gate.enter("billing", patience=0.0))
    await logged(caplog, 2)
    gate.reopen()
    await entering
    told = [(record.unit, record.waits_for) for record in caplog.records]  # type: ignore[attr-defined]
    assert told == [("shop: upstream 1", "billing"), ("billing", "shop: upstream 1")]


async def logged(caplog: pytest.LogCaptureFixture, number: int) -> None:
    """Return when this many lines were logged."""
    while len(caplog.records) < number:  # noqa: ASYNC110 - a log tells nobody that it has grown
        await asyncio.sleep(0)


async def test_no_handler_runs_beside_one_that_is_alone() -> None:
    """Two workers of one process: while the suspect runs, the other worker begins nothing."""
    running, together = set[str](), set[frozenset[str]]()
    never_idle = [f"m-{number}" for number in range(30)]

    async def script(message: Message, _resources: Resources) -> None:
        running.add(message.id)
        for _ in range(3):
            await asyncio.sleep(0)
            together.add(frozenset(running))
        running.discard(message.id)

    simulated = await SimulatedEndpoint(ScriptedHandlers(script)).open(*never_idle[:15])
    sends = [Send(message=Message(id="suspect", source="test", type="order", body=b"{}"), to="shop", alone=True)]
    await simulated.ports.transport.send(sends)
    await simulated.send(*never_idle[15:])
    ports = simulated.ports._replace(run_markers=MemoryRunMarkers(Live(), "shop"))
    stop = asyncio.Event()
    settings = WorkerSettings(wait=0.05, grace=5.0, batch_size=1, concurrency=2)
    workers = [Worker(ports, settings, environment=simulated.environment) for _ in range(2)]
    working = asyncio.create_task(run_all(workers, stop))
    await simulated.settled()
    stop.set()
    await working
    assert frozenset({"suspect"}) in together
    assert not any("suspect" in ids and len(ids) > 1 for ids in together)
    assert any(len(ids) > 1 for ids in together), "the workers never ran side by side: this test shows nothing"


async def test_several_of_one_batch_run_one_after_another() -> None:
    """While another loop of the worker has the turn and waits to begin: neither waits for the other for ever."""
    alone_ids, others = [f"alone-{number}" for number in range(12)], [f"m-{number}" for number in range(12)]
    order = list[str]()

    async def script(message: Message, _resources: Resources) -> None:
        order.append(message.id)
        for _ in range(5):
            await asyncio.sleep(0)

    simulated = await SimulatedEndpoint(ScriptedHandlers(script)).open()
    for mine, other in zip(alone_ids, others, strict=True):
        message = Message(id=mine, source="test", type="order", body=b"{}")
        await simulated.ports.transport.send([Send(message=message, to="shop", alone=True)])
        await simulated.send(other)
    ports = simulated.ports._replace(run_markers=MemoryRunMarkers(Live(), "shop"))
    stop = asyncio.Event()
    settings = WorkerSettings(wait=0.05, grace=5.0, batch_size=8, concurrency=1)
    working = asyncio.create_task(Worker(ports, settings, environment=simulated.environment).run(stop))
    await simulated.settled()
    stop.set()
    await working
    assert sorted(order) == sorted([*alone_ids, *others])


async def test_those_that_are_alone_let_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for as long as they may follow one another, and no longer."""

    async def order(fair: float) -> list[str]:
        monkeypatch.setattr("onceonly.runtime.worker.isolated_runs.FAIR_SECONDS", fair)
        gate, said = UnitGate(), list[str]()

        async def one_after_another() -> None:
            for _ in range(3):
                await gate.clear()
                said.append("alone")
                await asyncio.sleep(0)
                gate.reopen()

        async def another() -> None:
            await gate.enter()
            said.append("another")
            gate.leave()

        first = asyncio.create_task(one_after_another())
        await asyncio.sleep(0)
        await asyncio.gather(first, another())
        return said

    assert await order(3600.0) == ["alone", "alone", "alone", "another"]
    assert await order(0.0) == ["alone", "another", "alone", "alone"]


@pytest.mark.parametrize(
    ("seen", "held", "expected"),
    [
        (True, 0, (False, 1)),
        (True, MOST_HELD - 1, (False, MOST_HELD)),
        (True, MOST_HELD, (True, MOST_HELD)),
        (False, 0, (True, 0)),
    ],
)
async def test_what_a_process_only_held_runs_with_the_others_where_its_death_was_seen(
    tmp_path: Path,
    seen: bool,  # noqa: FBT001
    held: int,
    expected: tuple[bool, int],
) -> None:
    """Not where nobody saw it, nor when that happened too often."""
    simulated = await SimulatedEndpoint(ScriptedHandlers(_nothing)).open()
    message = Message(id="1", source="test", type="order", body=b"{}")
    await simulated.ports.transport.send([Send(message=message, to="shop", held=held)])
    taken = await simulated.transport.receive(1, 0.05)
    await simulated.bury_the_dead()
    sends: list[Send] = []

    class WritesCopiesDown:
        def around(self, call: PortCall) -> AbstractAsyncContextManager[None]:
            if call.point is Point.RETRY_COPY:
                sends.extend(call.items)
            return nullcontext()

    with SharedCounters.create(tmp_path / "board", 1) as counters:
        counters.row(0).died(seen=seen)
        stop = asyncio.Event()
        ports = observed(simulated.ports._replace(run_markers=MemoryRunMarkers(Live(), "shop")), WritesCopiesDown())
        worker = Worker(
            ports, WorkerSettings(wait=0.05, grace=5.0), environment=simulated.environment, counters=counters.row(0)
        )
        working = asyncio.create_task(worker.run(stop))
        await simulated.settled()
        stop.set()
        await working
    assert len(taken) == 1
    assert [(send.alone, send.held) for send in sends] == [expected]


async def test_a_dead_letter_that_is_sent_again_is_marked_with_no_deaths(tmp_path: Path) -> None:
    """In a worker that marked it before with the count it had then: its next death would be its last."""
    message = Message(id="1", source="test", type="order", body=b"{}")
    marked: list[int] = []
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        row = counters.row(0)

        async def script(_message: Message, _resources: Resources) -> None:
            marked.append(row.get(Column.COUNTED))
            if len(marked) == 1:
                raise failing("rejected", FailureKind.REJECTED)

        simulated = await SimulatedEndpoint(ScriptedHandlers(script)).open()
        stop = asyncio.Event()
        worker = Worker(simulated.ports, WorkerSettings(wait=0.05, grace=5.0), environment=simulated.environment, counters=row)
        worker._loops = worker._loops[:1]  # both deliveries come to the same one
        working = asyncio.create_task(worker.run(stop))
        for attempts in (7, 0):
            await simulated.transport.send([Send(message=message, to="shop", attempts=attempts)])
            await simulated.settled()
        stop.set()
        await working
    assert marked == [7, 0]


async def _nothing(_message: Message, _resources: Resources) -> None:
    """Do nothing."""


async def test_a_record_is_removed_however_long_that_takes() -> None:
    """An outage that keeps it there would be counted as a death."""
    run_markers, membership = Unsteady(Live(), "shop", lasts=3600), GateMember()
    mine = alone(run_markers, membership)
    assert await mine.begin(MESSAGE, 0) == BEGUN
    assert membership.is_alone
    await mine.finish(MESSAGE)
    assert not membership.is_alone
    assert await alone(run_markers).begin(MESSAGE, 0) == BEGUN


async def test_what_a_bug_left_open_is_closed() -> None:
    """Before its delivery is given back."""
    run_markers, membership = MemoryRunMarkers(Live(), "shop", lasts=3600), GateMember()
    mine = alone(run_markers, membership)
    await mine.begin(MESSAGE, 0)
    await mine.close()
    assert not membership.is_alone
    assert await alone(run_markers).begin(MESSAGE, 0) == BEGUN


async def test_a_death_that_the_supervisor_saw_needs_no_wait(tmp_path: Path) -> None:
    """And it is counted once, although the record is there as well."""
    run_markers = MemoryRunMarkers(Live(), "shop", lasts=3600)
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        assert await run_markers.begin(MESSAGE, 0) == BEGUN
        row = counters.row(0)
        row.enter(claim_key("shop", MESSAGE), 0)
        assert row.died(seen=True)
        membership = GateMember()
        assert await alone(run_markers, membership, counters).begin(MESSAGE, 0) == StartResult(died=0)
        assert not membership.is_alone
        assert await alone(run_markers, counters=counters).begin(MESSAGE, 1) == BEGUN


@pytest.mark.parametrize("at", ["before the handler", "in the handler", "after the handler"])
@pytest.mark.parametrize("killed", [False, True], ids=["died", "killed"])
async def test_no_record_of_a_run_alone_is_waited_for_after_a_death_that_was_seen(
    tmp_path: Path,
    at: str,
    killed: bool,  # noqa: FBT001
) -> None:
    """Wherever in the run it died. Of a process that the supervisor killed nothing is counted."""
    run_markers = MemoryRunMarkers(Live(), "shop", lasts=3600)
    with SharedCounters.create(tmp_path / "board", 2) as counters:
        row, membership = counters.row(0), GateMember()
        assert await alone(run_markers, membership, counters).begin(MESSAGE, 1) == BEGUN
        handlers = LoopHandlers(ScriptedHandlers(), 60.0, NoWait(), endpoint="shop", row=row, membership=membership)

        async def handle() -> None:
            if at == "in the handler":
                assert row.get(Column.RUNNING) == 1
                row.died(seen=True, blames=not killed)

        if at == "before the handler":
            row.died(seen=True, blames=not killed)
        await handlers._mark([Message(id=MESSAGE.id, source=MESSAGE.source, type="order", body=b"{}")], handle)
        if at == "after the handler":
            row.died(seen=True, blames=not killed)
        membership.reopen()
        found = await alone(run_markers, counters=counters).begin(MESSAGE, 1)
        assert found == (BEGUN if killed else StartResult(died=1))


async def test_a_run_alone_leaves_no_mark(tmp_path: Path) -> None:
    """However it ends: also where another run is found."""
    run_markers = MemoryRunMarkers(Live(), "shop", lasts=3600)
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        row, membership = counters.row(0), GateMember()
        mine = alone(run_markers, membership, counters)
        await mine.begin(MESSAGE, 0)
        assert (row.get(Column.RUNNING), row.get(Column.ALONE), membership.is_marked) == (1, 1, True)
        await mine.finish(MESSAGE)
        assert (row.get(Column.RUNNING), row.get(Column.ALONE), membership.is_marked) == (0, 0, False)
        await run_markers.begin(MESSAGE, 0)
        assert (await mine.begin(MESSAGE, 0)).wait
        assert (row.get(Column.RUNNING), row.get(Column.LOW), membership.is_marked) == (0, 0, False)


class Away(MemoryRunMarkers):
    """Removes nothing."""

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Fail."""
        raise CommitFailed("connection refused")


async def test_a_killed_run_is_found_again_when_its_record_could_not_be_removed(tmp_path: Path) -> None:
    """Otherwise the next attempt would wait for it, and count it."""
    world = Live()
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        row = counters.row(0)
        membership = GateMember()
        await alone(MemoryRunMarkers(world, "shop", lasts=3600), membership, counters).begin(MESSAGE, 0)
        assert not row.died(seen=True, blames=False)
        membership.reopen()  # with the process
        away = alone(Away(world, "shop"), counters=counters)
        with pytest.raises(CommitFailed):
            await away.begin(MESSAGE, 0)
        await away.finish(MESSAGE)
        assert await alone(MemoryRunMarkers(world, "shop"), counters=counters).begin(MESSAGE, 0) == BEGUN


@pytest.mark.parametrize("asks", ["find_dead", "begin"])
async def test_a_death_is_found_again_when_its_record_could_not_be_removed(tmp_path: Path, asks: str) -> None:
    """So are those of other messages that were asked for at the same time."""
    other, world = Identity("upstream", "other"), Live()
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        row = counters.row(0)
        for identity in (other, MESSAGE):
            row.enter(claim_key("shop", identity), 1)
            assert row.died(seen=True)

        class AwayForOne(Away):
            async def forget(self, identity: Identity, attempts: int) -> None:
                if identity == MESSAGE:
                    await super().forget(identity, attempts)

        away = alone(AwayForOne(world, "shop"), counters=counters)
        with pytest.raises(CommitFailed):
            await (away.find_dead([other, MESSAGE]) if asks == "find_dead" else away.begin(MESSAGE, 0))
        found = await alone(MemoryRunMarkers(world, "shop"), counters=counters).find_dead([other, MESSAGE])
        assert found.counted == {other: 1, MESSAGE: 1}


async def test_no_copy_waits_for_the_record_of_a_death_that_an_older_copy_has_counted(tmp_path: Path) -> None:
    """A copy whose process died comes again after its original, which was not acknowledged."""
    run_markers = MemoryRunMarkers(Live(), "shop", lasts=3600)
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        membership = GateMember()
        assert await alone(run_markers, membership, counters).begin(MESSAGE, 1) == BEGUN
        assert counters.row(0).died(seen=True)
        membership.reopen()  # with the process
        assert (await alone(run_markers, counters=counters).find_dead([MESSAGE])).counted == {MESSAGE: 1}
        assert await alone(run_markers, counters=counters).begin(MESSAGE, 1) == BEGUN


@pytest.mark.parametrize("asks", ["find_dead", "begin"])
async def test_who_receives_a_message_again_waits_for_the_record_of_the_death(tmp_path: Path, asks: str) -> None:
    """A broker may be faster than the supervisor."""

    class Supervisor(NoWait):
        """Records the death while the other process waits."""

        async def sleep(self, seconds: float) -> None:
            assert counters.row(0).died(seen=True)

    run_markers = MemoryRunMarkers(Live(), "shop", lasts=3600)
    with SharedCounters.create(tmp_path / "board", 2) as counters:
        counters.row(0).set(Column.ALIVE, 1)  # and no process holds its lock
        counters.row(0).enter(claim_key("shop", MESSAGE), 0)
        environment = LIVE._replace(timer=Supervisor())
        mine = IsolatedRuns(run_markers, GateMember(), endpoint="shop", environment=environment, row=counters.row(1))
        if asks == "find_dead":
            assert await mine.find_dead([MESSAGE]) == DeadRuns(counted={MESSAGE: 0}, explained=True)
        else:
            assert await mine.begin(MESSAGE, 0) == StartResult(died=0)


async def test_a_supervisor_that_records_nothing_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """It may have died as well."""
    with SharedCounters.create(tmp_path / "board", 2) as counters:
        counters.row(1).set(Column.ALIVE, 1)
        assert await alone(MemoryRunMarkers(Live(), "shop"), counters=counters).find_dead([MESSAGE]) == NO_DEATHS


async def test_a_dead_letter_that_is_sent_again_runs_alone_with_no_deaths(tmp_path: Path) -> None:
    """The death that it was given up for was seen by the supervisor; the record of that run is not found as another one."""
    run_markers = MemoryRunMarkers(Live(), "shop", lasts=0)
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        assert await run_markers.begin(MESSAGE, 2) == BEGUN
        row = counters.row(0)
        row.enter(claim_key("shop", MESSAGE), 2)
        assert row.died(seen=True)
        assert await alone(run_markers, counters=counters).begin(MESSAGE, 2) == StartResult(died=2)
        assert await alone(run_markers, counters=counters).begin(MESSAGE, 0) == BEGUN


async def test_a_suspect_of_a_first_run_is_counted_by_the_board_alone(tmp_path: Path) -> None:
    """Without one nothing is known."""
    run_markers = MemoryRunMarkers(Live(), "shop")
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        row = counters.row(0)
        row.enter(claim_key("shop", MESSAGE), 4)
        row.died(seen=True)
        assert await alone(run_markers, counters=counters).find_dead([MESSAGE, Identity("upstream", "other")]) == DeadRuns(
            counted={MESSAGE: 4}, explained=True
        )
        assert await alone(run_markers, counters=counters).find_dead([MESSAGE]) == DeadRuns(explained=True)
    assert await alone(run_markers).find_dead([MESSAGE]) == NO_DEATHS
