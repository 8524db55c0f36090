"""`onceonly janitor`: run the clean-up tasks once, for a timer of your own where `janitor=False`."""

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from onceonly.cli.commands import JsonOption, StoreOption, TransportOption
from onceonly.cli.output import NEGATIVE, say, show_json, show_table

if TYPE_CHECKING:
    from onceonly.config.endpoint import Settings
    from onceonly.endpoint import Endpoint
    from onceonly.model.maintenance_journal import TaskRun


class MaintenanceRound(Struct, frozen=True, kw_only=True):
    """What one round for one endpoint did: "done", "failed", "busy" (another process is running it) or "nothing to do"."""

    endpoint: str
    state: str
    tasks: "dict[str, TaskRun]" = {}
    troubles: tuple[str, ...] = ()


def janitor(
    endpoints: Annotated[list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.")],
    *,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run all clean-up tasks now, even if they are not due. `onceonly run` runs them automatically.

    Exits with code 1 if a task failed, a time bucket is late, or another process is running the tasks.
    """
    import asyncio

    from onceonly.cli.targets import UrlOverrides, load_all

    instead = UrlOverrides(store, transport)
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
    from onceonly.cli.child import wiring_of
    from onceonly.cli.targets import ANY_TIME, connection_errors
    from onceonly.runtime.maintenance.loop import MaintenanceLoop
    from onceonly.runtime.observe.logs import Logs

    async with connection_errors("store", settings.store, ANY_TIME), wiring_of(endpoint, settings, Logs()) as ports:
        if not ports.maintenance.has_tasks:
            return MaintenanceRound(endpoint=endpoint.name, state="nothing to do")
        journal = await MaintenanceLoop(ports, grace=settings.worker.grace).clean_up()
    if journal is None:
        return MaintenanceRound(endpoint=endpoint.name, state="busy")
    troubles = tuple(f"{trouble.part}: {trouble.reason}" for trouble in journal.troubles(journal.at))
    state = "failed" if journal.is_failing() else "done"
    return MaintenanceRound(endpoint=endpoint.name, state=state, tasks=journal.tasks, troubles=troubles)
