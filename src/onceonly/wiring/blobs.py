"""Places for blobs, put together: opened by their URL, and looked at before they are used."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

from onceonly.model.errors import SetupError
from onceonly.ports.effects import Things
from onceonly.wiring.documents import tell
from onceonly.wiring.schemes import SCHEMES, scheme_of


@asynccontextmanager
async def open_blobs(url: str) -> AsyncIterator[Things]:
    """Give the place for blobs that a URL names. Raises SetupError when it is missing, TryAgain when it is away."""
    scheme = scheme_of(url)
    if scheme == "folder":
        from onceonly.effects.folder import FolderThings  # noqa: PLC0415 - only when it is named

        yield FolderThings(folder_of(url))
    elif scheme == "memory":
        from onceonly.stores.memory_things import MemoryThings  # noqa: PLC0415 - the same
        from onceonly.wiring.memory import open_world  # noqa: PLC0415 - the same

        async with open_world(url) as world:
            yield MemoryThings(world)
    else:
        adapter = import_module(f"onceonly.effects.{SCHEMES[scheme].things}")
        async with adapter.open_things(url) as things:
            tell(url, await things.check())
            yield things


async def create(url: str) -> None:
    """Make the place that a URL names; harmless when it is there. Raises SetupError, TryAgain, Failed."""
    scheme = scheme_of(url)
    if scheme == "folder":
        _path(url).mkdir(parents=True, exist_ok=True)
    elif scheme != "memory":
        adapter = import_module(f"onceonly.effects.{SCHEMES[scheme].things}")
        await adapter.create(url)


def folder_of(url: str) -> Path:
    """Give the folder that a URL names. Raises SetupError when it is not there."""
    path = _path(url)
    if not path.is_dir():
        raise SetupError(f"there is no folder {path}: mount it, or make it, as `onceonly schema create module:endpoint` does")
    return path


def _path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise SetupError("a folder's URL has three slashes and the whole path: folder:///var/lib/shop")
    return Path(unquote(parts.path))
