"""For every crash point: die there, start again, and the effects are there once."""

import asyncio
from collections.abc import Sequence

import pytest

from onceonly.adapters.memory.store import MemoryStore
from onceonly.model.errors import ConflictError, SetupError
from onceonly.model.message import FailureKind, Message
from onceonly.ports.dead_letters import Filter
from onceonly.ports.store import Resources, Unit
from onceonly.runtime.observe.crash import CRASH_POINTS, CrashAt, ProcessCrash
from onceonly.runtime.observe.observer import Point
from tests.runtime.harness import FAST, ScriptedHandlers, SimulatedEndpoint, failing


class StoreThatLosesOnce(MemoryStore):
    """Answers the first `begin` of one message with ConflictError, so that something is released."""

    lost = False

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Fail as the class says."""
        if not self.lost:
            self.lost = True
            raise ConflictError("another worker has it")
        return await super().begin(messages, isolated=isolated)


def a_house_where_everything_happens() -> SimulatedEndpoint:
    """One message is handled at once, one fails first, one is rejected, and the first unit loses a race."""

    def script(message: Message, _resources: Resources) -> None:
        if message.id == "fails-first" and "failed" not in seen:
            if handlers.started.count("fails-first") % 2 == 0:  # in its isolated pass, so the failure is counted
                seen.add("failed")
            raise failing("not yet")
        if message.id == "rejected":
            raise failing("no such order", FailureKind.REJECTED)

    seen: set[str] = set()
    handlers = ScriptedHandlers(script)
    simulated = SimulatedEndpoint(handlers)
    simulated.ports = simulated.ports._replace(store=StoreThatLosesOnce(simulated.driver, "shop", clock=simulated.clock))
    return simulated


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_effects_happen_once_whatever_the_crash_point(point: str) -> None:
    """Crash there once; a new worker finishes, and nothing is lost, doubled or left over."""
    simulated = await a_house_where_everything_happens().open("good", "fails-first", "rejected")
    trap = CrashAt(point)
    with pytest.raises(ProcessCrash, match=point):
        await simulated.worker(FAST, trap).run(asyncio.Event())
    await simulated.bury_the_dead()
    await simulated.work()
    assert trap.crashed
    assert simulated.noted() == ["fails-first", "good"]
    assert simulated.announced() == ["fails-first", "good"]
    assert await simulated.store.undispatched(2**62, 10) == ()
    letters = await simulated.letters.page(Filter())
    assert [(letter.message and letter.message.id, letter.reason) for letter in letters] == [("rejected", "no such order")]


def test_a_crash_point_that_does_not_exist_is_refused() -> None:
    """A misspelled trap would never go off, and a test with it would prove nothing."""
    with pytest.raises(SetupError, match="after-commit"):
        CrashAt("after-comit")


def test_every_crash_point_names_a_port_call() -> None:
    """And each tells what comes of it."""
    points = {name.split("-", 1)[1] for name in CRASH_POINTS}
    assert points <= set(Point)
    assert all(CRASH_POINTS.values())


async def test_a_trap_goes_off_at_the_time_it_was_set_for() -> None:
    """The third commit, and only that one."""
    simulated = await SimulatedEndpoint().open("a")
    trap = CrashAt("before-commit", after_times=3)
    for name in "bc":
        await simulated.work(also=[trap])
        await simulated.send(name)
    with pytest.raises(ProcessCrash):
        await simulated.work(also=[trap])
    assert simulated.noted() == ["a", "b"]
