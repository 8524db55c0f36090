"""What `onceonly janitor` does."""

import asyncio

import typer
from msgspec import Struct

from onceonly.cli.child import wiring_of
from onceonly.cli.loading import load_all
from onceonly.cli.output import NEGATIVE, say, show_json, show_table
from onceonly.cli.places import UrlOverrides
from onceonly.cli.reaching import ANY_TIME, answering
from onceonly.config.endpoint import Settings
from onceonly.endpoint import Endpoint
from onceonly.model.journal import TaskRun
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.runtime.observe.logs import Logs


class MaintenanceRound(Struct, frozen=True, kw_only=True):
    """What one round for one endpoint did: "done", "failed", "busy" (another process is running it) or "nothing to do"."""

    endpoint: str
    state: str
    chores: dict[str, TaskRun] = {}
    troubles: tuple[str, ...] = ()


def janitor(endpoints: list[str], *, store: str | None, transport: str | None, as_json: bool) -> None:
    """Run all clean-up tasks now, even if they are not due. `onceonly run` runs them automatically."""
    instead = UrlOverrides(store, transport)
    rounds = asyncio.run(_clean_up([(endpoint, instead.settings(endpoint)) for endpoint in load_all(endpoints)]))
    if as_json:
        show_json(rounds)
    else:
        for each in rounds:
            rows = [(name, done.count, done.took / 1000, done.reason or "done") for name, done in each.chores.items()]
            if rows:
                show_table(f"{each.endpoint}: {each.state}", ("task", "count", "seconds", "result"), rows)
            else:
                say(f"{each.endpoint}: {each.state}")
            for trouble in each.troubles:
                say(f"warning: {each.endpoint}: {trouble}")
    if any(each.state in {"failed", "busy"} or each.troubles for each in rounds):
        raise typer.Exit(NEGATIVE)


async def _clean_up(found: list[tuple[Endpoint, Settings]]) -> list[MaintenanceRound]:
    return [await _one(endpoint, settings) for endpoint, settings in found]


async def _one(endpoint: Endpoint, settings: Settings) -> MaintenanceRound:
    async with answering("store", settings.store, ANY_TIME), wiring_of(endpoint, settings, Logs()) as ports:
        if not ports.maintenance.has_tasks:
            return MaintenanceRound(endpoint=endpoint.name, state="nothing to do")
        journal = await MaintenanceLoop(ports, grace=settings.worker.grace).clean_up()
    if journal is None:
        return MaintenanceRound(endpoint=endpoint.name, state="busy")
    troubles = tuple(f"{trouble.part}: {trouble.reason}" for trouble in journal.troubles(journal.at))
    state = "failed" if journal.is_failing() else "done"
    return MaintenanceRound(endpoint=endpoint.name, state=state, chores=journal.chores, troubles=troubles)
