"""What `onceonly schema` does."""

import asyncio
from typing import Literal

import typer
from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly import blobs, documents, open_database, schemas, shown
from onceonly.assembly.looking import missing_file
from onceonly.cli.hints import pasteable
from onceonly.cli.options import Component
from onceonly.cli.output import NEGATIVE, say, show, show_json, show_table
from onceonly.cli.places import UrlOverrides
from onceonly.cli.reaching import ANY_TIME, answering
from onceonly.cli.schema_parts import SchemaPart, SchemaTarget, parts_of
from onceonly.config.location import locate
from onceonly.formats.documents import FORMAT
from onceonly.model.errors import SchemaMissing, SchemaTooNew, SetupError
from onceonly.runtime.environment import LIVE
from onceonly.sql.schema import check, create, render, render_upgrade, upgrade
from onceonly.systems import Role

NOTHING = "-- nothing to upgrade\n"
Action = Literal["create", "upgrade", "check"]


class Finding(Struct, frozen=True, kw_only=True):
    """The state of one component's tables in one database."""

    component: str
    database: str
    version: int
    ready: bool
    problem: str = ""
    repaired: tuple[str, ...] = ()
    """What was missing from tables that had been made before, and is there again."""


def targets(
    places: list[str], components: list[Component] | None, store: str | None, transport: str | None
) -> list[SchemaTarget]:
    """Return what a command is about."""
    return [SchemaTarget(place, components, UrlOverrides(store, transport)) for place in places]


def print_sql(targets: list[SchemaTarget], *, upgrading: bool = False, accepts_loss: bool = False) -> None:
    """Print the SQL that creates the tables, or with `upgrading` what brings existing ones up to date. Raises SetupError."""
    show("\n".join(asyncio.run(_render(targets, upgrading=upgrading, accepts_loss=accepts_loss))))


def apply(action: Action, targets: list[SchemaTarget], *, as_json: bool, accepts_loss: bool = False) -> None:
    """Create, upgrade or check all tables, and print the result. Exits with code 1 if some are not ready. Raises SetupError."""
    findings = asyncio.run(_each(action, _parts(targets), accepts_loss=accepts_loss))
    if as_json:
        show_json(findings)
    else:
        rows = [(each.component, each.database, each.version, _state(each)) for each in findings]
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


def _state(finding: Finding) -> str:
    if not finding.ready:
        return finding.problem
    return f"ready, made again: {', '.join(finding.repaired)}" if finding.repaired else "ready"


async def _each(action: Action, parts: dict[SchemaPart, SchemaTarget], *, accepts_loss: bool) -> list[Finding]:
    findings = []
    for part, asked in parts.items():
        if part.has_tables:
            found = await _one_database(action, part, accepts_loss=accepts_loss)
        else:
            found = await _one_service(action, part)
        findings.append(replace(found, problem=pasteable(found.problem, asked.arguments)))
    return findings


async def _one_database(action: Action, part: SchemaPart, *, accepts_loss: bool) -> Finding:
    component, setting = part.component.value, part.setting
    role: Role = "transport" if part.component is Component.TRANSPORT else "store"
    (schema,) = schemas(component)
    problem = missing_file(setting) if action == "check" else ""
    repaired: tuple[str, ...] = ()
    if not problem:
        async with answering(component, setting, ANY_TIME), open_database(setting, role) as database:
            try:
                if action == "check":
                    await check(database, schema, thorough=True)
                else:
                    make = create if action == "create" else upgrade
                    repaired = await make(database, schema, accepts_loss=accepts_loss, thorough=True)
            except (SchemaMissing, SchemaTooNew) as error:
                problem = str(error)
    return replace(_finding(part, schema.version, problem), repaired=repaired)


async def _one_service(action: Action, part: SchemaPart) -> Finding:
    """Create the place of a service if it is missing, and open it. A check only opens it."""
    is_blobs, url = part.component is Component.BLOBS, str(part.setting)
    locate(url, "blobs" if is_blobs else "store").require_driver("blobs" if is_blobs else "store")
    problem = ""
    async with answering(part.component.value, url, ANY_TIME):
        if action != "check":
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


async def _render(targets: list[SchemaTarget], *, upgrading: bool, accepts_loss: bool) -> list[str]:
    texts = []
    for part, asked in _parts(targets).items():
        if not part.has_tables:
            nothing = f"the {part.component.value} {shown(part.setting)} has no SQL to print"
            say(pasteable(f"{nothing}; `onceonly schema create module:endpoint` creates it", asked.arguments))
            continue
        (schema,) = schemas(part.component.value)
        async with answering(part.component.value, part.setting, ANY_TIME), open_database(part.setting) as database:
            is_there = upgrading and not missing_file(part.setting)
            sql = await render_upgrade(database, schema, accepts_loss=accepts_loss) if is_there else render(database, schema)
            texts.append(f"-- {part.component.value}\n{sql or NOTHING}")
    return texts
