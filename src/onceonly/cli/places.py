"""What a command is about: endpoints by `module:endpoint`, or databases by URL; and the options that all commands share."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer

from onceonly.cli.loading import load
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, is_engine, scheme_of, shown
from onceonly.endpoint import Endpoint
from onceonly.model.errors import SetupError

StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", envvar="ONCEONLY_STORE", metavar="URL", help="Store URL [default: the endpoint's]."),
]
TransportOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--transport", envvar="ONCEONLY_TRANSPORT", metavar="URL", help="Transport URL [default: the endpoint's]."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def refuse_missing(setting: Any) -> None:
    """Make sure that a SQLite file is there: a command that only looks makes none. Raises SetupError."""
    if missing := missing_file(setting):
        raise SetupError(missing)


def looked_at(setting: Any) -> Any:
    """Give a database setting with which a command that only looks makes no file and no tables. Raises SetupError."""
    refuse_missing(setting)
    url = setting.setting if isinstance(setting, Location) else setting
    if not isinstance(url, str) or not _is_sqlite(url) or "create=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}create=false"


def missing_file(setting: Any) -> str:
    """Say that a SQLite URL or engine names a file that is not there; empty when it is, and for everything else."""
    setting = setting.setting if isinstance(setting, Location) else setting
    if not is_engine(setting) and not (isinstance(setting, str) and _is_sqlite(setting)):
        return ""
    from onceonly.sql.database import place_of as named_place  # noqa: PLC0415 - imports SQLAlchemy

    url = named_place(setting).url
    file = url.database if url.get_backend_name() == "sqlite" else None
    if not file or file == ":memory:" or file.startswith("file:") or Path(file).exists():
        return ""
    place = shown(setting) if isinstance(setting, str) else file
    return (
        f"database file {place} does not exist: `onceonly schema create module:endpoint` creates it, and so does the first run"
    )


def _is_sqlite(url: str) -> bool:
    return scheme_of(url).startswith("sqlite")


class UrlOverrides(NamedTuple):
    """The URLs given on the command line or in the environment, which take the place of an endpoint's own."""

    store: str | None = None
    transport: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options that say so."""
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
