"""A counterexample replayed for real: its programs are tasks on an asyncio event loop, each port call granted in its order.

The search steps coroutines by hand and remembers what it saw. Here nothing is remembered: the memory adapters are called
anew, and a worker whose process dies is a task that is cancelled.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from onceonly.adapters.memory.world import PortOperation, Raises
from onceonly.model.message import Delivery
from onceonly_verify.driver import Call, CheckerDriver, HandlerChoice
from onceonly_verify.explorer import ExploredStep
from onceonly_verify.histories import Counterexample, Diverged, final, follow, opening_of, same
from onceonly_verify.simulation import Simulation
from onceonly_verify.step_limit import STEP_LIMIT, EndlessStep
from onceonly_verify.world_player import InitialState

Tell = Callable[[int, ExploredStep], None]
"""Called with each step that happened, and its number, counted from 1."""


class ReplayResult(Struct, frozen=True, kw_only=True):
    """What a replay came to: `violation` is what is wrong at its end, `diverged` is why it stopped, or empty."""

    expected: str
    steps: int
    violation: str = ""
    diverged: str = ""

    @property
    def reproduced(self) -> bool:
        """Return whether it ends badly, in the same way or in another."""
        return bool(self.violation)

    @property
    def is_the_same(self) -> bool:
        """Return whether it ends in the very violation that was saved."""
        return same(self.violation, self.expected)


async def replay(history: Counterexample, tell: Tell | None = None) -> ReplayResult:
    """Replay a history on the running event loop. Raises SetupError when its check or its mutant is gone."""
    simulation = Simulation(opening_of(history), Task)
    with STEP_LIMIT.enforced():
        return await _replayed(simulation, history, tell)


async def _replayed(simulation: Simulation, history: Counterexample, tell: Tell | None) -> ReplayResult:
    done = 0
    try:
        for at, line in enumerate(history.steps):
            option, ends, _ = await follow(simulation, line, at)
            done += 1
            if tell:
                tell(done, simulation.player.step(option, ends))
        return ReplayResult(expected=history.violation, steps=done, violation=await final(simulation, history.violation))
    except Diverged as diverged:
        return ReplayResult(expected=history.violation, steps=done, violation=simulation.violation(), diverged=str(diverged))
    finally:
        await simulation.close()


class GrantingDriver(CheckerDriver):
    """A driver for one task: every call waits, as one over a wire does, until the replay grants it an outcome."""

    def __init__(self, name: Any) -> None:
        super().__init__(name)
        self.call: Call | None = None
        self.waits = asyncio.Event()
        self.is_dead = False
        self._granted: asyncio.Future[Any] | None = None

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        return await self._ask(operation)

    async def choose(self, name: str, run: tuple[bytes, int] | None = (b"", 0)) -> Any:
        return await self._ask(HandlerChoice(name, run))

    def grant(self, outcome: Any) -> None:
        """Let the task go on with this outcome."""
        if self._granted is None:
            raise RuntimeError("nobody asked")
        self.call, granted = None, self._granted
        self.waits.clear()
        granted.set_result(outcome)

    async def _ask(self, call: Call) -> Any:
        if self.is_dead:
            raise asyncio.CancelledError  # a dead process makes no call
        self.call = call
        self._granted = asyncio.get_running_loop().create_future()
        self.waits.set()
        outcome = await self._granted
        if isinstance(outcome, Raises):
            self.has_failed = True
            raise outcome.error()
        return outcome


class Task:
    """A run that is a task of the event loop."""

    def __init__(self, opening: InitialState, batch: tuple[Delivery, ...]) -> None:
        """Prepare a task for a batch; it starts when it is resumed for the first time."""
        self.batch = batch
        self.call: Call | None = None
        self.escaped: BaseException | None = None
        self._opening = opening
        self._driver = GrantingDriver(batch[0].receipt)
        self._task: asyncio.Task[Any] | None = None

    async def resume(self, outcome: Any, now: int) -> None:
        """Grant the outcome, and wait until the task makes its next call or is over."""
        driver = self._driver
        driver.now = now
        if self._task is None:
            self._task = asyncio.create_task(self._opening.cast.program(self.batch, driver))
            self._task.add_done_callback(lambda _: driver.waits.set())
        else:
            driver.grant(outcome)
        with suppress(EndlessStep), STEP_LIMIT:  # the task has it too
            await driver.waits.wait()
        self.call = driver.call
        if self._task.done():
            self.call, self.escaped = None, self._task.exception()

    async def kill(self) -> None:
        """Cancel the task, and wait for its end."""
        self._driver.is_dead = True
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    def marks(self) -> tuple[PortOperation, ...]:
        found = tuple(self._driver.marks)
        self._driver.marks.clear()
        return found
