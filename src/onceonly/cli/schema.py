"""`onceonly schema`: tables, and places for documents and blobs, made by a person's command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias

import typer
from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly import blobs, documents, open_database, schemas, shown
from onceonly.assembly.looking import missing_file
from onceonly.cli.hints import pasteable
from onceonly.cli.output import NEGATIVE, say, show, show_json, show_table
from onceonly.cli.places import JsonOption, StoreOption, TransportOption, UrlOverrides
from onceonly.cli.reaching import ANY_TIME, answering
from onceonly.cli.schema_parts import Component, SchemaPart, SchemaTarget, parts_of
from onceonly.config.location import locate
from onceonly.formats.documents import FORMAT
from onceonly.model.errors import SchemaMissing, SchemaTooNew, SetupError
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database
from onceonly.sql.schema import Schema, check, create, render, render_upgrade, upgrade
from onceonly.systems import Role

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Create, upgrade, print and check tables in databases; create tables, containers and buckets in services.",
)


class Finding(Struct, frozen=True, kw_only=True):
    """The state of one component's tables in one database."""

    component: str
    database: str
    version: int
    ready: bool
    problem: str = ""


PlacesArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="ENDPOINT_OR_URL", help="module:endpoint for all systems of an endpoint, or the URL of a database or service."
    ),
]
ComponentOption: TypeAlias = Annotated[
    list[Component] | None,
    typer.Option("--component", help="Only the tables for this use [default: all].", show_default=False),
]
PrintOption: TypeAlias = Annotated[
    bool, typer.Option("--print", help="Print the SQL statements instead of executing them.", show_default=False)
]
NOTHING = "-- nothing to upgrade\n"
Act = Callable[[Database, Schema], Awaitable[None]]


@app.command("create")
def create_(
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
    only_print: PrintOption = False,
) -> None:
    """Create missing tables. Existing ones are not changed."""
    targets = _targets(places, component, store, transport)
    if only_print:
        show("\n".join(asyncio.run(_render(targets))))
    else:
        _do(create, targets, as_json=as_json)


@app.command("upgrade")
def upgrade_(
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
    only_print: PrintOption = False,
) -> None:
    """Upgrade tables to the schema of this version, and create missing ones."""
    targets = _targets(places, component, store, transport)
    if only_print:
        show("\n".join(asyncio.run(_render(targets, upgrading=True))))
    else:
        _do(upgrade, targets, as_json=as_json)


@app.command("check")
def check_(
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that all tables exist and have the right version. Exits with code 1 if not."""
    _do(check, _targets(places, component, store, transport), as_json=as_json)


@app.command("print")
def print_(
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
) -> None:
    """Print the SQL that creates the tables, for review or for a migration. Connects to nothing."""
    show("\n".join(asyncio.run(_render(_targets(places, component, store, transport)))))


def _targets(
    places: list[str], components: list[Component] | None, store: str | None, transport: str | None
) -> list[SchemaTarget]:
    return [SchemaTarget(place, components, UrlOverrides(store, transport)) for place in places]


def _do(act: Act, targets: list[SchemaTarget], *, as_json: bool) -> None:
    findings = asyncio.run(_each(act, _parts(targets)))
    if as_json:
        show_json(findings)
    else:
        rows = [(each.component, each.database, each.version, "ready" if each.ready else each.problem) for each in findings]
        show_table("", ("component", "database", "version", "state"), rows)
    if not all(each.ready for each in findings):
        raise typer.Exit(NEGATIVE)


def _parts(targets: list[SchemaTarget]) -> dict[SchemaPart, SchemaTarget]:
    """Give each part once, with the first target that has it."""
    found: dict[SchemaPart, SchemaTarget] = {}
    for asked in targets:
        for part in parts_of(asked):
            found.setdefault(part, asked)
    return found


async def _each(act: Act, parts: dict[SchemaPart, SchemaTarget]) -> list[Finding]:
    findings = []
    for part, asked in parts.items():
        found = await (_one_database(act, part) if part.has_tables else _one_service(act, part))
        findings.append(replace(found, problem=pasteable(found.problem, asked.arguments)))
    return findings


async def _one_database(act: Act, part: SchemaPart) -> Finding:
    component, setting = part.component.value, part.setting
    role: Role = "transport" if part.component is Component.TRANSPORT else "store"
    (schema,) = schemas(component)
    problem = missing_file(setting) if act is check else ""
    if not problem:
        async with answering(component, setting, ANY_TIME), open_database(setting, role) as database:
            try:
                await act(database, schema)
            except (SchemaMissing, SchemaTooNew) as error:
                problem = str(error)
    return _finding(part, schema.version, problem)


async def _one_service(act: Act, part: SchemaPart) -> Finding:
    """Make the place of a service, where it has none, and look at it; a check only looks."""
    is_blobs, url = part.component is Component.BLOBS, str(part.setting)
    locate(url, "blobs" if is_blobs else "store").require_driver("blobs" if is_blobs else "store")
    problem = ""
    async with answering(part.component.value, url, ANY_TIME):
        if act is not check:
            await (blobs.create if is_blobs else documents.create)(url)
        try:
            async with blobs.open_blobs(url) if is_blobs else documents.open_documents(url, clock=LIVE.clock):
                pass
        except SetupError as error:
            problem = str(error)
    return _finding(part, FORMAT, problem)


def _finding(part: SchemaPart, version: int, problem: str) -> Finding:
    where = shown(part.setting)
    return Finding(component=part.component.value, database=where, version=version, ready=not problem, problem=problem)


async def _render(targets: list[SchemaTarget], *, upgrading: bool = False) -> list[str]:
    texts = []
    for part, asked in _parts(targets).items():
        if not part.has_tables:
            nothing = f"the {part.component.value} {shown(part.setting)} has no SQL to print"
            say(pasteable(f"{nothing}; `onceonly schema create module:endpoint` creates it", asked.arguments))
            continue
        (schema,) = schemas(part.component.value)
        async with answering(part.component.value, part.setting, ANY_TIME), open_database(part.setting) as database:
            is_there = upgrading and not missing_file(part.setting)
            sql = await render_upgrade(database, schema) if is_there else render(database, schema)
            texts.append(f"-- {part.component.value}\n{sql or NOTHING}")
    return texts
