"""The URL of a RabbitMQ server. No driver is needed to read it."""

from urllib.parse import quote, urlencode

from onceonly.adapters.rabbitmq.names import LEVELS, TICK_MS
from onceonly.model.errors import SetupError
from onceonly.ports.transport import DestinationRule, FanOut, Traits
from onceonly.queues.names import DOTTED_PREFIX, TLS_FILES, check_tls, read_prefix
from onceonly.systems.urls import Hiding, is_plain_http, read_number, read_options, read_seconds, read_truth, split_url

DEFAULT_MAX_BODY = 1024 * 1024
LONGEST_DELAY_SECONDS = (2**LEVELS - 1) * TICK_MS / 1000
"""What a message waits that passes through all levels of delay once, a second at the lowest."""
GREATEST_MAX_BODY = 128 * 1024 * 1024  # what a server takes by default
LEAST_HEARTBEAT_SECONDS = 5.0  # below this RabbitMQ's makers warn of false alarms
_EXAMPLE = "amqp://user:password@host/"
_FILES = (*TLS_FILES, "capath")
DESTINATIONS = (DestinationRule(kind="queue"), DestinationRule(kind="exchange"))
"""Delays end in queues and exchanges of this library."""
_OPTIONS = (
    "prefix",
    "lease",
    "max_body",
    "timeout",
    "management",
    *_FILES,
    "verify",
)


class RabbitMQAddress(Hiding, frozen=True, kw_only=True):
    """A server as a URL names it, the options of this library taken out.

    * `url`: for the driver, with credentials. `place`: what may be shown.
    * `prefix`: the beginning of every name.
    * `lease`: for how many seconds a receiver may be silent (the heartbeat) until others get its deliveries.
    * `timeout`: for how many seconds to wait for an answer.
    * `max_body`: in bytes.
    * `management`: the URL of the management HTTP API, empty if there is none.
    """

    url: str
    place: str
    prefix: str = ""
    lease: float = 30.0
    max_body: int = DEFAULT_MAX_BODY
    timeout: float = 30.0
    management: str = ""

    @property
    def traits(self) -> Traits:
        return Traits(
            lease=None,
            max_body=self.max_body,
            longest_delay=LONGEST_DELAY_SECONDS,
            fan_out=FanOut.BROKER,
            late_subscribers=True,
            destinations=DESTINATIONS,
        )


def read_address(url: str) -> RabbitMQAddress:
    """Take an amqp:// or amqps:// URL apart. Raises SetupError, saying what is wrong with it; never repeats its password."""
    parts, port = split_url(url, "RabbitMQ", _EXAMPLE)
    options = read_options(parts.query, "RabbitMQ", _OPTIONS)
    if parts.scheme != "amqps":
        check_tls(options, "amqp", "amqps", "capath")
    lease = read_seconds(options, "lease", 30.0)
    driver = {name: options[name] for name in _FILES if name in options}
    driver |= {"heartbeat": str(round(max(lease, LEAST_HEARTBEAT_SECONDS))), "name": "onceonly"}
    if not read_truth(options, "verify", default=True):
        driver["no_verify_ssl"] = "1"
    return RabbitMQAddress(
        url=parts._replace(query=urlencode(driver), fragment="").geturl(),
        place=f"{parts.scheme}://{parts.hostname}{f':{port}' if port else ''}{quote(parts.path)}",
        prefix=read_prefix(options, *DOTTED_PREFIX),
        lease=lease,
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=GREATEST_MAX_BODY, unit="bytes"),
        timeout=read_seconds(options, "timeout", 30.0),
        management=_management(options.get("management", "")),
    )


def _management(url: str) -> str:
    if url and not is_plain_http(url):
        raise SetupError("option management: write http://HOST:15672 without a user. The user of the transport URL is used")
    return url
