"""`onceonly schema`: the tables this library needs, made and upgraded by a person's command."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, TypeAlias

import typer
from msgspec import Struct

from onceonly.cli.output import NEGATIVE, say, show, show_json, show_table
from onceonly.cli.places import Instead, JsonOption, Place, StoreOption, TransportOption, is_url, missing_file, place_of
from onceonly.cli.reaching import ANY_TIME, answering
from onceonly.drivers.schema import Schema, check, create, render, upgrade
from onceonly.drivers.sql import Database
from onceonly.model.errors import SchemaMissing, SchemaTooNew, SetupError
from onceonly.wiring import open_database, schemas, shown
from onceonly.wiring.schemes import has_no_tables

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Create, upgrade, print and check the tables of onceonly in a database.",
)


class Component(StrEnum):
    """What a database is used as."""

    STORE = "store"
    TRANSPORT = "transport"


class Finding(Struct, frozen=True, kw_only=True):
    """The state of one component's tables in one database."""

    component: str
    database: str
    version: int
    ready: bool
    problem: str = ""


PlaceArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="PLACE", help="URL of a database, or module:endpoint for the databases of an endpoint.")
]
ComponentOption: TypeAlias = Annotated[
    list[Component] | None,
    typer.Option("--component", help="Only the tables for this use; both unless given.", show_default=False),
]
Act = Callable[[Database, Schema], Awaitable[None]]


@app.command("create")
def create_(
    place: PlaceArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create the tables that are missing; harmless when they are there."""
    _do(create, _parts(place, component, Instead(store, transport)), as_json=as_json)


@app.command("upgrade")
def upgrade_(
    place: PlaceArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the tables to the version of this onceonly; creates those that are missing."""
    _do(upgrade, _parts(place, component, Instead(store, transport)), as_json=as_json)


@app.command("check")
def check_(
    place: PlaceArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell whether the tables are there and of the right version; exit code 1 when not."""
    _do(check, _parts(place, component, Instead(store, transport)), as_json=as_json)


@app.command("print")
def print_(
    place: PlaceArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
) -> None:
    """Print the statements that create the tables, for review or for a migration tool. Connects to nothing."""
    show("\n".join(asyncio.run(_render(_parts(place, component, Instead(store, transport))))))


def _parts(text: str, components: list[Component] | None, instead: Instead) -> list[tuple[Component, object]]:
    """Give the uses and their databases, and say of a place that it has no tables. Raises SetupError when none has."""
    place = Place("", text, text, text) if is_url(text) else place_of(text, instead)
    settings = {Component.STORE: place.store, Component.TRANSPORT: place.transport}
    parts = [(component, settings[component]) for component in components or list(Component)]
    without = [part for part in parts if isinstance(part[1], str) and has_no_tables(part[1])]
    if len(without) == len(parts):
        raise SetupError(_no_tables(*without[0]))
    for part in without:
        say(_no_tables(*part))
    return [part for part in parts if part not in without]


def _no_tables(component: Component, setting: object) -> str:
    makes = ": `onceonly topology create` makes its queues" if component is Component.TRANSPORT else ""
    return f"the {component.value} {shown(setting)} has no tables{makes}"


def _do(act: Act, parts: list[tuple[Component, object]], *, as_json: bool) -> None:
    findings = asyncio.run(_each(act, parts))
    if as_json:
        show_json(findings)
    else:
        rows = [(each.component, each.database, each.version, "ready" if each.ready else each.problem) for each in findings]
        show_table("", ("component", "database", "version", "state"), rows)
    if not all(each.ready for each in findings):
        raise typer.Exit(NEGATIVE)


async def _each(act: Act, parts: list[tuple[Component, object]]) -> list[Finding]:
    return [await _one(act, component, setting) for component, setting in parts]


async def _one(act: Act, component: Component, setting: object) -> Finding:
    (schema,) = schemas(component.value)
    problem = missing_file(setting) if act is check else ""
    if not problem:
        async with answering(component.value, setting, ANY_TIME), open_database(setting, component.value) as database:
            try:
                await act(database, schema)
            except (SchemaMissing, SchemaTooNew) as error:
                problem = str(error)
    where = shown(setting)
    return Finding(component=component.value, database=where, version=schema.version, ready=not problem, problem=problem)


async def _render(parts: list[tuple[Component, object]]) -> list[str]:
    texts = []
    for component, setting in parts:
        async with open_database(setting, component.value) as database:
            texts.append(f"-- {component.value}\n{render(database, *schemas(component.value))}")
    return texts
