"""What `onceonly schema` is about: the databases, services and folders that a place uses, and what each is used as."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from onceonly.assembly import shown
from onceonly.assembly.deduplication import tokens_place
from onceonly.cli.hints import pasteable
from onceonly.cli.loading import load
from onceonly.cli.output import say
from onceonly.cli.places import Instead, is_url
from onceonly.config.deduplication import DedupStore, Tokens
from onceonly.config.urls import has_no_tables, keeps_documents, place_system
from onceonly.endpoint import Endpoint
from onceonly.model.errors import SetupError


class Component(StrEnum):
    """What a place is used as."""

    STORE = "store"
    TRANSPORT = "transport"
    DOCUMENTS = "documents"
    BLOBS = "blobs"
    HTTP = "http"


class Part(NamedTuple):
    """One use of one database, service or folder."""

    component: Component
    setting: object

    @property
    def has_tables(self) -> bool:
        """Tell whether it is a SQL database."""
        return not (isinstance(self.setting, str) and has_no_tables(self.setting))


class Asked(NamedTuple):
    """What a command is about: a place, what of it (all, unless given), and the URLs to use instead of an endpoint's own."""

    place: str
    components: Sequence[Component] | None
    instead: Instead

    @property
    def arguments(self) -> tuple[str, ...]:
        """The same as the command line has it."""
        return (self.place, *self.instead.arguments)


def parts_of(asked: Asked) -> list[Part]:
    """Give the uses to look after, and say of a place that there is nothing to make. Raises SetupError when there is nothing.

    A URL may be used as anything that its scheme is good for, but for requests of other services only where that is asked
    for; an endpoint says what it uses.
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


def _of_url(url: str, asked: Sequence[Component]) -> Iterator[Part]:
    system = place_system(url)
    if system is not None and system.dialect is None:
        if system.keeps_documents:
            yield Part(Component.DOCUMENTS, url)
        elif system.artifacts is not None and not system.in_process:
            yield Part(Component.BLOBS, url)
        else:
            yield Part(Component.STORE, url)
        return
    yield from (Part(component, url) for component in (Component.STORE, Component.TRANSPORT, Component.DOCUMENTS))
    if Component.HTTP in asked:
        yield Part(Component.HTTP, url)


def _of_endpoint(endpoint: Endpoint, instead: Instead) -> Iterator[Part]:
    settings = instead.settings(endpoint)
    yield _store(settings.store)
    if endpoint.has_responders:
        yield Part(Component.HTTP, settings.store)
    yield Part(Component.TRANSPORT, settings.transport)
    if settings.dead_letters is not None:
        yield _store(settings.dead_letters)
    if isinstance(settings.deduplication, DedupStore):
        yield Part(Component.DOCUMENTS, settings.deduplication.url)
    if isinstance(settings.deduplication, Tokens):
        yield Part(Component.DOCUMENTS, tokens_place(settings))
    if settings.blobs is not None:
        yield Part(Component.BLOBS, settings.blobs)


def _store(setting: object) -> Part:
    return Part(Component.DOCUMENTS if keeps_documents(setting) else Component.STORE, setting)


def _is_made(part: Part) -> bool:
    system = place_system(part.setting)
    if system is None or system.in_process:
        return part.has_tables
    return part.has_tables or system.documents is not None or system.artifacts is not None


def _nothing(part: Part) -> str:
    makes = ": `onceonly topology create module:endpoint` makes its queues" if part.component is Component.TRANSPORT else ""
    return f"the {part.component.value} {shown(part.setting)} has no tables{makes}"
