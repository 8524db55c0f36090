"""The URL of a Redis server. No driver is needed to read it."""

import re
from urllib.parse import unquote

from onceonly.model.errors import SetupError
from onceonly.ports.transport import FanOut, Traits
from onceonly.systems.urls import Hiding, read_number, read_options, read_seconds, split_url

DEFAULT_PREFIX = "onceonly:"
DEFAULT_LEASE_SECONDS = 30.0
DEFAULT_MAX_BODY = 1024 * 1024
GREATEST_MAX_BODY = 128 * 1024 * 1024
MOST_SENT = 500
"""Messages in one script, and deliveries: the server does nothing else meanwhile."""
MOST_REPLICAS = 99
_OPTIONS = ("prefix", "timeout", "cafile", "lease", "max_body", "replicas")
_EXAMPLE = "redis://localhost:6379/0"
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}")


class RedisAddress(Hiding, frozen=True, kw_only=True):
    """A server as a URL names it. `place` may be shown. `prefix` is part of every key. `timeout` is in seconds.

    The others are for queues. `lease` is for how many seconds a delivery is kept from other receivers, `max_body` is in bytes.
    A message is sent when this number of `replicas` have it.
    """

    host: str
    port: int
    database: int
    user: str | None
    password: str | None
    secure: bool
    cafile: str | None
    prefix: str
    timeout: float
    lease: float = DEFAULT_LEASE_SECONDS
    max_body: int = DEFAULT_MAX_BODY
    replicas: int = 0

    @property
    def traits(self) -> Traits:
        """What queues at this address are like."""
        return Traits(lease=self.lease, max_body=self.max_body, most_sent=MOST_SENT, fan_out=FanOut.BROKER)

    @property
    def place(self) -> str:
        """Give the address without credentials."""
        return f"{'rediss' if self.secure else 'redis'}://{self.host}:{self.port}/{self.database}"


def read_address(url: str) -> RedisAddress:
    """Take a redis:// or rediss:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its password."""
    parts, port = split_url(url, "Redis", _EXAMPLE)
    options = read_options(parts.query, "Redis", _OPTIONS)
    database, prefix = parts.path.strip("/") or "0", options.get("prefix", DEFAULT_PREFIX)
    if not re.fullmatch(r"\d{1,5}", database):
        raise SetupError(f"{database!r:.80} is not the number of a Redis database: use a URL such as {_EXAMPLE}")
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
        lease=read_seconds(options, "lease", DEFAULT_LEASE_SECONDS),
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=GREATEST_MAX_BODY, unit="bytes"),
        replicas=read_number(options, "replicas", 0, least=0, most=MOST_REPLICAS, unit="replicas"),
    )
