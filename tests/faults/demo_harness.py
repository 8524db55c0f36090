"""The demo with a fault of its own: something happens to a server when a third of the flights are through."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg
import msgspec

from onceonly_demo.flights import load
from onceonly_demo.options import DemoOptions
from onceonly_demo.run import Result, run
from onceonly_demo.view import MUST_BE_ZERO, ViewState

PATIENCE = 60.0


class OnTheWay:
    """Looks at every scene of a run, and calls when a third of the flights are on the wire."""

    def __init__(self, flights: int) -> None:
        self._flights = flights
        self.reached = asyncio.Event()

    def show(self, scene: ViewState) -> None:
        """Look at one moment."""
        if 3 * scene.sunk >= self._flights:
            self.reached.set()


async def demo(options: DemoOptions, fault: Callable[[], Awaitable[None]]) -> Result:
    """Run the demo, and let `fault` happen when a third of it is done."""
    on_the_way = OnTheWay(options.flights)
    running = asyncio.create_task(run(load(options.flights), options, on_the_way.show))
    reached = asyncio.create_task(on_the_way.reached.wait())
    try:
        await asyncio.wait([running, reached], return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.result()
        await fault()
        return await running
    finally:
        for task in (running, reached):
            task.cancel()
        await asyncio.gather(running, reached, return_exceptions=True)


def exactly_once(result: Result, options: DemoOptions) -> None:
    """Make sure that the audit found nothing, and that there was something to find."""
    numbers = result.numbers()
    assert {name: numbers[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0), msgspec.json.encode(numbers)
    assert (result.findings.effects, result.kills) == (options.flights, options.kills)


async def seconds_until_more_is_handled(store: str) -> float:
    """Tell how long it takes until a handler's work is committed that was not yet when this was called."""
    since = time.monotonic()
    connection = await asyncpg.connect(store)
    try:
        table = await connection.fetchval(
            "SELECT table_name FROM information_schema.tables WHERE table_name ~ '^demo_.*_journal$'"
        )
        before = await connection.fetchval(f"SELECT count(*) FROM {table}")  # noqa: S608 - the demo's own table
        more = f"SELECT count(*) > {before} FROM {table}, pg_sleep(0.01)"  # noqa: S608 - the same; the server is not kept busy
        async with asyncio.timeout(PATIENCE):
            while not await connection.fetchval(more):
                pass
    finally:
        await connection.close()
    return time.monotonic() - since
