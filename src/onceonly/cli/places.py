"""What a command is about: endpoints by `module:endpoint`, or databases by URL."""

from dataclasses import replace
from typing import NamedTuple

from onceonly.cli.loading import load
from onceonly.config.endpoint import Settings
from onceonly.config.location import shown
from onceonly.endpoint import Endpoint
from onceonly.model.errors import SetupError


class UrlOverrides(NamedTuple):
    """The URLs given on the command line or in the environment, which take the place of an endpoint's own."""

    store: str | None = None
    transport: str | None = None

    def __repr__(self) -> str:
        return "UrlOverrides(...)"  # URLs may hold passwords

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options that name it."""
        given = (("--store", self.store), ("--transport", self.transport))
        return tuple(part for option, url in given if url for part in (option, url))

    def settings(self, endpoint: Endpoint) -> Settings:
        """Give the endpoint's settings with these URLs in them. Raises SetupError when they cannot be."""
        own = endpoint.settings
        return replace(own, store=self.store or own.store, transport=self.transport or own.transport)


class CommandTarget(NamedTuple):
    """Where to look: a store and a transport, of the endpoint called `name` or, when that is empty, of all."""

    name: str
    store: object
    transport: str | None
    dead_letters: object
    settings: Settings | None = None
    """Those of the endpoint, where it was named."""

    def __repr__(self) -> str:
        return f"CommandTarget({self.name!r}, {shown(self.store)!r})"


def is_url(text: str) -> bool:
    """Tell a URL from `module:endpoint`."""
    return "://" in text


def place_of(text: str, instead: UrlOverrides) -> CommandTarget:
    """Give the place that `module:endpoint` or the URL of a store names. Raises SetupError."""
    if is_url(text):
        return CommandTarget(name="", store=text, transport=instead.transport, dead_letters=text)
    settings = instead.settings(load(text))
    dead_letters = settings.dead_letters if settings.dead_letters is not None else settings.store
    return CommandTarget(
        name=settings.name, store=settings.store, transport=settings.transport, dead_letters=dead_letters, settings=settings
    )


def transport_of(place: CommandTarget) -> str:
    """Give the transport of a place. Raises SetupError when the command did not say where it is."""
    if place.transport is None:
        raise SetupError("a store URL alone has no queue: set --transport URL, or name the endpoint as module:endpoint")
    return place.transport
