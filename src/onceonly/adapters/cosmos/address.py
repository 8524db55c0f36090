"""The URL of a container of Cosmos DB. No driver is needed to read it."""

import os
import re
from urllib.parse import unquote

from onceonly.model.errors import SetupError
from onceonly.queues.names import read_prefix
from onceonly.systems.urls import Hiding, read_options, read_seconds, read_truth, split_url

KEY_VARIABLE = "AZURE_COSMOS_KEY"
_EXAMPLE = "cosmos://account.documents.azure.com/database/container"
_PREFIX = r"[A-Za-z0-9][A-Za-z0-9_:-]{0,62}", "a letter or digit, then at most 62 of A-Z, a-z, 0-9, '_', ':' and '-'"
_PATH = r"(/[A-Za-z_][A-Za-z0-9_-]*)+"
_MOST_PATHS = 3
"""How many paths the partition key of a container has at most."""
OWN_NAMES = frozenset({"id", "ttl", "onceonly"})
"""Properties of the items of this library, which no partition key can be."""


class CosmosAddress(Hiding, frozen=True, kw_only=True):
    """A container as a URL names it. `endpoint` is the account's; `place` is what may be shown.

    `prefix` begins the name of every item. `paths` is the partition key of a container of the application's own; none for a
    container in which each item is a partition.
    """

    endpoint: str
    key: str | None
    database: str
    container: str
    emulator: bool
    timeout: float
    prefix: str = ""
    paths: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.endpoint}{self.database}/{self.container}"


def read_address(url: str) -> CosmosAddress:
    """Take a cosmos:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its key."""
    parts, port = split_url(url, "Cosmos DB", _EXAMPLE)
    options = read_options(parts.query, "Cosmos DB", ("emulator", "timeout", "prefix", "partition_key"))
    names = [unquote(name) for name in parts.path.strip("/").split("/")]
    if len(names) != 2 or not all(names):  # noqa: PLR2004 - a database and a container
        raise SetupError(f"a Cosmos DB URL needs a database and a container, such as {_EXAMPLE}")
    return CosmosAddress(
        endpoint=f"https://{parts.hostname}:{port or 443}/",
        key=unquote(parts.password) if parts.password else os.environ.get(KEY_VARIABLE),
        database=names[0],
        container=names[1],
        emulator=read_truth(options, "emulator", default=False),
        timeout=read_seconds(options, "timeout", 10.0),
        prefix=read_prefix(options, *_PREFIX),
        paths=_read_paths(options["partition_key"]) if "partition_key" in options else (),
    )


def _read_paths(text: str) -> tuple[str, ...]:
    """Return the paths of a partition key. Raises SetupError for one that documents cannot be placed by."""
    paths = tuple(text.split(","))
    if not all(re.fullmatch(_PATH, path) for path in paths) or len(paths) > _MOST_PATHS:
        raise SetupError(
            f"partition_key={text!r:.100}: use 1 to {_MOST_PATHS} paths separated by commas, such as /tenantId or "
            "/tenantId,/address/city, of letters, digits, '_' and '-'"
        )
    for number, path in enumerate(paths):
        if any(f"{path}/".startswith(f"{other}/") for other in paths[:number] + paths[number + 1 :]):
            raise SetupError(f"partition_key={text!r:.100}: no path can be inside another one")
        root = path.split("/")[1]
        if root == "id":
            raise SetupError(
                "partition_key has the path /id, which makes each document a partition of its own, so that no two are written "
                "together. Leave partition_key out for a container with partition key /id alone"
            )
        if root in OWN_NAMES or root.startswith("_"):
            raise SetupError(f"partition_key={text!r:.100}: the property {root} has another meaning in this container")
    return paths
