"""What a command is about: endpoints by `module:endpoint`, or databases by URL; and the options that all commands share."""

from dataclasses import replace
from typing import Annotated, NamedTuple, TypeAlias

import typer

from onceonly.cli.loading import load
from onceonly.endpoint import Endpoint
from onceonly.model.errors import SetupError
from onceonly.wiring.settings import Settings

StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", envvar="ONCEONLY_STORE", metavar="URL", help="Store to use instead of the endpoint's own."),
]
TransportOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--transport", envvar="ONCEONLY_TRANSPORT", metavar="URL", help="Transport to use instead of the endpoint's own."
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class Instead(NamedTuple):
    """The URLs given on the command line or in the environment, which take the place of an endpoint's own."""

    store: str | None = None
    transport: str | None = None

    def settings(self, endpoint: Endpoint) -> Settings:
        """Give the endpoint's settings with these URLs in them. Raises SetupError when they cannot be."""
        own = endpoint.settings
        return replace(own, store=self.store or own.store, transport=self.transport or own.transport)


class Place(NamedTuple):
    """Where to look: a store and a transport, of the endpoint called `name` or, when that is empty, of all."""

    name: str
    store: object
    transport: str | None
    dead_letters: object


def is_url(text: str) -> bool:
    """Tell a URL from `module:endpoint`."""
    return "://" in text


def place_of(text: str, instead: Instead) -> Place:
    """Give the place that `module:endpoint` or the URL of a store names. Raises SetupError."""
    if is_url(text):
        return Place(name="", store=text, transport=instead.transport, dead_letters=text)
    settings = instead.settings(load(text))
    dead_letters = settings.dead_letters if settings.dead_letters is not None else settings.store
    return Place(name=settings.name, store=settings.store, transport=settings.transport, dead_letters=dead_letters)


def transport_of(place: Place) -> str:
    """Give the transport of a place. Raises SetupError when the command did not say where it is."""
    if place.transport is None:
        raise SetupError("a store alone has no queue: give --transport URL, or name the place as module:endpoint")
    return place.transport
