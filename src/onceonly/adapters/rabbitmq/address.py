"""The URL of a RabbitMQ server. No driver is needed to read it."""

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from msgspec import Struct

from onceonly.adapters.rabbitmq.names import LEVELS, TICK_MS
from onceonly.model.errors import SetupError
from onceonly.ports.transport import FanOut, Traits

DEFAULT_MAX_BODY = 1024 * 1024
LONGEST_DELAY_SECONDS = (2**LEVELS - 1) * TICK_MS / 1000
"""What a message waits that passes through all levels of delay once, a second at the lowest."""
GREATEST_MAX_BODY = 128 * 1024 * 1024  # what a server takes by default
LEAST_HEARTBEAT_SECONDS = 5.0  # below this RabbitMQ's makers warn of false alarms
_PREFIX = re.compile(r"[a-z][a-z0-9_.-]{0,30}")
_OPTIONS = (
    "prefix",
    "previous",
    "lease",
    "max_body",
    "timeout",
    "management",
    "cafile",
    "capath",
    "certfile",
    "keyfile",
    "verify",
)
_FILES = ("cafile", "capath", "certfile", "keyfile")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class RabbitMQAddress(Struct, frozen=True, kw_only=True):
    """A server as a URL names it, the options of this library taken out.

    * `url`: for the driver, with credentials. `place`: what may be shown.
    * `prefix`: the beginning of every name.
    * `lease`: for how many seconds a receiver may be silent (the heartbeat) until others get its deliveries.
    * `timeout`: for how many seconds to wait for an answer.
    * `max_body`: in bytes.
    * `previous`: whether objects of the previous version are served.
    * `management`: the URL of the management HTTP API, empty if there is none.
    """

    url: str
    place: str
    prefix: str = ""
    previous: bool = True
    lease: float = 30.0
    max_body: int = DEFAULT_MAX_BODY
    timeout: float = 30.0
    management: str = ""

    @property
    def traits(self) -> Traits:
        """What queues at this address are like."""
        return Traits(
            lease=None,
            max_body=self.max_body,
            longest_delay=LONGEST_DELAY_SECONDS,
            fan_out=FanOut.BROKER,
            late_subscribers=True,
        )


def read_address(url: str) -> RabbitMQAddress:
    """Take an amqp:// or amqps:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise SetupError("not a RabbitMQ URL: use a URL such as amqp://user:password@host/") from error
    if not host or "@" in parts.path:
        raise SetupError("this RabbitMQ URL has no host: add one, and write / in a password as %2F")
    options = _checked(given, secure=parts.scheme == "amqps")
    lease, timeout = _seconds("lease", options.get("lease", "30")), _seconds("timeout", options.get("timeout", "30"))
    driver = {name: options[name] for name in _FILES if name in options}
    driver |= {"heartbeat": str(round(max(lease, LEAST_HEARTBEAT_SECONDS))), "name": "onceonly"}
    if not _truth("verify", options.get("verify", "true")):
        driver["no_verify_ssl"] = "1"
    return RabbitMQAddress(
        url=parts._replace(query=urlencode(driver), fragment="").geturl(),
        place=f"{parts.scheme}://{host}{f':{port}' if port else ''}{quote(parts.path)}",
        prefix=_prefix(options.get("prefix", "")),
        previous=_truth("previous", options.get("previous", "true")),
        lease=lease,
        max_body=_bytes(options.get("max_body", str(DEFAULT_MAX_BODY))),
        timeout=timeout,
        management=_management(options.get("management", "")),
    )


def _checked(given: Iterable[tuple[str, str]], *, secure: bool) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in given:
        if name not in _OPTIONS:
            raise SetupError(f"unknown option {name!r} in a RabbitMQ URL. Supported: {', '.join(sorted(_OPTIONS))}")
        if name in options:
            raise SetupError(f"option {name} is set more than once in a RabbitMQ URL: set it once")
        options[name] = value
    if not secure and (extra := sorted(options.keys() & {*_FILES, "verify"})):
        raise SetupError(f"options for TLS in an amqp:// URL: {', '.join(extra)}. Remove them, or use amqps://")
    return options


def _prefix(prefix: str) -> str:
    if prefix and not _PREFIX.fullmatch(prefix):
        raise SetupError(f"prefix {prefix!r}: use a lower-case letter, then at most 30 of a-z, 0-9, '_', '.' and '-'")
    return prefix


def _management(url: str) -> str:
    if url and not _is_plain_http(url):
        raise SetupError("option management: write http://HOST:15672 without a user. The user of the transport URL is used")
    return url


def _is_plain_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    is_extended = parts.username is not None or parts.query or parts.fragment or port == 0
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not is_extended


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", text) or float(text) <= 0:
        raise SetupError(f"option {name}={text!r}: use a number of seconds above 0, below 10000, such as 30")
    return float(text)


def _bytes(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not 0 < int(text) <= GREATEST_MAX_BODY:
        raise SetupError(f"option max_body={text!r}: use a number of bytes from 1 to {GREATEST_MAX_BODY}")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise SetupError(f"option {name}={text!r}: use true or false")
    return _TRUTH[text.lower()]
