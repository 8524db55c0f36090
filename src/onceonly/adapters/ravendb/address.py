"""The URL of a RavenDB database. No driver is needed to read it."""

import re
from urllib.parse import quote, unquote

from onceonly.model.errors import SetupError
from onceonly.queues.names import TLS_FILES, check_tls
from onceonly.systems.urls import Hiding, read_options, read_seconds, read_truth, split_url

DEFAULT_PREFIX = "onceonly"
_EXAMPLE = "ravendb+tls://host/database?certfile=client.pem"
_OPTIONS = ("prefix", "timeout", "verify", *TLS_FILES)
_PREFIX = re.compile(r"[a-z0-9_.-]{1,32}")
_DATABASE = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class RavenDBAddress(Hiding, frozen=True, kw_only=True):
    """A database as a URL names it, and the prefix of the documents in it.

    `server` is the base URL of its HTTP interface. `cafile`, `certfile` and `keyfile` are for TLS, and `verifies` is whether
    the server's certificate is verified.
    """

    server: str
    database: str
    prefix: str
    timeout: float
    secure: bool = False
    cafile: str = ""
    certfile: str = ""
    keyfile: str = ""
    verifies: bool = True

    @property
    def place(self) -> str:
        return f"{self.server}/databases/{quote(self.database)}"


def read_address(url: str) -> RavenDBAddress:
    """Take a ravendb:// or ravendb+tls:// URL apart. Raises SetupError."""
    parts, port = split_url(url, "RavenDB", _EXAMPLE)
    secure = parts.scheme == "ravendb+tls"
    if parts.username is not None:
        raise SetupError("RavenDB has no passwords: remove the user from the URL, and use the option certfile")
    options = read_options(parts.query, "RavenDB", _OPTIONS)
    if not secure:
        check_tls(options, "ravendb", "ravendb+tls")
    if "keyfile" in options and "certfile" not in options:
        raise SetupError("option keyfile needs certfile: add the file of the client's certificate")
    database = unquote(parts.path.strip("/"))
    if not _DATABASE.fullmatch(database) or parts.fragment:
        raise SetupError(f"a RavenDB URL needs the name of a database, such as {_EXAMPLE}")
    prefix = options.get("prefix", DEFAULT_PREFIX)
    if not _PREFIX.fullmatch(prefix):
        raise SetupError(f"option prefix={prefix!r}: use 1 to 32 of a-z, 0-9, '_', '.' and '-'; RavenDB ignores case")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return RavenDBAddress(
        server=f"https://{host}:{port or 443}" if secure else f"http://{host}:{port or 8080}",
        database=database,
        prefix=prefix,
        timeout=read_seconds(options, "timeout", 10.0),
        secure=secure,
        cafile=options.get("cafile", ""),
        certfile=options.get("certfile", ""),
        keyfile=options.get("keyfile", ""),
        verifies=read_truth(options, "verify", default=True),
    )
