"""The URL of NATS servers. No driver is needed to read it."""

import re
from urllib.parse import unquote

from onceonly.model.errors import SetupError
from onceonly.ports.transport import DestinationRule, FanOut, Traits
from onceonly.queues.names import DOTTED_PREFIX, TLS_FILES, check_tls, read_prefix
from onceonly.systems.urls import Hiding, read_number, read_options, read_seconds, read_truth, split_parts

HEADER_BYTES = 64 * 1024
"""The part of a server's `max_payload` that is left for headers. JetStream stores no more of them."""
DEFAULT_MAX_BODY = 1024 * 1024 - HEADER_BYTES
GREATEST_MAX_BODY = 64 * 1024 * 1024 - HEADER_BYTES
GREATEST_REPLICAS = 5
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(?::\d{1,5})?")
DESTINATIONS = (DestinationRule(kind="subject"),)
_OPTIONS = ("prefix", "lease", "max_body", "timeout", "replicas", "creds", *TLS_FILES, "verify")


class NatsAddress(Hiding, frozen=True, kw_only=True):
    """Servers of one cluster as a URL names them, and the options of this library.

    `servers` are URLs of the driver without credentials; `place` is what may be shown. `user` without a `password` is a token.
    `prefix` begins every name. `lease` is the number of seconds after which a silent receiver's deliveries are given to others,
    and `timeout` that for which an answer of the server is waited for. `max_body` is in bytes. `replicas` is for new streams.
    `creds` is the file with a user's credentials. `cafile`, `certfile` and `keyfile` are for TLS, and `verifies` is whether the
    server's certificate is verified.
    """

    servers: tuple[str, ...]
    place: str
    user: str = ""
    password: str | None = None
    prefix: str = ""
    lease: float = 30.0
    max_body: int = DEFAULT_MAX_BODY
    timeout: float = 30.0
    replicas: int = 1
    creds: str = ""
    secure: bool = False
    cafile: str = ""
    certfile: str = ""
    keyfile: str = ""
    verifies: bool = True

    @property
    def traits(self) -> Traits:
        return Traits(lease=self.lease, max_body=self.max_body, fan_out=FanOut.SENDER, destinations=DESTINATIONS)


def read_address(url: str) -> NatsAddress:
    """Take a nats:// or nats+tls:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its password."""
    parts = split_parts(url, "NATS", "nats://user:password@host:4222")
    secure = parts.scheme == "nats+tls"
    login, _, names = parts.netloc.rpartition("@")
    hosts = [host for host in names.split(",") if host]
    if not hosts or not all(map(_HOST.fullmatch, hosts)) or parts.path.strip("/") or parts.fragment:
        raise SetupError("not a NATS URL: use nats://HOST:4222, or nats://HOST1:4222,HOST2:4222")
    user, colon, password = login.partition(":")
    options = read_options(parts.query, "NATS", _OPTIONS)
    if not secure:
        check_tls(options, "nats", "nats+tls")
    if "keyfile" in options and "certfile" not in options:
        raise SetupError("option keyfile needs certfile: add the file of the client's certificate")
    return NatsAddress(
        servers=tuple(f"{'tls' if secure else 'nats'}://{host}" for host in hosts),
        place=f"{parts.scheme}://{','.join(hosts)}",
        user=unquote(user),
        password=unquote(password) if colon else None,
        prefix=read_prefix(options, *DOTTED_PREFIX),
        lease=read_seconds(options, "lease", 30.0),
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=GREATEST_MAX_BODY, unit="bytes"),
        timeout=read_seconds(options, "timeout", 30.0),
        replicas=read_number(options, "replicas", 1, most=GREATEST_REPLICAS, unit="replicas"),
        creds=options.get("creds", ""),
        secure=secure,
        cafile=options.get("cafile", ""),
        certfile=options.get("certfile", ""),
        keyfile=options.get("keyfile", ""),
        verifies=read_truth(options, "verify", default=True),
    )
