"""The URL of an Azure Service Bus namespace."""

import re
from urllib.parse import unquote

from onceonly.model.errors import SetupError
from onceonly.ports.transport import FanOut, Traits
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
_OPTIONS = ("prefix", "lease", "max_body", "timeout", "sessions", "manage", "emulator", "management_port")
_PREFIX = re.compile(r"[a-z0-9][a-z0-9_.-]{0,30}")
_HOST = re.compile(r"[a-z0-9][a-z0-9.-]*|\[[0-9a-f:.]+\]")


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
        """What queues at this address are like."""
        return Traits(
            lease=float(self.lease),
            max_body=self.max_body,
            orders_keys=self.sessions,
            longest_delay=None,
            most_sent=MOST_IN_A_BATCH,
            fan_out=FanOut.BROKER,
            late_subscribers=True,
        )

    @property
    def place(self) -> str:
        """Give the address without credentials."""
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
    prefix = options.get("prefix", "")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise SetupError(f"prefix {prefix!r}: use a lower-case letter or digit, then at most 30 of a-z, 0-9, '_', '.' and '-'")
    return ServiceBusAddress(
        host=f"{host}:{port or 5672}" if emulator else host,
        key_name=unquote(parts.username or ""),
        key=unquote(parts.password or ""),
        prefix=prefix,
        lease=read_number(options, "lease", 60, least=1 if emulator else SHORTEST_LEASE, most=LONGEST_LEASE, unit="seconds"),
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=GREATEST_MAX_BODY, unit="bytes"),
        timeout=read_seconds(options, "timeout", 30.0),
        sessions=read_truth(options, "sessions", default=False),
        manages=read_truth(options, "manage", default=True),
        emulator=emulator,
        management_port=read_number(options, "management_port", EMULATOR_MANAGEMENT_PORT, most=65535),
    )
