"""`onceonly janitor`: run the clean-up tasks once, for a timer of your own, or with `--loop` until it is stopped."""

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from onceonly.cli.commands import JsonOption, LogFormat, LogLevel, LogLevelOption, StoreOption, TransportOption
from onceonly.cli.output import NEGATIVE, say, show_json, show_table

if TYPE_CHECKING:
    import asyncio
    from contextlib import AbstractAsyncContextManager

    from onceonly.config.endpoint import Settings
    from onceonly.endpoint import Endpoint
    from onceonly.model.maintenance_journal import TaskRun
    from onceonly.ports.bundle import Ports


class MaintenanceRound(Struct, frozen=True, kw_only=True):
    """What one round for one endpoint did: "done", "failed", "busy" (another process is running it) or "nothing to do"."""

    endpoint: str
    state: str
    tasks: "dict[str, TaskRun]" = {}
    troubles: tuple[str, ...] = ()


def janitor(  # noqa: PLR0913 - one parameter for each option
    endpoints: Annotated[list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.")],
    *,
    loop: Annotated[
        bool, typer.Option("--loop", help="Run until SIGTERM or Ctrl-C, and do each task whenever it is due.")
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="With --loop, log as text, or as one JSON object for each line.")
    ] = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run all clean-up tasks now, even if they are not due. `onceonly run` and `onceonly relay` run them automatically.

    Runs no handlers, and declares no queue. Endpoints with `janitor=False` are cleaned up, too. Exits with code 1 if a task
    failed, a time bucket is late, or another process is running the tasks. With --loop, it waits for servers that do not
    answer, and exits with code 0 when it is stopped.
    """
    import asyncio

    from onceonly.cli.targets import UrlOverrides, load_all

    instead = UrlOverrides(store, transport)
    if loop:
        from onceonly.runtime.observe.logs import log_to_stderr
        from onceonly.runtime.processes.child import run_here

        log_to_stderr(json_lines=log_format is LogFormat.JSON, level=log_level)
        found = [(endpoint, instead.settings(endpoint)) for endpoint in load_all(endpoints)]
        run_here(lambda stop: _loop_all(found, stop))
        return
    rounds = asyncio.run(_run_all([(endpoint, instead.settings(endpoint)) for endpoint in load_all(endpoints)]))
    if as_json:
        show_json(rounds)
    else:
        for each in rounds:
            rows = [(name, done.count, done.took / 1000, done.reason or "done") for name, done in each.tasks.items()]
            if rows:
                show_table(f"{each.endpoint}: {each.state}", ("task", "count", "seconds", "result"), rows)
            else:
                say(f"{each.endpoint}: {each.state}")
            for trouble in each.troubles:
                say(f"warning: {each.endpoint}: {trouble}")
    if any(each.state in {"failed", "busy"} or each.troubles for each in rounds):
        raise typer.Exit(NEGATIVE)


async def _run_all(found: "list[tuple[Endpoint, Settings]]") -> list[MaintenanceRound]:
    return [await _run_tasks(endpoint, settings) for endpoint, settings in found]


async def _run_tasks(endpoint: "Endpoint", settings: "Settings") -> MaintenanceRound:
    from onceonly.cli.targets import ANY_TIME, connection_errors
    from onceonly.runtime.maintenance.loop import MaintenanceLoop

    async with connection_errors("store", settings.store, ANY_TIME), _opened(endpoint, settings) as ports:
        if not ports.maintenance.has_tasks:
            return MaintenanceRound(endpoint=endpoint.name, state="nothing to do")
        journal = await MaintenanceLoop(ports, grace=settings.worker.grace).clean_up()
    if journal is None:
        return MaintenanceRound(endpoint=endpoint.name, state="busy")
    troubles = tuple(f"{trouble.part}: {trouble.reason}" for trouble in journal.troubles(journal.at))
    state = "failed" if journal.is_failing() else "done"
    return MaintenanceRound(endpoint=endpoint.name, state=state, tasks=journal.tasks, troubles=troubles)


async def _loop_all(found: "list[tuple[Endpoint, Settings]]", stop: "asyncio.Event") -> None:
    """Maintain all of them. None of them waits for a server that another one needs."""
    from onceonly.runtime.worker.worker import side_by_side

    await side_by_side([_loop(endpoint, settings, stop) for endpoint, settings in found])


async def _loop(endpoint: "Endpoint", settings: "Settings", stop: "asyncio.Event") -> None:
    from contextlib import AsyncExitStack
    from functools import partial

    from onceonly.runtime.maintenance.loop import MaintenanceLoop
    from onceonly.runtime.worker.startup import StartupWait

    async with AsyncExitStack() as stack:
        ports = await StartupWait(stop, endpoint=settings.name).enter(stack, partial(_opened, endpoint, settings))
        if ports is None:
            return
        if not ports.maintenance.has_tasks:
            say(f"{endpoint.name}: nothing to do")
            return
        ports = ports._replace(maintenance=ports.maintenance._replace(leads=True))
        await MaintenanceLoop(ports, grace=settings.worker.grace).run(stop)


def _opened(endpoint: "Endpoint", settings: "Settings") -> "AbstractAsyncContextManager[Ports]":
    from onceonly.assembly import open_finishing
    from onceonly.endpoint.host import host_of
    from onceonly.runtime.observe.logs import Logs

    return open_finishing(settings, entities=host_of(endpoint).works_on_entities(), observer=Logs())
