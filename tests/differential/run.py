"""One event loop with one open database, for tests that Hypothesis calls again and again."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.differential.comparison import Bench, Counts
from tests.differential.programs import Program, programs
from tests.differential.world import open_world


class Runner:
    """A database that is opened for a while."""

    bench: Bench

    def __init__(self, name: str, url: str, counts: Counts | None = None, *, fresh: bool = False) -> None:
        self.name, self._url, self._counts, self._fresh = name, url, counts, fresh
        self._loop = asyncio.Runner()
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self.run(self._open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.run(self._stack.aclose())
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine."""
        return self._loop.run(work)

    async def _open(self) -> None:
        world = await self._stack.enter_async_context(open_world(self.name, self._url, fresh=self._fresh))
        self.bench = Bench(world, self._counts)

    def check(self, program: Program) -> None:
        """Fail for a program that does not do the same on both sides."""
        found = self.run(self.bench.differences(program))
        assert not found, "\n".join((f"on {self.name}, {program!r} differs:", *found))

    def check_many(self, count: int, number: int | None = None) -> None:
        """Check random programs: always the same, or those of a number."""
        chosen = settings(
            max_examples=count,
            derandomize=number is None,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        test: Callable[[], None] = given(programs(self.name))(self._check_one())
        (chosen(test) if number is None else seed(number)(chosen(test)))()

    def _check_one(self) -> Callable[[Program], None]:
        def check(program: Program) -> None:
            self.check(program)

        return check
