"""Memory: adapters as pure functions over immutable worlds, and the driver that runs them live.

An adapter describes each of its calls as an `PortOperation`: a pure function from (part of the world, arguments) to (that part
afterwards, outcome). A driver decides what becomes of it. `Live` applies it at once; the model checker has a driver of its
own, which hands the operation to the search instead. So what is checked is what runs.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, NamedTuple, Protocol

Step = tuple[Any, Hashable]
"""A part of the world after an operation, and the operation's outcome."""


class WorldPart(NamedTuple):
    """One part of the world: its name, and its initial value."""

    name: str
    empty: Hashable


class Raises(NamedTuple):
    """The outcome of an operation that raises: `kind(argument)`, kept as data because outcomes are compared and hashed."""

    kind: type[Exception]
    argument: Any

    def error(self) -> Exception:
        return self.kind(self.argument)


class PortOperation(NamedTuple):
    """One port call. `function(part, *arguments)` gives a `Step`, or None while the operation has to wait.

    With `many`, the first argument is a tuple of items that take effect separately: after a crash or an OutcomeUnknown any
    subset of them may have been applied.
    """

    point: str
    place: WorldPart
    function: Callable[..., Step | None]
    arguments: tuple[Any, ...]
    many: bool = False


class WorldDriver(Protocol):
    """What carries out the operations of memory adapters."""

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        """Carry it out, waiting until it can be; gives or raises its outcome. TimeoutError after `patience` seconds."""

    def at_once(self, operation: PortOperation) -> Any:
        """Carry out an operation that never waits, without awaiting."""

    def token(self) -> Hashable:
        """Return a name never given before, for a unit of work."""


class WallClock:
    """The clock of this machine."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000


class Live:
    """One world, in this process and for one event loop at a time; operations apply at once, one after another."""

    def __init__(self) -> None:
        self._world: dict[str, Any] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._tokens = count(1)

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        """Yield to other tasks, as a call over a wire does, then apply. Cancelled before that, nothing happened."""
        await asyncio.sleep(0)
        async with asyncio.timeout(patience):
            while (step := self._step(operation)) is None:
                await self._change()
        return self._outcome(operation, step)

    def at_once(self, operation: PortOperation) -> Any:
        step = self._step(operation)
        if step is None:
            raise RuntimeError(f"operation {operation.point} must wait, but was called without await")
        return self._outcome(operation, step)

    def token(self) -> Hashable:
        return next(self._tokens)

    def part(self, place: WorldPart) -> Any:
        """Show one part of the world as it is now."""
        return self._world.get(place.name, place.empty)

    def _step(self, operation: PortOperation) -> Step | None:
        return operation.function(self.part(operation.place), *operation.arguments)

    def _outcome(self, operation: PortOperation, step: Step) -> Any:
        self._world[operation.place.name], outcome = step
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
        if isinstance(outcome, Raises):
            raise outcome.error()
        return outcome

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
