"""The URL of a container of Cosmos DB. No driver is needed to read it."""

import os
from urllib.parse import unquote

from onceonly.model.errors import SetupError
from onceonly.systems.urls import Hiding, read_options, read_seconds, read_truth, split_url

KEY_VARIABLE = "AZURE_COSMOS_KEY"
_EXAMPLE = "cosmos://account.documents.azure.com/database/container"


class CosmosAddress(Hiding, frozen=True, kw_only=True):
    """A container as a URL names it. `endpoint` is the account's; `place` is what may be shown."""

    endpoint: str
    key: str | None
    database: str
    container: str
    emulator: bool
    timeout: float

    @property
    def place(self) -> str:
        return f"{self.endpoint}{self.database}/{self.container}"


def read_address(url: str) -> CosmosAddress:
    """Take a cosmos:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its key."""
    parts, port = split_url(url, "Cosmos DB", _EXAMPLE)
    options = read_options(parts.query, "Cosmos DB", ("emulator", "timeout"))
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
    )
