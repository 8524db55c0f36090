"""The URL of a Redis server, and the keys of the queues behind it. No driver is needed to read it.

All keys of a prefix contain it in braces, `{onceonly:}stream:shop`. Redis Cluster hashes only what is in braces, so they are
in one slot, and a script may use several of them.
"""

import re
from urllib.parse import unquote

from msgspec import Struct

from onceonly.model.errors import SetupError
from onceonly.ports.transport import DestinationRule, FanOut, Traits
from onceonly.queues.names import read_prefix
from onceonly.systems.urls import Hiding, read_number, read_options, read_seconds, split_url

DEFAULT_PREFIX = "onceonly:"
DEFAULT_LEASE_SECONDS = 30.0
DEFAULT_MAX_BODY = 1024 * 1024
GREATEST_MAX_BODY = 128 * 1024 * 1024
MOST_SENT = 500
"""Messages in one script, and deliveries: the server does nothing else meanwhile."""
MOST_REPLICAS = 99
DESTINATIONS = (DestinationRule(kind="stream"),)
_OPTIONS = ("prefix", "timeout", "cafile", "lease", "max_body", "replicas")
_EXAMPLE = "redis://localhost:6379/0"
_PREFIX = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}", "a letter or digit, then at most 62 of A-Z, a-z, 0-9, '_', '.', ':' and '-'"
GROUP = b"onceonly"
"""The consumer group of every stream."""


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
        return Traits(
            lease=self.lease, max_body=self.max_body, most_sent=MOST_SENT, fan_out=FanOut.BROKER, destinations=DESTINATIONS
        )

    @property
    def place(self) -> str:
        return f"{'rediss' if self.secure else 'redis'}://{self.host}:{self.port}/{self.database}"


def read_address(url: str) -> RedisAddress:
    """Take a redis:// or rediss:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its password."""
    parts, port = split_url(url, "Redis", _EXAMPLE)
    options = read_options(parts.query, "Redis", _OPTIONS)
    database = parts.path.strip("/") or "0"
    if not re.fullmatch(r"\d{1,5}", database):
        raise SetupError(f"{database!r:.80} is not the number of a Redis database: use a URL such as {_EXAMPLE}")
    return RedisAddress(
        host=parts.hostname or "",
        port=port or 6379,
        database=int(database),
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        secure=parts.scheme == "rediss",
        cafile=options.get("cafile"),
        prefix=read_prefix(options, *_PREFIX, default=DEFAULT_PREFIX),
        timeout=read_seconds(options, "timeout", 10.0),
        lease=read_seconds(options, "lease", DEFAULT_LEASE_SECONDS),
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=GREATEST_MAX_BODY, unit="bytes"),
        replicas=read_number(options, "replicas", 0, least=0, most=MOST_REPLICAS, unit="replicas"),
    )


class QueueKeys(Struct, frozen=True):
    """The keys of one queue."""

    stream: bytes
    delayed: bytes
    released: bytes
    wake: bytes
    subscriptions: bytes


class Keys:
    """The keys behind one prefix."""

    def __init__(self, prefix: str) -> None:
        self.start = f"{{{prefix}}}".encode()

    def queue(self, endpoint: str) -> QueueKeys:
        """Return the keys of an endpoint's queue.

        * `stream`: what waits and what is held.
        * `delayed`: a sorted set of what is not due, by the time when it is due.
        * `released`: a list of the ids of entries that were released, and not taken since.
        * `wake`: a stream of one entry. A new entry wakes receivers that wait.
        * `subscriptions`: a set of the types that the endpoint subscribes to.
        """
        parts = (b"stream:", b"delayed:", b"released:", b"wake:", b"subscriptions:")
        name = endpoint.encode()
        return QueueKeys(*(self.start + part + name for part in parts))

    def subscribers(self, kind: str) -> bytes:
        """Return the key of the set of endpoints that subscribe to a type."""
        return self.start + b"subscribers:" + kind.encode()
