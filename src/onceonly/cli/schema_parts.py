"""What `onceonly schema` creates and checks: the databases, services and folders that a target uses."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly import documents, open_database, open_read_only, schemas, shown
from onceonly.assembly.effects import create_blobs, open_blobs
from onceonly.assembly.stores import missing_file
from onceonly.cli.commands import Component
from onceonly.cli.hints import pasteable
from onceonly.cli.output import say
from onceonly.cli.targets import ANY_TIME, UrlOverrides, connection_errors, is_url, load
from onceonly.config.location import Location, locate, read_url
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.formats.documents import FORMAT
from onceonly.model.errors import RetryableError, SchemaMissing, SchemaTooNew, SetupError
from onceonly.runtime.environment import LIVE
from onceonly.runtime.maintenance.unmaintained import read_unmaintained
from onceonly.sql.schema import check, create, render, render_upgrade, upgrade
from onceonly.systems import Family, Role

NOTHING = "-- nothing to upgrade\n"
SchemaAction = Literal["create", "upgrade", "check"]


class SchemaPart(NamedTuple):
    component: Component
    location: Location

    @property
    def setting(self) -> Any:
        return self.location.setting

    @property
    def has_tables(self) -> bool:
        return self.location.family is Family.SQL


class SchemaTarget(NamedTuple):
    """What a command is about: a place, what of it (all, unless given), and the URLs to use instead of an endpoint's own."""

    place: str
    components: Sequence[Component] | None
    instead: UrlOverrides

    @property
    def arguments(self) -> tuple[str, ...]:
        return (self.place, *self.instead.arguments)


def parts_of(asked: SchemaTarget) -> list[SchemaPart]:
    """Return the uses to maintain, and report a place with nothing to create. Raises SetupError if there is nothing.

    A URL may be used as anything that its scheme is good for, but for requests of other services only where that is asked
    for; an endpoint describes what it uses.
    """
    place, components = asked.place, asked.components
    of_place = _of_url(place, components or ()) if is_url(place) else _of_endpoint(load(place), asked.instead)
    found = list(dict.fromkeys(of_place))
    chosen = [part for part in found if not components or part.component in components]
    made = [part for part in chosen if _is_made(part)]
    if not made:
        raise SetupError(
            _no_tables_text(chosen[0]) if chosen else f"{shown(place)} is not used as {' or '.join(components or ())}"
        )
    for part in chosen:
        if part not in made:
            say(pasteable(_no_tables_text(part), asked.arguments))
    return made


def _of_url(url: str, asked: Sequence[Component]) -> Iterator[SchemaPart]:
    place = read_url(url)
    if place.family is Family.SQL:
        yield from (SchemaPart(component, place) for component in (Component.STORE, Component.TRANSPORT, Component.DOCUMENTS))
        if Component.HTTP in asked:
            yield SchemaPart(Component.HTTP, place)
        if Component.JOURNAL in asked:
            yield SchemaPart(Component.JOURNAL, place)
    elif place.family is Family.DOCUMENTS:
        yield SchemaPart(Component.DOCUMENTS, place)
    elif place.system.artifacts is not None and place.is_shared:
        yield SchemaPart(Component.BLOBS, place)
    else:
        yield SchemaPart(Component.STORE, place)


def _of_endpoint(endpoint: Endpoint, instead: UrlOverrides) -> Iterator[SchemaPart]:
    settings = instead.settings(endpoint)
    places, plan = settings.places, settings.plan
    yield _store(places.store)
    if host_of(endpoint).has_responders:
        yield SchemaPart(Component.HTTP, places.store)
    if settings.journal is not None:
        yield SchemaPart(Component.JOURNAL, places.store)
    if settings.has_queue:
        yield SchemaPart(Component.TRANSPORT, places.transport)
    if places.dead_letters is not places.store:
        yield _store(places.dead_letters)
    yield from (SchemaPart(Component.DOCUMENTS, place) for place in (plan.marks, plan.tokens) if place is not None)
    yield from (SchemaPart(Component.DOCUMENTS, place) for place in places.projections.values())
    if places.blobs is not None:
        yield SchemaPart(Component.BLOBS, places.blobs)


def _store(place: Location) -> SchemaPart:
    return SchemaPart(Component.DOCUMENTS if place.family is Family.DOCUMENTS else Component.STORE, place)


def _is_made(part: SchemaPart) -> bool:
    system = part.location.system
    return part.has_tables or (part.location.is_shared and (system.documents is not None or system.artifacts is not None))


def _no_tables_text(part: SchemaPart) -> str:
    makes = ": `onceonly topology create module:endpoint` creates its queues" if part.component is Component.TRANSPORT else ""
    return f"the {part.component.value} {part.location} has no tables{makes}"


class SchemaFinding(Struct, frozen=True, kw_only=True):
    component: str
    database: str
    version: int
    ready: bool
    problem: str = ""
    repaired: tuple[str, ...] = ()
    """What was missing from tables that had been made before, and is there again."""


def _parts(targets: Sequence[SchemaTarget]) -> dict[SchemaPart, SchemaTarget]:
    found: dict[SchemaPart, SchemaTarget] = {}
    for asked in targets:
        for part in parts_of(asked):
            found.setdefault(part, asked)
    return found


async def maintain(action: SchemaAction, targets: Sequence[SchemaTarget], *, accepts_loss: bool = False) -> list[SchemaFinding]:
    """Create, upgrade or check the tables and services of targets. Raises SetupError, RetryableError."""
    findings = []
    for part, asked in _parts(targets).items():
        if part.has_tables:
            found = await _one_database(action, part, accepts_loss=accepts_loss)
        else:
            found = await _one_service(action, part)
        findings.append(replace(found, problem=pasteable(found.problem, asked.arguments)))
    return findings


async def _one_database(action: SchemaAction, part: SchemaPart, *, accepts_loss: bool) -> SchemaFinding:
    component, setting = part.component.value, part.setting
    role: Role = "transport" if part.component is Component.TRANSPORT else "store"
    (schema,) = schemas(component)
    problem = missing_file(setting) if action == "check" else ""
    repaired: tuple[str, ...] = ()
    if not problem:
        async with connection_errors(component, setting, ANY_TIME), open_database(setting, role) as database:
            try:
                if action == "check":
                    await check(database, schema, thorough=True)
                else:
                    make = create if action == "create" else upgrade
                    repaired = await make(database, schema, accepts_loss=accepts_loss, thorough=True)
            except (SchemaMissing, SchemaTooNew) as error:
                problem = str(error)
    return replace(_finding(part, schema.version, problem), repaired=repaired)


async def _one_service(action: SchemaAction, part: SchemaPart) -> SchemaFinding:
    """Create the place of a service if it is missing, and open it. A check only opens it."""
    is_blobs, url = part.component is Component.BLOBS, str(part.setting)
    locate(url, "blobs" if is_blobs else "store").require_driver("blobs" if is_blobs else "store")
    problem = ""
    async with connection_errors(part.component.value, url, ANY_TIME):
        if action != "check":
            await (create_blobs if is_blobs else documents.create)(url)
        try:
            async with open_blobs(url) if is_blobs else documents.open_documents(url, clock=LIVE.clock):
                pass
        except SetupError as error:
            problem = str(error)
    return _finding(part, FORMAT, problem)


def _finding(part: SchemaPart, version: int, problem: str) -> SchemaFinding:
    where = shown(part.setting)
    return SchemaFinding(component=part.component.value, database=where, version=version, ready=not problem, problem=problem)


async def unmaintained(targets: Sequence[SchemaTarget]) -> list[str]:
    """Return a line for each endpoint in targets whose claims, keys and records no process maintains.

    An endpoint that cannot be read is left out: the findings say why.
    """
    lines = []
    for asked in targets:
        if is_url(asked.place):
            continue
        settings = asked.instead.settings(load(asked.place))
        if not settings.store_plan.has_tables or missing_file(settings.store):
            continue
        try:
            async with connection_errors("store", settings.store), open_read_only(settings) as opened:
                reason = await read_unmaintained(opened.journals, opened.ring, LIVE.clock.now())
        except (SetupError, RetryableError):
            continue
        if reason:
            lines.append(pasteable(f"endpoint {settings.name!r} is not maintained: {reason}", asked.arguments))
    return lines


async def render_sql(targets: Sequence[SchemaTarget], *, upgrading: bool = False, accepts_loss: bool = False) -> list[str]:
    """Return the SQL that creates the tables, or with `upgrading` what brings existing ones up to date. Raises SetupError."""
    texts = []
    for part, asked in _parts(targets).items():
        if not part.has_tables:
            nothing = f"the {part.component.value} {shown(part.setting)} has no SQL to print"
            say(pasteable(f"{nothing}; `onceonly schema create module:endpoint` creates it", asked.arguments))
            continue
        (schema,) = schemas(part.component.value)
        async with connection_errors(part.component.value, part.setting, ANY_TIME), open_database(part.setting) as database:
            is_there = upgrading and not missing_file(part.setting)
            sql = await render_upgrade(database, schema, accepts_loss=accepts_loss) if is_there else render(database, schema)
            texts.append(f"-- {part.component.value}\n{sql or NOTHING}")
    return texts
