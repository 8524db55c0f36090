"""A bad message does not run its neighbours twice: after a failure, units undo each failed handler alone from the start."""

from collections import Counter
from collections.abc import Sequence

import pytest

from onceonly.adapters.memory.store import MemoryStore
from onceonly.algorithms.settlement import BatchReport
from onceonly.config.worker import WorkerSettings
from onceonly.model.message import FailureKind, Message, Send
from onceonly.ports.store import Resources, Unit
from onceonly.runtime.worker.backpressure import BATCHES, RecentFailures
from onceonly.runtime.worker.handlers import LoopHandlers
from tests.runtime.harness import SHOP, ScriptedHandlers, SimulatedEndpoint, failing

COUNT, BATCH, EVERY = 2000, 20, 100
SETTINGS = WorkerSettings(batch_size=BATCH, wait=0.05)


class StoreThatNotes(MemoryStore):
    """Notes which units were isolated."""

    def __init__(self, store: MemoryStore) -> None:
        self.__dict__.update(vars(store))
        self.isolated: list[bool] = []

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Note it."""
        self.isolated.append(isolated)
        return await super().begin(messages, isolated=isolated)


async def handle_with_bad_ones(kind: FailureKind, times: int = 2) -> tuple[SimulatedEndpoint, Counter[str], set[str]]:
    """Have a worker handle messages of which 1 % fail, each so many times; gives all runs, and the bad ones."""
    names = [f"m{number:04}" for number in range(COUNT)]
    bad = {name for number, name in enumerate(names) if number % EVERY == EVERY // 2}

    def script(message: Message, _resources: Resources) -> None:
        if message.id in bad and simulated.handlers.started.count(message.id) <= times:
            raise failing("no such order", kind)

    simulated = SimulatedEndpoint(ScriptedHandlers(script))
    await simulated.open(*names)
    await simulated.work(SETTINGS)
    return simulated, Counter(simulated.handlers.started), bad


@pytest.mark.parametrize("kind", [FailureKind.EXCEPTION, FailureKind.REJECTED])
async def test_one_percent_of_bad_messages_runs_few_of_the_others_twice(kind: FailureKind) -> None:
    """Fewer than 2 % of the good ones: those before the first failure, in its batch."""
    simulated, runs, bad = await handle_with_bad_ones(kind)
    good = {name: times for name, times in runs.items() if name not in bad}
    again = sum(times > 1 for times in good.values())
    assert (len(good), max(good.values())) == (COUNT - len(bad), 2)
    assert 0 < again < BATCH
    assert again / len(good) < 0.02
    handled = sorted(good) if kind is FailureKind.REJECTED else sorted(runs)
    assert simulated.announced() == simulated.noted() == handled


async def test_a_handler_that_fails_once_and_works_when_its_unit_runs_again_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is in the report, and every batch with such a message would run twice. The control does not count it."""
    again = []
    for counts in (True, False):
        if not counts:
            monkeypatch.setattr(LoopHandlers, "failed", property(lambda _: 0, lambda *_: None), raising=False)
        _, runs, bad = await handle_with_bad_ones(FailureKind.EXCEPTION, times=1)
        again.append(sum(times > 1 for name, times in runs.items() if name not in bad) / COUNT)
    assert 0 < again[0] < 0.02
    assert again[1] > 0.08


async def test_without_isolation_from_the_start_many_of_the_others_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control run: the same messages, and a worker that does not learn from failures."""
    monkeypatch.setattr(RecentFailures, "__bool__", lambda _: False)
    _, runs, bad = await handle_with_bad_ones(FailureKind.REJECTED)
    assert sum(times > 1 for name, times in runs.items() if name not in bad) > 0.08 * COUNT


async def test_a_batch_with_a_message_that_failed_before_is_isolated() -> None:
    """However long ago that was, and whichever process saw it."""
    simulated = SimulatedEndpoint()
    store = StoreThatNotes(simulated.store)
    simulated.ports = simulated.ports._replace(store=store)
    await simulated.open("a")
    failed = Message(id="failed", source="test", type="order", body=b"{}")
    await simulated.transport.send([Send(message=failed, to=SHOP, attempts=1)])
    await simulated.work(SETTINGS)
    await simulated.send("b", "c")
    await simulated.work(SETTINGS)
    assert store.isolated == [True, False]


async def test_a_unit_of_one_is_never_isolated() -> None:
    """There is nobody else whose work could be lost."""

    def script(_message: Message, _resources: Resources) -> None:
        raise failing("no such order", FailureKind.REJECTED)

    simulated = SimulatedEndpoint(ScriptedHandlers(script))
    store = StoreThatNotes(simulated.store)
    simulated.ports = simulated.ports._replace(store=store)
    await simulated.open("a", "b", "c")
    await simulated.work(WorkerSettings(batch_size=1, wait=0.05))
    assert store.isolated == [False] * 3


def test_failures_are_recent_for_ten_full_batches() -> None:
    """A new failure starts the count again."""
    recent = RecentFailures(BATCH)
    assert not recent
    for _ in range(2):
        recent.after(BatchReport(failed=1), BATCH)
        for _ in range(BATCHES - 1):
            recent.after(BatchReport(handled=BATCH), BATCH)
            assert recent
    recent.after(BatchReport(handled=BATCH), BATCH)
    assert not recent
