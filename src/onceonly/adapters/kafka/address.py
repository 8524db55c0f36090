"""The URL of Kafka brokers. No driver is needed to read it."""

import re
from urllib.parse import unquote

from onceonly.model.errors import SetupError
from onceonly.ports.transport import DestinationRule, FanOut, Traits
from onceonly.queues.names import TLS_FILES, check_tls
from onceonly.systems.urls import Hiding, read_number, read_options, read_seconds, read_truth, split_parts

HEADER_BYTES = 64 * 1024
"""The part of a broker's `message.max.bytes` that is left for key, headers and framing."""
DEFAULT_MAX_BODY = 1_000_000 - HEADER_BYTES
"""Brokers take batches of 1,048,588 bytes unless they are configured otherwise."""
GREATEST_MAX_BODY = 64 * 1024 * 1024
DEFAULT_PORT = 9092
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DESTINATIONS = (
    DestinationRule(
        kind="topic",
        names=r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}",
        name_rule="the name of a Kafka topic, which has 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
    ),
)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(?::\d{1,5})?")
_OPTIONS = ("max_body", "timeout", "sasl", *TLS_FILES, "verify")


class KafkaAddress(Hiding, frozen=True, kw_only=True):
    """Brokers of one cluster as a URL names them, and the options of this library.

    `servers` are host and port of the brokers that are asked first; `place` is what may be shown. `sasl` is the mechanism for
    `user` and `password`. `timeout` is the number of seconds for which a confirmation of the broker is waited for. `max_body`
    is in bytes. `cafile`, `certfile` and `keyfile` are for TLS, and `verifies` is whether the broker's certificate is verified.
    """

    servers: tuple[str, ...]
    place: str
    user: str = ""
    password: str = ""
    sasl: str = "PLAIN"
    max_body: int = DEFAULT_MAX_BODY
    timeout: float = 30.0
    secure: bool = False
    cafile: str = ""
    certfile: str = ""
    keyfile: str = ""
    verifies: bool = True

    @property
    def traits(self) -> Traits:
        return Traits(
            lease=None,
            max_body=self.max_body,
            orders_keys=True,
            fan_out=FanOut.BROKER,
            destinations=DESTINATIONS,
            has_queues=False,
        )


def read_address(url: str) -> KafkaAddress:
    """Take a kafka:// or kafka+tls:// URL apart. Raises SetupError, which says what is wrong and never repeats its password."""
    parts = split_parts(url, "Kafka", "kafka://host:9092")
    secure = parts.scheme == "kafka+tls"
    login, _, names = parts.netloc.rpartition("@")
    hosts = [host for host in names.split(",") if host]
    if not hosts or not all(map(_HOST.fullmatch, hosts)) or parts.path.strip("/") or parts.fragment:
        raise SetupError("not a Kafka URL: use kafka://HOST:9092, or kafka://HOST1:9092,HOST2:9092")
    user, colon, password = login.partition(":")
    if login and not (user and colon):
        raise SetupError("the user in a Kafka URL needs a password: use kafka+tls://USER:PASSWORD@HOST:9092")
    options = read_options(parts.query, "Kafka", _OPTIONS)
    if not secure:
        check_tls(options, "kafka", "kafka+tls")
    if "keyfile" in options and "certfile" not in options:
        raise SetupError("option keyfile needs certfile: add the file of the client's certificate")
    return KafkaAddress(
        servers=tuple(map(_with_port, hosts)),
        place=f"{parts.scheme}://{','.join(hosts)}",
        user=unquote(user),
        password=unquote(password),
        sasl=_read_mechanism(options.get("sasl"), has_login=bool(login)),
        max_body=read_number(options, "max_body", DEFAULT_MAX_BODY, most=GREATEST_MAX_BODY, unit="bytes"),
        timeout=read_seconds(options, "timeout", 30.0),
        secure=secure,
        cafile=options.get("cafile", ""),
        certfile=options.get("certfile", ""),
        keyfile=options.get("keyfile", ""),
        verifies=read_truth(options, "verify", default=True),
    )


def _with_port(host: str) -> str:
    return host if re.search(r":\d+$", host) and not host.endswith("]") else f"{host}:{DEFAULT_PORT}"


def _read_mechanism(given: str | None, *, has_login: bool) -> str:
    if given is None:
        return MECHANISMS[0]
    if given not in MECHANISMS:
        raise SetupError(f"option sasl={given!r}: use one of {', '.join(MECHANISMS)}")
    if not has_login:
        raise SetupError("option sasl needs a user and a password: use kafka+tls://USER:PASSWORD@HOST:9092")
    return given
