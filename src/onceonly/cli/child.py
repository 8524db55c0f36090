"""What runs in each process of `onceonly run`: the endpoints, named by a plan that crosses to the child as plain data."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace

import msgspec
from msgspec import Struct

from onceonly.cli.loading import load_all
from onceonly.cli.output import SETUP, complain
from onceonly.cli.places import Instead
from onceonly.endpoint import Endpoint
from onceonly.model.errors import SetupError, TryAgain
from onceonly.runtime.board import Row
from onceonly.runtime.child import run_child
from onceonly.runtime.logs import Logs, log_to_stderr
from onceonly.runtime.observer import Observer
from onceonly.runtime.worker import Runner, run_all
from onceonly.wiring import open_dead_letters, open_store, open_transport, shown, wire
from onceonly.wiring.settings import Settings


class Plan(Struct, frozen=True, kw_only=True):
    """What to run, and how: the endpoints' names and everything that the command line says instead of them."""

    names: tuple[str, ...]
    concurrency: int | None = None
    store: str | None = None
    transport: str | None = None
    json_logs: bool = False

    def load(self) -> list[tuple[Endpoint, Settings]]:
        """Import the endpoints, and give each with its settings. Raises SetupError."""
        instead = Instead(self.store, self.transport)
        return [(endpoint, self._settings(instead.settings(endpoint))) for endpoint in load_all(self.names)]

    def _settings(self, settings: Settings) -> Settings:
        if self.concurrency is None:
            return settings
        return replace(settings, worker=msgspec.structs.replace(settings.worker, concurrency=self.concurrency))


async def check(loaded: Sequence[tuple[Endpoint, Settings]]) -> None:
    """Open and close everything once, without running anything of the user's. Raises SetupError, which names the place."""
    for endpoint, settings in loaded:
        for role, setting, opening in _openings(settings):
            with _named(endpoint.name, role, setting):
                async with opening:
                    pass
        topology = endpoint.topology()
        with _named(endpoint.name, "transport", settings.transport):  # all that is left to do is to declare the queue
            async with wire(settings, lambda _: endpoint.handlers(settings=settings), events=topology.events):  # noqa: B023 - called at once
                pass


def _openings(settings: Settings) -> Iterator[tuple[str, object, AbstractAsyncContextManager[object]]]:
    yield "store", settings.store, open_store(settings)
    if settings.dead_letters is not None:
        yield "dead_letters", settings.dead_letters, open_dead_letters(settings.dead_letters)
    yield "transport", settings.transport, open_transport(settings.transport, settings.name)


@contextmanager
def _named(endpoint: str, role: str, setting: object) -> Iterator[None]:
    """Say of a place that cannot be used whose it is, and which."""
    try:
        yield
    except TryAgain as error:
        raise SetupError(f"endpoint {endpoint!r} cannot use its {role} {shown(setting)}: {error}") from error


def work(index: int, board_path: str, plan: Plan) -> None:
    """Run in a child of the Supervisor, until it is told to stop."""
    log_to_stderr(json_lines=plan.json_logs)
    try:
        loaded = plan.load()

        async def main(stop: asyncio.Event, row: Row) -> None:
            async with opened(loaded, row, Logs()) as runners:
                await run_all(runners, stop)

        run_child(index, board_path, main)
    except SetupError as error:
        complain(str(error))
        sys.exit(SETUP)
    except Exception:  # the supervisor replaces this process; what ended it is for the log
        logging.getLogger("onceonly").exception("the process cannot go on")
        sys.exit(1)


@asynccontextmanager
async def opened(loaded: Sequence[tuple[Endpoint, Settings]], row: Row, observer: Observer) -> AsyncIterator[list[Runner]]:
    """Open endpoints side by side, and give a worker and a relay for each, ready to run."""
    async with AsyncExitStack() as stack:
        runners: list[Runner] = []
        for endpoint, settings in loaded:
            ports = await stack.enter_async_context(endpoint.opened(settings=settings, observer=observer))
            runners += endpoint.runners(ports, settings, board=row)
        yield runners
