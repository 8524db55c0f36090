"""Systems: databases, brokers and services that a URL can name. Each is a plug-in, found by the scheme of the URL.

An entry point of the group `onceonly.systems` has the scheme as its name, in lower case and without what follows a `+`. Its
object is a `System`. It is loaded when a URL with this scheme is read. Modules that need a driver are imported when the system
is opened, by `imported` and `queues`. docs/how-to/systems.md shows how to write one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from msgspec import Struct, field

from onceonly.model.errors import SetupError
from onceonly.model.wording import an
from onceonly.ports.documents import Documents
from onceonly.ports.effects import ArtifactStore
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Traits, Transport

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "GROUP",
    "SQL",
    "ArtifactService",
    "CheckedArtifactStore",
    "DocumentService",
    "Driver",
    "Family",
    "KeySpace",
    "Offer",
    "Role",
    "System",
    "TransportService",
    "imported",
    "queues",
    "schemes",
    "system_of",
    "systems",
]

GROUP = "onceonly.systems"
"""The group of entry points in which packages register their systems."""

Role = Literal["store", "transport", "deduplication", "tokens", "blobs", "dead_letters", "projections"]
"""The settings of an endpoint that take a URL."""


class Family(Enum):
    """The kind of a store, which decides what opens it."""

    SQL = "sql"
    """Tables in a SQL database."""
    DOCUMENTS = "documents"
    """A service that stores single documents."""
    MEMORY = "memory"
    """The memory of one process."""


_SESSIONS = frozenset({"sqlalchemy.ext.asyncio.session.AsyncSession", "sqlalchemy.orm.session.Session"})


class Offer(NamedTuple):
    """The resources that handlers may ask the units of a store for, as full names of types.

    `asynchronous` is for `async def` handlers, `synchronous` for `def` handlers. `entities` is true when the units have
    entities, for handlers of both kinds. `documents` is true when they write documents of the application as well. `instead`
    says what handlers use where a host has the transactions, and none of these.
    """

    asynchronous: frozenset[str] = frozenset()
    synchronous: frozenset[str] = frozenset()
    entities: bool = False
    documents: bool = False
    instead: str = ""

    def match(self, kind: Any, names: frozenset[str]) -> type | None:
        """Return the offered type that `kind` is or derives from, or None."""
        lineage = kind.__mro__ if isinstance(kind, type) else ()
        return next((each for each in lineage if full_name(each) in names), None)

    def is_connection(self, kind: Any) -> bool:
        """Return whether `kind` is an offered connection: it executes a statement at once, a session when it is flushed."""
        return self.match(kind, (self.asynchronous | self.synchronous) - _SESSIONS) is not None

    def words(self, names: frozenset[str]) -> str:
        """Name these types in an error message."""
        return " or ".join(sorted(name.rpartition(".")[2] for name in names)) or "nothing from this store"


SQL = Offer(
    asynchronous=frozenset({"sqlalchemy.ext.asyncio.session.AsyncSession", "sqlalchemy.ext.asyncio.engine.AsyncConnection"}),
    synchronous=frozenset({"sqlalchemy.orm.session.Session", "sqlalchemy.engine.base.Connection"}),
    entities=True,
)
"""The resources of every SQL store."""


class Driver(Struct, frozen=True):
    """The packages that a driver consists of, by the names that are imported.

    `requirement` is what pip has to install to get them, for example "onceonly-toy". `connection` is the full name of the
    driver's own connection type, where handlers may ask for it.
    """

    packages: tuple[str, ...] = ()
    requirement: str = "onceonly"
    connection: str = ""

    @property
    def install(self) -> str:
        """The command that installs the driver."""
        from shlex import quote  # noqa: PLC0415 - rarely needed

        return f"pip install {quote(self.requirement)}"

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [package for package in self.packages if not _is_installed(package)]


class KeySpace(NamedTuple):
    """The keys that a place uses: all that begin with `prefix` in a `container`, such as a bucket or a table.

    The name of the container is the same however its URL is spelled. An empty prefix means all keys.
    """

    container: str
    prefix: str

    def overlaps(self, other: "KeySpace") -> bool:
        """Return whether a key can be in both: the containers are the same, and one prefix begins with the other."""
        nested = self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)
        return self.container == other.container and nested


class DocumentService(Protocol):
    """A module or an object that opens the documents of a place: a table, a container, a bucket."""

    def open_documents(self, url: str, *, clock: Clock) -> AbstractAsyncContextManager[Documents]:
        """Open the documents at a URL, and close them at the end. It may connect at its first call. Raises SetupError."""

    async def create(self, url: str) -> None:
        """Create the place of a URL if it is missing. `onceonly schema create` calls it. Raises SetupError, RetryableError."""


class CheckedArtifactStore(ArtifactStore, Protocol):
    """Artifacts in a place that can be checked."""

    async def check(self) -> tuple[str, ...]:
        """Check, at start, that the place exists. Returns warnings for people. Raises SetupError, RetryableError."""


class ArtifactService(Protocol):
    """A module or an object that opens a place for artifacts, such as blobs."""

    def open_artifacts(self, url: str) -> AbstractAsyncContextManager[CheckedArtifactStore]:
        """Open the place of a URL, and close it at the end. It may connect at its first call. Raises SetupError."""

    async def create(self, url: str) -> None:
        """Create the place of a URL if it is missing. `onceonly schema create` calls it. Raises SetupError, RetryableError."""


class TransportService(Protocol):
    """A module or an object that opens the queues of a broker."""

    def open_transport(
        self, url: str, endpoint: str, *, clock: Clock, random: RandomSource
    ) -> AbstractAsyncContextManager[Transport]:
        """Open the queue of one endpoint. It connects at its first call. Raises SetupError."""

    def temporary_transport(
        self, url: str, topologies: Sequence[Topology], *, clock: Clock, random: RandomSource
    ) -> AbstractAsyncContextManager[None]:
        """Delete these queues with their messages at the end of a block. It may declare them. For `onceonly demo` and tests."""


def imported(name: str, attribute: str = "") -> Callable[..., Any]:
    """Return a function that imports an object when it is called, for an argument of `System`.

    `name` is that of a function, such as "onceonly_toy.address:read_address". The function is called, and what it returns is
    returned, or an `attribute` of that. With the name of a module, such as "onceonly_toy.file", the module is returned.
    """

    def call(*arguments: Any) -> Any:
        found = _find(name)
        result = found(*arguments) if ":" in name else found
        return getattr(result, attribute) if attribute else result

    return call


def queues(transport: str) -> Callable[[], TransportService]:
    """Return the argument `transport` of a `System`, from the name of a `QueueClass`.

    The name is such as "onceonly_toymq.transport:ToyTransport". The endpoints of a process that have the same URL share one
    connection.
    """

    @cache
    def opened() -> TransportService:
        from onceonly.systems.shared import SharedQueues  # noqa: PLC0415 - only when a queue is opened

        return SharedQueues(_find(transport))

    return opened


def _find(name: str) -> Any:
    module, _, attribute = name.partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


class System(Struct, frozen=True, kw_only=True, eq=False):
    """One system: the drivers it can be reached with, and what an endpoint can use it for.

    `dialect`, `documents`, `artifacts` and `transport` are called when the system is opened, and import what needs a driver.
    `imported` and `queues` make such functions:

    * `dialect` returns the `Dialect` of a SQL database, for the name of a driver. Such a database is a
      store, a transport, and everything that documents can be.
    * `documents` returns the module that opens documents: a store, a dedup store, tokens, dead letters.
    * `artifacts` returns the module that opens artifacts: `blobs=`.
    * `transport` returns the module that opens queues.

    `drivers` are named by what follows the `+` in a URL's scheme. The driver named "" is for URLs without a `+`.
    `resources` is what handlers may ask the units of a store for. Leave it out unless they offer something unusual.
    `in_process` is true where other processes cannot see the data. `drops_expired` is false where documents stay after their
    time of expiry, so that a worker has to delete them. `parts` is how one place is divided among several users: by the
    option `prefix` of its URL, by a longer path, or not at all. `lists_pending` is true where the documents list those with
    unsent messages (`ListsPending`), so that a relay finds them. `saves_together` is true where the documents save one of
    theirs together with documents of the application (`SavesTogether`).
    `address` reads a URL when an endpoint is defined, and raises SetupError for one that cannot be used. It needs no driver.
    `traits` returns what the broker does with the queues of a URL. It needs no driver, and connects to nothing. The transport
    of the URL has the same `traits`. None: they are known when the transport is open.
    `keys` returns the keys that a place uses, from its URL. It needs no driver. An endpoint whose blobs and documents have
    overlapping keys is refused. None: the system keeps its blobs and its documents apart, or has only one of them.
    """

    name: str
    drivers: Mapping[str, Driver] = field(default_factory=lambda: {"": Driver()})
    dialect: Callable[[str], Any] | None = None
    documents: Callable[[], DocumentService] | None = None
    artifacts: Callable[[], ArtifactService] | None = None
    transport: Callable[[], TransportService] | None = None
    resources: Offer | None = None
    in_process: bool = False
    drops_expired: bool = True
    lists_pending: bool = False
    saves_together: bool = False
    parts: Literal["prefix", "path", ""] = ""
    address: Callable[[str], object] | None = None
    traits: Callable[[str], Traits] | None = None
    keys: Callable[[str], KeySpace] | None = None

    @property
    def offer(self) -> Offer:
        """What handlers may ask the units of a store for: its own `resources`, else those of its kind of store."""
        if self.resources is not None:
            return self.resources
        return SQL if self.dialect is not None else Offer(entities=self.documents is not None, documents=self.saves_together)

    def serves(self, role: Role) -> bool:
        """Return whether a URL of this system may be given for a role."""
        match role:
            case "transport":
                return self.dialect is not None or self.transport is not None
            case "blobs":
                return self.artifacts is not None
            case _:
                return self.dialect is not None or self.documents is not None

    @property
    def family(self) -> Family | None:
        """The kind of store. None for a system that cannot be a store, such as a broker."""
        if self.dialect is not None:
            return Family.SQL
        if self.documents is None:
            return None
        return Family.MEMORY if self.in_process else Family.DOCUMENTS


def system_of(scheme: str) -> System | None:
    """Return the system of a URL scheme, or None. Raises SetupError when its plug-in cannot be used."""
    return _load(scheme.partition("+")[0].lower())


def driver_of(scheme: str) -> Driver | None:
    """Return the driver that a URL scheme names, or None. Raises SetupError when its plug-in cannot be used."""
    base, _, variant = scheme.lower().partition("+")
    system = _load(base)
    return None if system is None else system.drivers.get(variant)


def schemes() -> tuple[str, ...]:
    """Return the schemes of all installed systems. Loads none of them."""
    return tuple(sorted(_plugins()))


def systems() -> dict[str, System]:
    """Load all installed systems, by scheme, for error messages and documentation. Leaves out those that cannot be used."""
    loaded = {}
    for scheme in schemes():
        with suppress(SetupError):
            loaded[scheme] = system_of(scheme)
    return {scheme: system for scheme, system in loaded.items() if system is not None}


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@cache
def _plugins() -> "dict[str, list[EntryPoint]]":
    from importlib.metadata import entry_points  # noqa: PLC0415 - imports much, and only a URL needs it

    found: dict[str, list[EntryPoint]] = {}
    for each in entry_points(group=GROUP):
        found.setdefault(each.name, []).append(each)
    return found


@cache
def _load(scheme: str) -> System | None:
    plugins = _plugins().get(scheme)
    if not plugins:
        return None
    if len({each.value for each in plugins}) > 1:
        packages = " and ".join(sorted(map(_distribution, plugins)))
        raise SetupError(f"several packages provide {scheme}:// URLs: {packages}. Uninstall all but one of them.")
    plugin = plugins[0]
    described = f"the plug-in {plugin.value!r} of the package {_distribution(plugin)}, which provides {scheme}:// URLs"
    try:
        found = plugin.load()
    except Exception as error:
        raise SetupError(
            f"cannot load {described}: {type(error).__name__}: {error}. Repair or uninstall the package."
        ) from error
    if not isinstance(found, System):
        kind = full_name(type(found))
        raise SetupError(f"cannot use {described}: it must be an onceonly.systems.System, not {an(kind)}")
    return found


def _distribution(plugin: "EntryPoint") -> str:
    return "(unknown)" if plugin.dist is None else plugin.dist.name


def _is_installed(package: str) -> bool:
    """Look for a package and for the packages it is in: a namespace such as `azure` may be missing altogether."""
    parts = package.split(".")
    names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return all(find_spec(name) is not None for name in names)
