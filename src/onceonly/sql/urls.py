"""The URL of a SQL database: how this library's tables in it are named, and whether two URLs lead to the same database."""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from onceonly.model.errors import SetupError
from onceonly.sql.options import POOLED, TLS_OPTIONS, SqlOptions, read_url_options
from onceonly.systems.urls import Hiding, check_login

USE_POOLED = "If the URL leads to PgBouncer or another pooler, add the option pgbouncer=true to it"


class DatabaseAddress(Hiding, SqlOptions, frozen=True, kw_only=True):
    """A database as a URL names it, and its options. Of these, `pgbouncer` and those for TLS are options of `url` as well."""

    url: URL


def read_url(url: str) -> DatabaseAddress:
    """Take a database URL apart. Raises SetupError, saying what is wrong with it, and never repeats its password."""
    check_login(url)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None  # the text of the error may repeat parts of the URL, so it is not a cause or context of ours
    if parsed is None:
        raise SetupError("not a database URL: use a URL such as sqlite:///shop.db")
    options = read_url_options(url)
    query = dict(options.tls)
    if options.pgbouncer is not None:
        query[POOLED] = "true" if options.pgbouncer else "false"
    return DatabaseAddress(url=parsed.set(query=query), **asdict(options))


def tls_options(url: URL) -> dict[str, str]:
    names = TLS_OPTIONS.get(url.get_backend_name(), ())
    return {name: str(url.query[name]) for name in names if name in url.query}


LOCAL = frozenset({"", "localhost", "127.0.0.1", "::1"})
PORTS = {"postgresql": 5432, "mysql": 3306}
FILE_URI = "file:"


class DatabaseIdentity(Struct, frozen=True):
    """A database on a server, or in a file; a database in memory is not equal to any other."""

    system: str
    host: str
    port: int
    database: str


def whereabouts(url: URL, *, embedded: bool = False) -> DatabaseIdentity | None:
    """Return where a URL leads, whatever its driver. All names of this machine are one. None for SQLite in memory.

    An `embedded` database is in a file, as SQLite is.
    """
    system = url.get_backend_name().replace("mariadb", "mysql")
    if embedded or system == "sqlite":
        path = (url.database or "").removeprefix(FILE_URI)
        is_memory = path in {"", ":memory:"} or url.query.get("mode") == "memory"
        return None if is_memory else DatabaseIdentity(system, "", 0, str(Path(path).resolve()))
    host = url.host or _text(url.query.get("host", ""))
    port = int(url.port or PORTS.get(system, 0))
    is_local = host.lower() in LOCAL or host.startswith("/")  # a path is a socket's
    database = url.database or url.username or ""
    return DatabaseIdentity(system, "localhost" if is_local else host.lower(), port, database)


def written(url: URL) -> str:
    """Show where a URL leads in the words of who wrote it; no user, no password, and of its parameters only a host."""
    query = {name: value for name, value in url.query.items() if name == "host"}
    place = URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database, query=query)
    return place.render_as_string()


def _text(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ",".join(value)
