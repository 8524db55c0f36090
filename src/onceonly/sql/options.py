"""The options of this library in the URL of a SQL database. This module does not import SQLAlchemy."""

import re
from collections.abc import Mapping

from msgspec import Struct, field

from onceonly.model.errors import SetupError
from onceonly.ports.transport import FanOut, Traits
from onceonly.systems.urls import check_login, read_options, read_seconds, read_truth

__all__ = ["TLS_OPTIONS", "SqlOptions", "queue_traits", "read_url_options", "read_url_traits"]

LEASE_SECONDS = 30.0
MAX_BODY = 1024 * 1024
DEFAULT_PREFIX = "onceonly_"
POOLED = "pgbouncer"
_WITHOUT_SCHEMAS = frozenset({"mysql", "mariadb", "sqlite"})
"""Databases whose URLs can be rejected before their driver is imported. A dialect rejects the option again."""
_PGSSL = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_MYSSL = ("ssl-mode", "ssl-ca", "ssl-cert", "ssl-key")
TLS_OPTIONS: Mapping[str, tuple[str, ...]] = {"postgresql": _PGSSL, "mysql": _MYSSL, "mariadb": _MYSSL}
"""Options for TLS, by the first part of the scheme. Each database has the names that its own clients use."""
_MODES: Mapping[str, tuple[str, ...]] = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "ssl-mode": ("DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"),
}
SYSTEM_CA = "system"
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,30}_?")
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,62}")
_PORT = re.compile(r":([^:\]]+)\Z")
_GREATEST_PORT = 65_535


class SqlOptions(Struct, frozen=True, kw_only=True):
    """The options in the URL of a SQL database.

    * `prefix`: the beginning of all table names.
    * `schema`: where the tables are, in a database that has schemas.
    * `isolation`: the isolation level of units.
    * `create`: whether missing tables are created at start, in an embedded database.
    * `timeout`: seconds to wait for a lock.
    * `lease`: seconds for which a delivery is kept from other receivers.
    * `pgbouncer`: whether a pooler is in front of a PostgreSQL server. None: it is detected.
    * `tls`: the options for TLS by their names, see `TLS_OPTIONS`.
    """

    prefix: str = DEFAULT_PREFIX
    schema: str | None = None
    isolation: str | None = None
    create: bool = True
    timeout: float = 5.0
    lease: float = LEASE_SECONDS
    pgbouncer: bool | None = None
    tls: Mapping[str, str] = field(default_factory=dict)


def read_url_options(url: str) -> SqlOptions:
    """Read the options of a database URL. Use it as the `address` of a `System` with a dialect.

    Raises SetupError for an unknown option, for a wrong value, and for a port that does not exist.
    """
    check_login(url)
    scheme, _, rest = url.partition(":")
    place, _, query = rest.partition("?")
    server = place.removeprefix("//").partition("/")[0].rpartition("@")[2]
    if port := _PORT.search(server):
        if not re.fullmatch("[0-9]{1,20}", port[1]):  # not shown: without a host, it is perhaps the password
            raise SetupError(f"the port in this URL is not a number: use one from 1 to {_GREATEST_PORT}")
        if not 0 < int(port[1]) <= _GREATEST_PORT:
            raise SetupError(f"port {port[1]}: use a number from 1 to {_GREATEST_PORT}")
    backend = scheme.partition("+")[0].lower()
    names = TLS_OPTIONS.get(backend, ())
    options = read_options(query, "database", {*SqlOptions.__struct_fields__, *names} - {"tls"})
    if POOLED in options and backend != "postgresql":
        raise SetupError(f"option {POOLED} is for PostgreSQL only: remove it")
    if "schema" in options and backend in _WITHOUT_SCHEMAS:
        raise SetupError(f"schema={options['schema']!r}: {backend} has no schemas. Use ?prefix= instead")
    return SqlOptions(
        prefix=checked_prefix(options.get("prefix", DEFAULT_PREFIX)),
        schema=_checked_schema(options["schema"]) if "schema" in options else None,
        isolation=options.get("isolation"),
        create=read_truth(options, "create", default=True),
        timeout=read_seconds(options, "timeout", 5.0, zero=True),
        lease=read_seconds(options, "lease", LEASE_SECONDS),
        pgbouncer=read_truth(options, POOLED, default=False) if POOLED in options else None,
        tls=_checked_tls({name: options[name] for name in names if name in options}),
    )


def read_url_traits(url: str) -> Traits:
    """Return what queues in the database of a URL are like. Use it as the `traits` of a `System` with a dialect."""
    return queue_traits(lease=read_url_options(url).lease)


def queue_traits(*, lease: float = LEASE_SECONDS, max_body: int = MAX_BODY) -> Traits:
    """Return what queues in a SQL database are like, for a lease in seconds and a longest body in bytes."""
    return Traits(lease=lease, max_body=max_body, longest_delay=None, fan_out=FanOut.SENDER)


def checked_prefix(prefix: str) -> str:
    """Return the prefix. Raises SetupError unless it is on the allow-list of names that need no quoting anywhere."""
    if not _PREFIX.fullmatch(prefix):
        raise SetupError(f"prefix {prefix!r}: use a lower-case letter, then at most 31 of a-z, 0-9 and _")
    return prefix


def _checked_tls(options: Mapping[str, str]) -> Mapping[str, str]:
    for name, modes in _MODES.items():
        if options.get(name, modes[0]) not in modes:
            raise SetupError(f"option {name}={options[name]!r}: use {', '.join(modes[:-1])} or {modes[-1]}")
    for certificate, key in (("sslcert", "sslkey"), ("ssl-cert", "ssl-key")):
        if (certificate in options) != (key in options):
            raise SetupError(f"options {certificate} and {key} belong together: set both or none")
    if options.get("sslrootcert") == SYSTEM_CA and options.get("sslmode", "verify-full") != "verify-full":
        raise SetupError("sslrootcert=system needs sslmode=verify-full")
    if options.get("ssl-mode") == "DISABLED" and len(options) > 1:
        raise SetupError("ssl-mode=DISABLED with other options for TLS: remove it or them")
    return options


def check_files(options: Mapping[str, str]) -> None:
    """Check the files that options for TLS name. Raises SetupError if one of them cannot be read."""
    for name, path in options.items():
        if name not in _MODES and (name, path) != ("sslrootcert", SYSTEM_CA):
            try:
                with open(path, "rb"):  # noqa: PTH123 - whatever the driver opens
                    pass
            except OSError as error:
                raise SetupError(f"option {name}={path!r}: this file cannot be read ({error.strerror})") from error


def _checked_schema(schema: str) -> str:
    if not _SCHEMA.fullmatch(schema):
        raise SetupError(f"schema {schema!r}: use a lower-case letter, then at most 62 of a-z, 0-9 and _")
    return schema
