"""Handlers that take batches, as a loop of a worker runs them: their time, their marks, and what observers are told."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from onceonly.adapters.memory.store import MemoryStore
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.delivery import deliver
from onceonly.model.errors import BudgetExceeded, HandlerFailed, HandlerStuck
from onceonly.model.identity import claim_key
from onceonly.model.message import Failure, FailureKind, Message
from onceonly.model.record import Decision
from onceonly.ports.store import Resources
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.observe.outcomes import MessageOutcome, OutcomeObserver
from onceonly.runtime.processes.counters import Column, SharedCounters
from onceonly.runtime.worker.handlers import LoopHandlers
from tests.runtime.harness import SHOP, HastyTimer, ScriptedHandlers, SimulatedEndpoint, failing

MESSAGES = [Message(id=name, source="web", type="t", body=b"") for name in "abc"]
KEYS = [claim_key(SHOP, message.identity) for message in MESSAGES]


class Batched(ScriptedHandlers):
    """All messages of a unit in one run, which follows the script for each."""

    def batches(self, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Put all of them together."""
        return [messages] if messages else []

    async def handle_batch(self, *arguments: object) -> Sequence[Decision]:
        """Handle one after another, within the savepoint of all."""
        messages: Sequence[Message] = arguments[0]  # type: ignore[assignment]
        resources: Resources = arguments[1]  # type: ignore[assignment]
        async with resources.attempt():
            return [await self.handle(message, resources) for message in messages]


async def resources() -> Resources:
    """Open a unit."""
    return (await MemoryStore(Live(), SHOP).begin([])).resources


async def test_a_death_is_counted_for_none_of_several(tmp_path: Path) -> None:
    """All are marked while the handler runs. So each runs alone next, and then the death is unambiguous."""
    with SharedCounters.create(tmp_path / "counters", 1) as counters:
        row, running = counters.row(0), asyncio.Event()

        async def script() -> None:
            running.set()
            await asyncio.Event().wait()

        handlers = LoopHandlers(Batched(lambda *_: script()), 10.0, HastyTimer(), endpoint=SHOP, row=row)
        task = asyncio.create_task(handlers.handle_batch(MESSAGES, await resources(), ["", "", ""], [None] * 3))
        await running.wait()
        assert row.get(Column.RUNNING) == 3
        assert not row.died(seen=True)
        assert [row.death_of(key) for key in KEYS] == [None] * 3
        assert not row.explains()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("size", [1, 3])
async def test_the_marks_end_with_the_handler(tmp_path: Path, size: int) -> None:
    """However it ends. One that is stuck is named only if it is alone."""
    with SharedCounters.create(tmp_path / "counters", 1) as counters:
        row = counters.row(0)

        def script(_message: Message, _: Resources) -> None:
            raise HandlerStuck("it does not end")

        handlers = LoopHandlers(Batched(script), 10.0, HastyTimer(), endpoint=SHOP, row=row)
        with pytest.raises(HandlerStuck):
            await handlers.handle_batch(MESSAGES[:size], await resources(), [""] * size, [None] * size)
        assert (row.get(Column.RUNNING), row.get(Column.LOW)) == (0, 0)
        assert row.get(Column.STUCK) == (size == 1)


async def test_a_batch_has_the_time_of_its_unit() -> None:
    """The first run always begins; a later one of the same unit is left for later."""
    timer, unit = HastyTimer(), await resources()
    handlers = LoopHandlers(Batched(), 1.0, timer, endpoint=SHOP)
    assert len(await handlers.handle_batch(MESSAGES[:2], unit, ["", ""], [None] * 2)) == 2
    timer.now = 1.0
    with pytest.raises(BudgetExceeded):
        await handlers.handle_batch(MESSAGES[1:], unit, ["", ""], [None] * 2)


class Told:
    """What an observer tells of runs and outcomes."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.outcomes: dict[str, tuple[str, str, int]] = {}

    def started(self, message: Message) -> None:
        """Note it."""
        self.runs.append(f"+{message.id}")

    def ended(self, message: Message, error: BaseException | None) -> None:
        """Note it."""
        self.runs.append(f"-{message.id}" if error is None else f"!{message.id}")

    def settled(self, outcome: MessageOutcome) -> None:
        """Note it."""
        assert outcome.message is not None
        self.outcomes[outcome.message.id] = (outcome.outcome.value, outcome.error, outcome.unit)
        assert outcome.ended_at >= outcome.started_at > 0

    def released(self, endpoint: str, message: Message) -> None:
        """Fail the test: nothing is released."""
        raise AssertionError(message.id)


async def told(handlers: ScriptedHandlers) -> Told:
    """Return what is told of one batch of three."""
    simulated = await SimulatedEndpoint(handlers).open("a", "b", "c")
    listener = Told()
    ports = observed(simulated.ports, OutcomeObserver(listener, runs=listener))
    await deliver(await ports.transport.receive(10, 0), ports, isolated=True)
    return listener


async def test_each_message_of_a_batch_has_a_run_and_an_outcome() -> None:
    """The first message's run is the innermost."""
    listener = await told(Batched())
    assert listener.runs == ["+c", "+b", "+a", "-a", "-b", "-c"]
    assert listener.outcomes == dict.fromkeys("abc", ("handled", "", 1))


async def test_a_batch_that_fails_is_an_error_of_those_that_failed_alone() -> None:
    """The others have none, since they ran again."""

    def script(message: Message, _: Resources) -> None:
        if message.id == "b":
            raise failing("bad")

    listener = await told(Batched(script))
    assert listener.runs[:6] == ["+c", "+b", "+a", "!a", "!b", "!c"]
    assert listener.outcomes == {"a": ("handled", "", 1), "b": ("retried", "exception", 1), "c": ("handled", "", 1)}


async def test_messages_that_are_set_aside_are_told_apart() -> None:
    """Only they have the error of the run."""
    failure = Failure(kind=FailureKind.REJECTED, reason="no")

    class SetsAside(Batched):
        async def handle_batch(self, *arguments: object) -> Sequence[Decision]:
            messages: Sequence[Message] = arguments[0]  # type: ignore[assignment]
            if len(messages) == 3:
                raise HandlerFailed(failure, by_message={messages[1].identity: failure})
            return await super().handle_batch(*arguments)

    listener = await told(SetsAside())
    assert listener.runs == ["+c", "+b", "+a", "-a", "!b", "-c", "+c", "+a", "-a", "-c"]
    assert listener.outcomes == {"a": ("handled", "", 1), "b": ("dead_letter", "rejected", 1), "c": ("handled", "", 1)}
