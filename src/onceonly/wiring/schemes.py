"""What a URL or a setting names, told without importing any driver: schemes, what to install, what handlers may ask for."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from onceonly.model.errors import DriverMissing, SetupError


class Offer(NamedTuple):
    """The resources that a store's units offer to `async def` and to `def` handlers, as full names of types.

    `entities` says that its units have entities, for handlers of both kinds.
    """

    asynchronous: frozenset[str] = frozenset()
    synchronous: frozenset[str] = frozenset()
    entities: bool = False

    def match(self, kind: Any, names: frozenset[str]) -> type | None:
        """Give the offered type that `kind` is, or derives from; None when there is none."""
        lineage = kind.__mro__ if isinstance(kind, type) else ()
        return next((each for each in lineage if full_name(each) in names), None)

    def words(self, names: frozenset[str]) -> str:
        """Name these types to a person."""
        return " or ".join(sorted(name.rpartition(".")[2] for name in names)) or "nothing from this store"


SQL = Offer(
    asynchronous=frozenset({"sqlalchemy.ext.asyncio.session.AsyncSession", "sqlalchemy.ext.asyncio.engine.AsyncConnection"}),
    synchronous=frozenset({"sqlalchemy.orm.session.Session", "sqlalchemy.engine.base.Connection"}),
    entities=True,
)
RAW = {"asyncpg": frozenset({"asyncpg.connection.Connection"})}
"""The driver's own connection, on which a unit's transaction is open, by the driver's package. asyncpg's has no `commit`."""

MEMORY = Offer(*(frozenset({"onceonly.stores.memory.Notebook"}),) * 2, entities=True)
DOCUMENTS = Offer(entities=True)
OBJECTS = frozenset({"sqlalchemy.ext.asyncio.engine.AsyncEngine", "sqlalchemy.ext.asyncio.session.async_sessionmaker"})


ROLES = ("store", "transport", "deduplication", "tokens", "blobs", "dead_letters")
"""What a URL may be given for: a store, a queue, a dedup store, and places for tokens, for blobs and for dead letters."""
_ENGINES = frozenset({"store", "dead_letters"})
_KEEPS = frozenset({"store", "deduplication", "tokens", "dead_letters"})


class Scheme(NamedTuple):
    """What a URL scheme stands for: the packages it needs, the extra that installs them, and what there is an adapter for.

    `documents` names the module that opens its documents, and makes their place; `things` the one that opens its blobs.
    """

    packages: tuple[str, ...] = ()
    extra: str = ""
    roles: frozenset[str] = frozenset()
    documents: str = ""
    things: str = ""

    def serves(self, role: str) -> bool:
        """Tell whether there is an adapter for one of `ROLES`."""
        return role in self.roles


_SQL = _KEEPS | {"transport"}
_AZURE = "azure.storage.blob"
SCHEMES: Mapping[str, Scheme] = {
    "sqlite": Scheme(("sqlalchemy", "aiosqlite"), roles=_SQL),
    "sqlite+aiosqlite": Scheme(("sqlalchemy", "aiosqlite"), roles=_SQL),
    "memory": Scheme(roles=frozenset(ROLES)),
    "postgresql": Scheme(("asyncpg",), "postgresql", _SQL),
    "postgresql+asyncpg": Scheme(("asyncpg",), "postgresql", _SQL),
    "postgresql+psycopg": Scheme(("psycopg",), "psycopg", _SQL),
    "mysql": Scheme(("asyncmy",), "mysql", _SQL),
    "mariadb": Scheme(("asyncmy",), "mysql", _SQL),
    "amqp": Scheme(("aiormq",), "rabbitmq", frozenset({"transport"})),
    "amqps": Scheme(("aiormq",), "rabbitmq", frozenset({"transport"})),
    "azure-blob": Scheme((_AZURE, "aiohttp"), "azure-blob", _KEEPS | {"blobs"}, "azure_blob", "azure_blob"),
    "azure-table": Scheme(("azure.data.tables", "aiohttp"), "azure-table", _KEEPS, "azure_table"),
    "cosmos": Scheme(("azure.cosmos", "aiohttp"), "cosmos", _KEEPS, "cosmos"),
    "dynamodb": Scheme(("aiobotocore",), "dynamodb", _KEEPS, "dynamodb"),
    "folder": Scheme(roles=frozenset({"blobs"})),
    "mongodb": Scheme(("pymongo",), "mongodb", _KEEPS, "mongodb"),
    "mongodb+srv": Scheme(("pymongo",), "mongodb", _KEEPS, "mongodb"),
    "redis": Scheme(("redis",), "redis", _KEEPS, "redis"),
    "rediss": Scheme(("redis",), "redis", _KEEPS, "redis"),
    "s3": Scheme(("aiobotocore",), "s3", _KEEPS | {"blobs"}, "s3", "s3"),
}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def scheme_of(url: str) -> str:
    """Give the scheme of a URL, lower case; empty when there is none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def shown(url: object) -> str:
    """Give a URL as messages may show it: no user, no password, no parameters."""
    if not isinstance(url, str):
        return type(url).__name__
    scheme, separator, rest = url.partition("://")
    if not separator:
        return f"{scheme_of(url)}:..." if scheme_of(url) else "(no URL)"
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    if "@" in path:  # an unescaped slash in a password: show nothing of it
        return f"{scheme}://..."
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def url_problem(setting: object, role: str) -> str | None:
    """Say what is wrong with the setting for a role as far as it can be told without its driver, or None."""
    if not isinstance(setting, str):
        return None if role in _ENGINES and is_engine(setting) else _no_url(setting, role)
    scheme = scheme_of(setting)
    if scheme in SCHEMES:
        return None
    named = f"nobody knows the URL scheme {scheme!r}" if scheme else "this is no URL"
    return f"{role}={shown(setting)!r}: {named}; there is {working(role)}"


def require(setting: object, role: str) -> None:
    """Make sure that this version has an adapter, and that its driver is installed. Raises SetupError, DriverMissing."""
    if problem := url_problem(setting, role):
        raise SetupError(problem)
    if not isinstance(setting, str):
        return
    name = scheme_of(setting)
    scheme = SCHEMES[name]
    adapter = "" if scheme.serves(role) else f"this version of onceonly has no {role} for {name}://; there is {working(role)}"
    missing = [package for package in scheme.packages if not _is_installed(package)]
    if missing:
        install = f"pip install 'onceonly[{scheme.extra}]'" if scheme.extra else "pip install onceonly"
        reason = f"{role}={shown(setting)!r}: its driver, {' and '.join(missing)}, is not installed: {install}"
        raise DriverMissing(f"{reason}; and {adapter}" if adapter else reason)
    if adapter:
        raise SetupError(f"{role}={shown(setting)!r}: {adapter}")


def working(role: str) -> str:
    """List the schemes that work, for people."""
    return ", ".join(sorted(f"{name}://" for name, scheme in SCHEMES.items() if scheme.serves(role) and "+" not in name))


def has_no_tables(url: str) -> bool:
    """Tell of a URL that what it names is no SQL database."""
    scheme = scheme_of(url)
    return scheme in SCHEMES and SCHEMES[scheme].roles != _SQL


def keeps_documents(setting: object) -> bool:
    """Tell whether a setting is the URL of a service that keeps documents, and has no tables."""
    return isinstance(setting, str) and bool(SCHEMES.get(scheme_of(setting), Scheme()).documents)


def _is_installed(package: str) -> bool:
    """Look for a package, and for what it is in: a namespace such as `azure` may be missing altogether."""
    parts = package.split(".")
    names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return all(find_spec(name) is not None for name in names)


def offer_of(store: object) -> Offer:
    """Tell what handlers may ask a store for."""
    name = scheme_of(store) if isinstance(store, str) else _driver_of(store)
    if name == "memory":
        return MEMORY
    if isinstance(store, str) and has_no_tables(store):
        return DOCUMENTS
    driver = SCHEMES[name].packages[0] if name in SCHEMES else ""
    return SQL._replace(asynchronous=SQL.asynchronous | RAW.get(driver, frozenset()))


def is_engine(setting: object) -> bool:
    """Tell whether this is an AsyncEngine or an async_sessionmaker, without importing SQLAlchemy."""
    return any(full_name(each) in OBJECTS for each in type(setting).__mro__)


def _driver_of(store: Any) -> str:
    engine = store.kw.get("bind") if hasattr(store, "kw") else store  # a session factory's
    return str(getattr(getattr(engine, "url", None), "drivername", ""))


def full_name(kind: type) -> str:
    """Give the full name of a type."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _no_url(setting: object, role: str) -> str:
    if full_name(type(setting)) == "sqlalchemy.engine.base.Engine":
        return f"{role} is a synchronous Engine; make it with sqlalchemy.ext.asyncio.create_async_engine"
    wanted = "a URL, an AsyncEngine or an async_sessionmaker" if role in _ENGINES else "a URL"
    return f"{role} must be {wanted}, not {type(setting).__name__}"
