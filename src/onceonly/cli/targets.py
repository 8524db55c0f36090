"""What a command is about: endpoints by `module:attribute`, or databases by URL; and connections to what they name.

A person waits for a command, so it reports soon which server does not answer.
"""

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeVar

from onceonly.config.endpoint import Settings
from onceonly.config.location import shown
from onceonly.endpoint import Endpoint
from onceonly.model.errors import CommitFailed, RetryableError, SetupError

ANSWER_SECONDS = 15.0
"""Seconds that a server may take to answer."""
ANY_TIME = math.inf
"""For what may take long when it works, such as changing large tables. Drivers have their own limit for connecting."""
_Opened = TypeVar("_Opened")


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
        """Return the endpoint's settings with these URLs in them. Raises SetupError when they cannot be."""
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
    return "://" in text


def target_of(text: str, store: str | None = None, transport: str | None = None) -> CommandTarget:
    """Return what `module:endpoint` or the URL of a store names. Raises SetupError."""
    if is_url(text):
        return CommandTarget(name="", store=text, transport=transport, dead_letters=text)
    settings = UrlOverrides(store, transport).settings(load(text))
    dead_letters = settings.dead_letters if settings.dead_letters is not None else settings.store
    return CommandTarget(
        name=settings.name, store=settings.store, transport=settings.transport, dead_letters=dead_letters, settings=settings
    )


def transport_of(target: CommandTarget) -> str:
    """Return the transport of a target. Raises SetupError if it has none."""
    if target.transport is None:
        raise SetupError("a store URL alone has no queue: set --transport URL, or name the endpoint as module:endpoint")
    return target.transport


def load(name: str) -> Endpoint:
    """Import one endpoint. The working directory is searched first. Raises SetupError, saying what the name should be."""
    if "@" in name or "://" in name:  # not shown: a URL may hold a password
        raise SetupError("a URL is not an endpoint name: write module:attribute, such as shop:shop")
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise SetupError(f"{name!r} is not an endpoint name: write module:attribute, such as shop:shop")
    module = _import(module_name)
    found = getattr(module, attribute, None)
    if isinstance(found, Endpoint):
        return found
    there = sorted(key for key, value in vars(module).items() if isinstance(value, Endpoint))
    hint = f"it has {', '.join(f'{module_name}:{key}' for key in there)}" if there else "the module has no endpoint"
    problem = "is not an Endpoint" if hasattr(module, attribute) else "does not exist"
    raise SetupError(f"{name!r} {problem} in module {module_name!r}: {hint}")


def load_all(names: Sequence[str]) -> tuple[Endpoint, ...]:
    """Import several endpoints. Raises SetupError also when two of them have one name."""
    endpoints = tuple(load(name) for name in names)
    seen = [endpoint.name for endpoint in endpoints]
    twice = sorted({name for name in seen if seen.count(name) > 1})
    if twice:
        raise SetupError(f"two endpoints are named {', '.join(twice)}: list each endpoint once, and give each a unique name")
    return endpoints


def _import(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except SetupError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise SetupError(f"module {name!r} was not found in {here} or on the Python path") from error
        raise SetupError(f"module {name!r} could not be imported: {error}") from error
    except Exception as error:  # a user's module may raise anything when it is imported
        place = _place(error)
        raise SetupError(f"module {name!r} could not be imported: {type(error).__name__}: {error}{place}") from error


def _place(error: BaseException) -> str:
    """Name the line of the user's file that raised; empty if it is not known."""
    if isinstance(error, SyntaxError):
        return ""  # its own text names the line
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(Path.cwd()) and file.suffix == ".py":
            place = f" ({file.relative_to(Path.cwd())}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


@asynccontextmanager
async def connect(role: str, setting: object, opening: AbstractAsyncContextManager[_Opened]) -> AsyncIterator[_Opened]:
    """Enter `opening`, which opens what a setting names. Errors are those of `connection_errors`."""
    async with AsyncExitStack() as stack:
        async with connection_errors(role, setting):
            opened = await stack.enter_async_context(opening)
        yield opened


@asynccontextmanager
async def connection_errors(role: str, setting: object, seconds: float | None = None) -> AsyncIterator[None]:
    """Add the location that a setting names to RetryableError and SetupError.

    Raises CommitFailed if the block takes longer than `seconds` [default: 15].
    """
    location = f"{role.replace('_', ' ')} {shown(setting)}"
    seconds = ANSWER_SECONDS if seconds is None else seconds
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except RetryableError as error:
        if str(error).startswith("endpoint "):  # it names the location that does not answer, which may be another one
            raise
        raise type(error)(f"cannot reach {location}: {error}") from error
    except SetupError as error:
        if shown(setting) in str(error):
            raise
        raise type(error)(f"cannot use {location}: {error}") from error
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise CommitFailed(f"cannot reach {location}: no answer for {seconds:g} s") from error
