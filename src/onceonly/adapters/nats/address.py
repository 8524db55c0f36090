"""The URL of NATS servers. No driver is needed to read it."""

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from onceonly.model.errors import SetupError
from onceonly.ports.transport import FanOut, Traits

HEADER_BYTES = 64 * 1024
"""The part of a server's `max_payload` that is left for headers. JetStream stores no more of them."""
DEFAULT_MAX_BODY = 1024 * 1024 - HEADER_BYTES
GREATEST_MAX_BODY = 64 * 1024 * 1024 - HEADER_BYTES
GREATEST_REPLICAS = 5
_PREFIX = re.compile(r"[a-z][a-z0-9_.-]{0,30}")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(?::\d{1,5})?")
_FILES = ("cafile", "certfile", "keyfile")
_OPTIONS = ("prefix", "lease", "max_body", "timeout", "replicas", "creds", *_FILES, "verify")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class NatsAddress(Struct, frozen=True, kw_only=True):
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
        """What queues at this address are like."""
        return Traits(lease=self.lease, max_body=self.max_body, fan_out=FanOut.SENDER)


def read_address(url: str) -> NatsAddress:
    """Take a nats:// or nats+tls:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its password."""
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise SetupError("not a NATS URL: use a URL such as nats://user:password@host:4222") from error
    secure = parts.scheme == "nats+tls"
    login, _, names = parts.netloc.rpartition("@")
    hosts = [host for host in names.split(",") if host]
    if not hosts or not all(map(_HOST.fullmatch, hosts)) or parts.path.strip("/") or parts.fragment:
        raise SetupError(
            "not a NATS URL: use nats://HOST:4222, or nats://HOST1:4222,HOST2:4222, and write / in a password as %2F"
        )
    user, colon, password = login.partition(":")
    options = _checked(given, secure=secure)
    return NatsAddress(
        servers=tuple(f"{'tls' if secure else 'nats'}://{host}" for host in hosts),
        place=f"{parts.scheme}://{','.join(hosts)}",
        user=unquote(user),
        password=unquote(password) if colon else None,
        prefix=_prefix(options.get("prefix", "")),
        lease=_seconds("lease", options.get("lease", "30")),
        max_body=_number("max_body", options.get("max_body", str(DEFAULT_MAX_BODY)), GREATEST_MAX_BODY),
        timeout=_seconds("timeout", options.get("timeout", "30")),
        replicas=_number("replicas", options.get("replicas", "1"), GREATEST_REPLICAS),
        creds=options.get("creds", ""),
        secure=secure,
        cafile=options.get("cafile", ""),
        certfile=options.get("certfile", ""),
        keyfile=options.get("keyfile", ""),
        verifies=_truth("verify", options.get("verify", "true")),
    )


def _checked(given: Iterable[tuple[str, str]], *, secure: bool) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in given:
        if name not in _OPTIONS:
            raise SetupError(f"unknown option {name!r} in a NATS URL. Supported: {', '.join(sorted(_OPTIONS))}")
        if name in options:
            raise SetupError(f"option {name} is set more than once in a NATS URL: set it once")
        options[name] = value
    if not secure and (extra := sorted(options.keys() & {*_FILES, "verify"})):
        raise SetupError(f"options for TLS in a nats:// URL: {', '.join(extra)}. Remove them, or use nats+tls://")
    if "keyfile" in options and "certfile" not in options:
        raise SetupError("option keyfile needs certfile: add the file of the client's certificate")
    return options


def _prefix(prefix: str) -> str:
    if prefix and not _PREFIX.fullmatch(prefix):
        raise SetupError(f"prefix {prefix!r}: use a lower-case letter, then at most 30 of a-z, 0-9, '_', '.' and '-'")
    return prefix


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", text) or float(text) <= 0:
        raise SetupError(f"option {name}={text!r}: use a number of seconds above 0, below 10000, such as 30")
    return float(text)


def _number(name: str, text: str, greatest: int) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not 0 < int(text) <= greatest:
        raise SetupError(f"option {name}={text!r}: use a number from 1 to {greatest}")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise SetupError(f"option {name}={text!r}: use true or false")
    return _TRUTH[text.lower()]
