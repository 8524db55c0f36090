"""Where a database is: of its URL what shows whether two of them name the same one, and nothing secret."""

from pathlib import Path

from msgspec import Struct
from sqlalchemy.engine import URL

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
