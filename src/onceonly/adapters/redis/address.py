"""The URL of a Redis server. No driver is needed to read it."""

import re
from urllib.parse import unquote

from msgspec import Struct

from onceonly.documents.clients import read_options, read_seconds, split_url
from onceonly.model.errors import SetupError

DEFAULT_PREFIX = "onceonly:"
_EXAMPLE = "redis://localhost:6379/0"
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}")


class RedisAddress(Struct, frozen=True, kw_only=True):
    """A server as a URL names it. `place` is what may be shown; `prefix` begins every key; `timeout` is in seconds."""

    host: str
    port: int
    database: int
    user: str | None
    password: str | None
    secure: bool
    cafile: str | None
    prefix: str
    timeout: float

    @property
    def place(self) -> str:
        """Give the address without credentials."""
        return f"{'rediss' if self.secure else 'redis'}://{self.host}:{self.port}/{self.database}"


def read_address(url: str) -> RedisAddress:
    """Take a redis:// or rediss:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its password."""
    parts, port = split_url(url, "Redis", _EXAMPLE)
    options = read_options(parts.query, "Redis", ("prefix", "timeout", "cafile"))
    database, prefix = parts.path.strip("/") or "0", options.get("prefix", DEFAULT_PREFIX)
    if not re.fullmatch(r"\d{1,5}", database):
        raise SetupError(f"{database!r} is not the number of a Redis database: use a URL such as {_EXAMPLE}")
    if not _PREFIX.fullmatch(prefix):
        raise SetupError(f"prefix {prefix!r}: use a letter or digit, then at most 62 of A-Z, a-z, 0-9, '_', '.', ':' and '-'")
    return RedisAddress(
        host=parts.hostname or "",
        port=port or 6379,
        database=int(database),
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        secure=parts.scheme == "rediss",
        cafile=options.get("cafile"),
        prefix=prefix,
        timeout=read_seconds(options, "timeout", 10.0),
    )
