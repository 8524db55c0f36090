"""What `onceonly schema` is about: the databases, services and folders that a place uses, and what each is used as."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from onceonly.assembly import shown
from onceonly.cli.hints import pasteable
from onceonly.cli.loading import load
from onceonly.cli.options import Component
from onceonly.cli.output import say
from onceonly.cli.places import UrlOverrides, is_url
from onceonly.config.location import Location, read_url
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.model.errors import SetupError


class SchemaPart(NamedTuple):
    """One use of one database, service or folder."""

    component: Component
    location: Location

    @property
    def setting(self) -> Any:
        """The URL or the engine."""
        return self.location.setting

    @property
    def has_tables(self) -> bool:
        """Return whether it is a SQL database."""
        return self.location.is_sql


class SchemaTarget(NamedTuple):
    """What a command is about: a place, what of it (all, unless given), and the URLs to use instead of an endpoint's own."""

    place: str
    components: Sequence[Component] | None
    instead: UrlOverrides

    @property
    def arguments(self) -> tuple[str, ...]:
        """The same as the command line has it."""
        return (self.place, *self.instead.arguments)


def parts_of(asked: SchemaTarget) -> list[SchemaPart]:
    """Give the uses to maintain, and say of a place that there is nothing to make. Raises SetupError when there is nothing.

    A URL may be used as anything that its scheme is good for, but for requests of other services only where that is asked
    for; an endpoint describes what it uses.
    """
    place, components = asked.place, asked.components
    of_place = _of_url(place, components or ()) if is_url(place) else _of_endpoint(load(place), asked.instead)
    found = list(dict.fromkeys(of_place))
    chosen = [part for part in found if not components or part.component in components]
    made = [part for part in chosen if _is_made(part)]
    if not made:
        raise SetupError(_nothing(chosen[0]) if chosen else f"{shown(place)} is not used as {' or '.join(components or ())}")
    for part in chosen:
        if part not in made:
            say(pasteable(_nothing(part), asked.arguments))
    return made


def _of_url(url: str, asked: Sequence[Component]) -> Iterator[SchemaPart]:
    place = read_url(url)
    if place.is_sql:
        yield from (SchemaPart(component, place) for component in (Component.STORE, Component.TRANSPORT, Component.DOCUMENTS))
        if Component.HTTP in asked:
            yield SchemaPart(Component.HTTP, place)
        if Component.JOURNAL in asked:
            yield SchemaPart(Component.JOURNAL, place)
    elif place.keeps_documents:
        yield SchemaPart(Component.DOCUMENTS, place)
    elif place.system.artifacts is not None and not place.in_process:
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
    yield SchemaPart(Component.TRANSPORT, places.transport)
    if places.dead_letters is not places.store:
        yield _store(places.dead_letters)
    yield from (SchemaPart(Component.DOCUMENTS, place) for place in (plan.marks, plan.tokens) if place is not None)
    if places.blobs is not None:
        yield SchemaPart(Component.BLOBS, places.blobs)


def _store(place: Location) -> SchemaPart:
    return SchemaPart(Component.DOCUMENTS if place.keeps_documents else Component.STORE, place)


def _is_made(part: SchemaPart) -> bool:
    system = part.location.system
    return part.has_tables or (not system.in_process and (system.documents is not None or system.artifacts is not None))


def _nothing(part: SchemaPart) -> str:
    makes = ": `onceonly topology create module:endpoint` creates its queues" if part.component is Component.TRANSPORT else ""
    return f"the {part.component.value} {part.location} has no tables{makes}"
