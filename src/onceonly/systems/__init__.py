"""Systems: what a URL can name. Each is a plug-in that is found by the scheme of the URL.

An entry point of the group `onceonly.systems` has the scheme as its name (without what follows a `+`), and a `System` as its
object. It is loaded when a URL with this scheme is read. The modules that need a driver are imported when the system is opened.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Struct

from onceonly.model.errors import SetupError
from onceonly.ports.documents import Documents
from onceonly.ports.effects import Things
from onceonly.ports.surroundings import Chance, Clock
from onceonly.ports.transport import Topology, Transport

GROUP = "onceonly.systems"
"""The group of entry points that packages with further systems use."""

Role = Literal["store", "transport", "deduplication", "tokens", "blobs", "dead_letters"]
"""What a URL may be given for."""


class Offer(NamedTuple):
    """The resources that handlers may ask the units of a store for, as full names of types.

    `asynchronous` is for `async def` handlers, `synchronous` for `def` handlers. `entities` is true when the units have
    entities, for handlers of both kinds.
    """

    asynchronous: frozenset[str] = frozenset()
    synchronous: frozenset[str] = frozenset()
    entities: bool = False

    def match(self, kind: Any, names: frozenset[str]) -> type | None:
        """Return the offered type that `kind` is or derives from, or None."""
        lineage = kind.__mro__ if isinstance(kind, type) else ()
        return next((each for each in lineage if full_name(each) in names), None)

    def words(self, names: frozenset[str]) -> str:
        """Name these types in an error message."""
        return " or ".join(sorted(name.rpartition(".")[2] for name in names)) or "nothing from this store"


SQL = Offer(
    asynchronous=frozenset({"sqlalchemy.ext.asyncio.session.AsyncSession", "sqlalchemy.ext.asyncio.engine.AsyncConnection"}),
    synchronous=frozenset({"sqlalchemy.orm.session.Session", "sqlalchemy.engine.base.Connection"}),
    entities=True,
)
"""What every SQL store offers."""


class Driver(Struct, frozen=True):
    """The packages that a system's driver consists of, and the extra of this distribution that installs them.

    `connection` is the full name of the driver's own connection type, where a handler may ask for it.
    """

    packages: tuple[str, ...] = ()
    extra: str = ""
    connection: str = ""

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [package for package in self.packages if not _is_installed(package)]


class DocumentService(Protocol):
    """A module or an object that opens documents. `create` makes the table, container or bucket that they need."""

    def open_documents(self, url: str, *, clock: Clock) -> AbstractAsyncContextManager[Documents]:
        """Open the documents at a URL. Raises SetupError."""

    async def create(self, url: str) -> None:
        """Make the place of a URL where it is missing. Raises SetupError, TryAgain, Failed."""


class CheckedThings(Things, Protocol):
    """Things in a place that can be checked."""

    async def check(self) -> tuple[str, ...]:
        """Check, at start, that the place exists; returns warnings for people. Raises SetupError, TryAgain."""


class ArtifactService(Protocol):
    """A module or an object that opens a place for artifacts, such as blobs."""

    def open_artifacts(self, url: str) -> AbstractAsyncContextManager[CheckedThings]:
        """Open the place of a URL. Raises SetupError."""

    async def create(self, url: str) -> None:
        """Make the place of a URL where it is missing. Raises SetupError, TryAgain, Failed."""


class TransportService(Protocol):
    """A module or an object that opens queues of a broker."""

    def open_transport(
        self, url: str, endpoint: str, *, clock: Clock, chance: Chance
    ) -> AbstractAsyncContextManager[Transport]:
        """Open the queue of one endpoint. It connects at its first use. Raises SetupError."""

    def temporary_transport(
        self, url: str, topologies: Sequence[Topology], *, clock: Clock, chance: Chance
    ) -> AbstractAsyncContextManager[None]:
        """Make what these queues need, and delete it with the queues at the end."""


class System(Struct, frozen=True, kw_only=True, eq=False):
    """One system: its drivers, and what an endpoint can use it for.

    `drivers` are named by what follows the `+` in a URL's scheme; the one named "" is for URLs without it. `dialect` makes
    the `Dialect` of a SQL database, given the name of a driver. `documents`, `artifacts` and `transport` import and return the
    module that opens them. Where `in_process` is true, other processes do not see what is in it. `drops_expired` is false
    where documents stay after their time of expiry, so that a worker has to delete them. `parts` is how one place is divided
    among several users: by the option `prefix` of its URL, by a longer path, or not at all.
    """

    name: str
    drivers: Mapping[str, Driver]
    dialect: Callable[[str], Any] | None = None
    documents: Callable[[], DocumentService] | None = None
    artifacts: Callable[[], ArtifactService] | None = None
    transport: Callable[[], TransportService] | None = None
    in_process: bool = False
    drops_expired: bool = True
    parts: Literal["prefix", "path", ""] = ""
    offer: Offer = Offer()

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
    def keeps_documents(self) -> bool:
        """Whether it is a document service: a store, but not in SQL and not in this process's memory."""
        return self.documents is not None and self.dialect is None and not self.in_process


def system_of(scheme: str) -> System | None:
    """Return the system of a URL scheme, or None. Raises SetupError when its plug-in cannot be loaded."""
    return _load(scheme.partition("+")[0].lower())


def driver_of(scheme: str) -> Driver | None:
    """Return the driver that a URL scheme names, or None."""
    base, _, variant = scheme.lower().partition("+")
    system = _load(base)
    return None if system is None else system.drivers.get(variant)


def systems() -> dict[str, System]:
    """Load every system that is installed, by scheme. For error messages and documentation."""
    return {scheme: system for scheme in sorted(_plugins()) if (system := _load(scheme)) is not None}


def full_name(kind: type) -> str:
    """Return the module and the qualified name of a type."""
    return f"{kind.__module__}.{kind.__qualname__}"


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=GROUP)}


@cache
def _load(scheme: str) -> System | None:
    plugin = _plugins().get(scheme)
    if plugin is None:
        return None
    try:
        found = plugin.load()
    except (ImportError, AttributeError) as error:
        raise SetupError(f"the plug-in {plugin.value} for {scheme}:// URLs cannot be loaded: {error}") from error
    if not isinstance(found, System):
        raise SetupError(f"the plug-in {plugin.value} for {scheme}:// URLs is a {type(found).__name__}, not a System")
    return found


def _is_installed(package: str) -> bool:
    """Look for a package and for the packages it is in: a namespace such as `azure` may be missing altogether."""
    parts = package.split(".")
    names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return all(find_spec(name) is not None for name in names)
