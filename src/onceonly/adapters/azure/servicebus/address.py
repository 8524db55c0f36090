"""The URL of an Azure Service Bus namespace, and the names of objects in it, which are the same in upper and lower case.

The queue of an endpoint `shop` is `shop`. Events of the type `shop.paid.v1` go to the topic `event__shop.paid.v1`, where each
endpoint that subscribes has a subscription of its name. Every character but a-z, 0-9, '.' and '-' is written as `_` and two
digits for each byte, so no two names become one.
"""

import re
from functools import lru_cache
from hashlib import blake2b
from urllib.parse import unquote
from zlib import crc32

from msgspec import Struct

from onceonly.model.errors import SetupError
from onceonly.model.escaping import is_utf8, raw
from onceonly.ports.transport import DestinationRule, FanOut, Traits
from onceonly.queues.names import read_prefix
from onceonly.systems.urls import Hiding, read_number, read_options, read_seconds, read_truth, split_url

HEADER_BYTES = 64 * 1024
"""The part of a message that the service allows for its properties."""
DEFAULT_MAX_BODY = 256 * 1024 - HEADER_BYTES
GREATEST_MAX_BODY = 100 * 1024 * 1024 - HEADER_BYTES
SHORTEST_LEASE, LONGEST_LEASE = 5, 300
MOST_IN_A_BATCH = 1000
"""Messages in one batch that is sent."""
EMULATOR_MANAGEMENT_PORT = 5300
_EXAMPLE = "servicebus://KEYNAME:KEY@NAMESPACE.servicebus.windows.net"
_ENTITY = {"names": r"[A-Za-z0-9][A-Za-z0-9._/-]{0,259}", "name_rule": "the name of a queue or a topic in Service Bus"}
DESTINATIONS = (
    DestinationRule(kind="queue", longest_delay=None, **_ENTITY),
    DestinationRule(kind="topic", longest_delay=None, **_ENTITY),
)
_OPTIONS = ("prefix", "lease", "max_body", "timeout", "sessions", "manage", "emulator", "management_port")
_PREFIX = r"[a-z0-9][a-z0-9_.-]{0,30}", "a lower-case letter or digit, then at most 30 of a-z, 0-9, '_', '.' and '-'"
_HOST = re.compile(r"[a-z0-9][a-z0-9.-]*|\[[0-9a-f:.]+\]")
LONGEST_NAME, LONGEST_SUBSCRIPTION, LONGEST_SESSION = 200, 50, 128
OWN_SESSION = "onceonly-"
SHARED_SESSIONS = 16
"""Sessions among which messages without a key are divided: a session of its own for each would take a connection for each."""
_TOPIC = "event__"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789.-")
_ESCAPED = re.compile(rb"_([0-9a-f]{2})")


class ServiceBusAddress(Hiding, frozen=True, kw_only=True):
    """A namespace as a URL names it, and the options of this library.

    `host` has a port for an emulator only. Without a `key_name`, azure-identity finds a credential. `prefix` begins every name.
    `lease` is the lock duration of new queues, in whole seconds, and `timeout` how long an answer is waited for. `max_body` is
    in bytes. `sessions` is whether queues have sessions. `manages` is whether objects are created and
    read over HTTPS.
    """

    host: str
    key_name: str = ""
    key: str = ""
    prefix: str = ""
    lease: int = 60
    max_body: int = DEFAULT_MAX_BODY
    timeout: float = 30.0
    sessions: bool = False
    manages: bool = True
    emulator: bool = False
    management_port: int = EMULATOR_MANAGEMENT_PORT

    @property
    def traits(self) -> Traits:
        return Traits(
            lease=float(self.lease),
            max_body=self.max_body,
            orders_keys=self.sessions,
            longest_delay=None,
            most_sent=MOST_IN_A_BATCH,
            fan_out=FanOut.BROKER,
            late_subscribers=True,
            destinations=DESTINATIONS,
        )

    @property
    def place(self) -> str:
        return f"servicebus://{self.host}"


def read_servicebus(url: str) -> ServiceBusAddress:
    """Take a servicebus:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its key."""
    parts, port = split_url(url, "Service Bus", _EXAMPLE)
    options = read_options(parts.query, "Service Bus", _OPTIONS)
    host = parts.hostname or ""
    if not _HOST.fullmatch(host) or parts.path.strip("/") or parts.fragment:
        raise SetupError(f"not a Service Bus URL: use {_EXAMPLE}, without a path, and write + in a key as %2B")
    emulator = read_truth(options, "emulator", default=False)
    if not emulator and (port or "management_port" in options):
        raise SetupError("a port in a Service Bus URL is for an emulator only: remove it, or add emulator=true")
    if bool(parts.username) != bool(parts.password):
        raise SetupError(f"a Service Bus URL needs the name of a key and the key, or neither: use {_EXAMPLE}")
    if emulator and not parts.username:
        raise SetupError("an emulator needs a key: use servicebus://RootManageSharedAccessKey:KEY@localhost?emulator=true")
    return ServiceBusAddress(
        host=f"{host}:{port or 5672}" if emulator else host,
        key_name=unquote(parts.username or ""),
        key=unquote(parts.password or ""),
        prefix=read_prefix(options, *_PREFIX),
        lease=read_number(options, "lease", 60, least=1 if emulator else SHORTEST_LEASE, most=LONGEST_LEASE, unit="seconds"),
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=GREATEST_MAX_BODY, unit="bytes"),
        timeout=read_seconds(options, "timeout", 30.0),
        sessions=read_truth(options, "sessions", default=False),
        manages=read_truth(options, "manage", default=True),
        emulator=emulator,
        management_port=read_number(options, "management_port", EMULATOR_MANAGEMENT_PORT, most=65535),
    )


class EntityNames(Struct, frozen=True):
    """The names of all objects behind a prefix."""

    prefix: str = ""

    def queue(self, endpoint: str) -> str:
        return self.prefix + _short(_written(endpoint), LONGEST_NAME)

    def topic(self, kind: str) -> str:
        return f"{self.prefix}{_TOPIC}{_short(_written(kind), LONGEST_NAME)}"

    def subscription(self, endpoint: str) -> str:
        return _short(_written(endpoint), LONGEST_SUBSCRIPTION)

    def kind_of(self, topic: str) -> str | None:
        """Return the event type of a topic; None for other topics, and for a hash."""
        start = self.prefix + _TOPIC
        if not topic.startswith(start):
            return None
        written = topic.removeprefix(start)
        try:
            kind = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), written.encode()).decode()
        except UnicodeDecodeError:
            return None
        return kind if self.topic(kind) == topic else None


def session_of(key: str, source: str, id_: str) -> str:
    """Choose the session of a message, the same for all its copies: its key, or a hash of a key that the service does not take.

    A message without a key is in one of a few sessions, whose order has no meaning.
    """
    if key and len(key) <= LONGEST_SESSION and is_utf8(key) and not key.startswith(OWN_SESSION):
        return key
    if key:
        return f"{OWN_SESSION}key-{blake2b(raw(key), digest_size=16).hexdigest()}"
    return f"{OWN_SESSION}{crc32(raw(source + id_)) % SHARED_SESSIONS}"  # ids that count up are spread evenly


def is_shared_session(session: str) -> bool:
    """Return whether the messages of a session have no key."""
    return session.startswith(OWN_SESSION) and session.removeprefix(OWN_SESSION).isdigit()


@lru_cache(10_000)
def _written(name: str) -> str:
    letters = name.encode()
    last = len(letters) - 1
    return "".join(
        chr(byte) if byte in _PLAIN and not (at in (0, last) and byte in b".-") else f"_{byte:02x}"
        for at, byte in enumerate(letters)
    )


def _short(written: str, longest: int) -> str:
    return written if len(written) <= longest else "hash__" + blake2b(written.encode(), digest_size=16).hexdigest()
