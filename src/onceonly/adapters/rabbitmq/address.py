"""The URL of a RabbitMQ server. No driver is needed to read it."""

import re
from urllib.parse import quote, urlencode

from onceonly.adapters.rabbitmq.names import LEVELS, TICK_MS
from onceonly.model.errors import SetupError
from onceonly.ports.transport import FanOut, Traits
from onceonly.systems.urls import Hiding, is_plain_http, read_number, read_options, read_seconds, read_truth, split_url

DEFAULT_MAX_BODY = 1024 * 1024
LONGEST_DELAY_SECONDS = (2**LEVELS - 1) * TICK_MS / 1000
"""What a message waits that passes through all levels of delay once, a second at the lowest."""
GREATEST_MAX_BODY = 128 * 1024 * 1024  # what a server takes by default
LEAST_HEARTBEAT_SECONDS = 5.0  # below this RabbitMQ's makers warn of false alarms
_EXAMPLE = "amqp://user:password@host/"
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


class RabbitMQAddress(Hiding, frozen=True, kw_only=True):
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
    parts, port = split_url(url, "RabbitMQ", _EXAMPLE)
    options = read_options(parts.query, "RabbitMQ", _OPTIONS)
    if parts.scheme != "amqps" and (extra := sorted(options.keys() & {*_FILES, "verify"})):
        raise SetupError(f"options for TLS in an amqp:// URL: {', '.join(extra)}. Remove them, or use amqps://")
    lease = read_seconds(options, "lease", 30.0)
    driver = {name: options[name] for name in _FILES if name in options}
    driver |= {"heartbeat": str(round(max(lease, LEAST_HEARTBEAT_SECONDS))), "name": "onceonly"}
    if not read_truth(options, "verify", default=True):
        driver["no_verify_ssl"] = "1"
    return RabbitMQAddress(
        url=parts._replace(query=urlencode(driver), fragment="").geturl(),
        place=f"{parts.scheme}://{parts.hostname}{f':{port}' if port else ''}{quote(parts.path)}",
        prefix=_prefix(options.get("prefix", "")),
        previous=read_truth(options, "previous", default=True),
        lease=lease,
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=GREATEST_MAX_BODY, unit="bytes"),
        timeout=read_seconds(options, "timeout", 30.0),
        management=_management(options.get("management", "")),
    )


def _prefix(prefix: str) -> str:
    if prefix and not _PREFIX.fullmatch(prefix):
        raise SetupError(f"prefix {prefix!r}: use a lower-case letter, then at most 30 of a-z, 0-9, '_', '.' and '-'")
    return prefix


def _management(url: str) -> str:
    if url and not is_plain_http(url):
        raise SetupError("option management: write http://HOST:15672 without a user. The user of the transport URL is used")
    return url
