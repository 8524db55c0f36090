"""Reading the URL of a SQL database: where it is, and how this library's tables in it are named."""

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from onceonly.model.errors import SetupError
from onceonly.sql.options import DEFAULT_PREFIX, POOLED, TLS_OPTIONS, read_url_options
from onceonly.systems.urls import Hiding, check_login

USE_POOLED = "If the URL leads to PgBouncer or another pooler, add the option pgbouncer=true to it"


class DatabaseAddress(Hiding, frozen=True, kw_only=True):
    """A database as a URL names it, the options of this library taken out.

    The attributes are those of `SqlOptions`. `pgbouncer` and the options for TLS stay among the options of `url`.
    """

    url: URL
    prefix: str = DEFAULT_PREFIX
    schema: str | None = None
    isolation: str | None = None
    create: bool = True
    timeout: float = 5.0
    lease: float = 30.0


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
    return DatabaseAddress(
        url=parsed.set(query=query),
        prefix=options.prefix,
        schema=options.schema,
        isolation=options.isolation,
        create=options.create,
        timeout=options.timeout,
        lease=options.lease,
    )


def tls_options(url: URL) -> dict[str, str]:
    """Return the options for TLS in the `url` of a `DatabaseAddress`."""
    names = TLS_OPTIONS.get(url.get_backend_name(), ())
    return {name: str(url.query[name]) for name in names if name in url.query}
