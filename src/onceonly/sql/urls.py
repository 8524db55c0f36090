"""Reading the URL of a SQL database: where it is, and how this library's tables in it are named."""

import re

from msgspec import Struct
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from onceonly.model.errors import SetupError

DEFAULT_PREFIX = "onceonly_"
_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,30}_?")
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,62}")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_OPTIONS = frozenset({"prefix", "schema", "isolation", "create", "timeout", "lease", "pgbouncer"})
POOLED = "pgbouncer"
USE_POOLED = "If PgBouncer or another pooler is between, add pgbouncer=true to the options of the database URL."


class DatabaseAddress(Struct, frozen=True, kw_only=True):
    """A database as a URL names it, the options of this library taken out.

    `prefix` begins every table name; `schema` is where the tables are, on a database that has schemas; `isolation` is the level
    of the store's units; `create` says whether missing tables may be made at start; `timeout` is for how many
    seconds a lock is waited for; `lease` for how many a delivery of a queue in it is kept for its receiver.
    `pgbouncer` stays among the options of `url`: whether a pooler such as PgBouncer is before a PostgreSQL server.
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
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise SetupError("this is no database URL; write for example sqlite:///shop.db") from error
    options = {name: _single(name, value) for name, value in parsed.query.items()}
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise SetupError(f"unknown option {', '.join(unknown)} in a database URL; there are {', '.join(sorted(_OPTIONS))}")
    query = {}
    if POOLED in options:
        if parsed.get_backend_name() != "postgresql":
            raise SetupError(f"option {POOLED} is for PostgreSQL only")
        query[POOLED] = "true" if _truth(POOLED, options[POOLED]) else "false"
    return DatabaseAddress(
        url=parsed.set(query=query),
        prefix=checked_prefix(options.get("prefix", DEFAULT_PREFIX)),
        schema=_checked_schema(options["schema"]) if "schema" in options else None,
        isolation=options.get("isolation"),
        create=_truth("create", options.get("create", "true")),
        timeout=_seconds("timeout", options.get("timeout", "5")),
        lease=_seconds("lease", options.get("lease", "30")),
    )


def checked_prefix(prefix: str) -> str:
    """Give the prefix back. Raises SetupError unless it is on the allow-list of names that need no quoting anywhere."""
    if not _PREFIX.fullmatch(prefix):
        raise SetupError(f"prefix {prefix!r}: use a lower-case letter, then at most 31 of a-z, 0-9 and _")
    return prefix


def _checked_schema(schema: str) -> str:
    if not _SCHEMA.fullmatch(schema):
        raise SetupError(f"schema {schema!r}: use a lower-case letter, then at most 62 of a-z, 0-9 and _")
    return schema


def _single(name: str, value: str | tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise SetupError(f"option {name} is given more than once in a database URL")
    return value


def _truth(name: str, text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise SetupError(f"option {name}={text!r}: write true or false")
    return _TRUTH[text.lower()]


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", text):
        raise SetupError(f"option {name}={text!r}: write a number of seconds")
    return float(text)
