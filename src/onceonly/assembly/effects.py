"""What handlers may create: blobs and projections, in places that URLs name, and requests to services."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from onceonly.algorithms.effects import NoArtifacts, RegisteredEffects
from onceonly.assembly.document_places import open_documents, tell
from onceonly.assembly.parts import StoreParts
from onceonly.assembly.stores import errors_name_setting
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate
from onceonly.documents.projection_effects import OwnProjection, ProjectionEffects
from onceonly.documents.projections import KEPT, DocumentProjection, Tell
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import CommitRefused, DriverMissing, SetupError
from onceonly.model.remote import HTTP
from onceonly.ports.effects import ArtifactStore, Effects, Register
from onceonly.ports.environment import Clock
from onceonly.ports.maintenance import Expires
from onceonly.ports.projections import ProjectionWriter
from onceonly.ports.remote import Peers
from onceonly.runtime.environment import Environment
from onceonly.systems import ArtifactService

if TYPE_CHECKING:  # few endpoints call others
    from onceonly.ports.third_party import ThirdParties

_log = EventLogger(logging.getLogger("onceonly.http"))
_projection_log = EventLogger(logging.getLogger("onceonly.projections"))


@asynccontextmanager
async def open_blobs(place: Location | str) -> AsyncIterator[ArtifactStore]:
    """Open a place for blobs. Raises SetupError when it is missing, RetryableError when it is away."""
    found = locate(place, "blobs")
    async with _service(found).open_artifacts(found.setting) as artifacts:
        tell(found, await artifacts.check())
        yield artifacts


async def create_blobs(place: Location | str) -> None:
    """Make the place for blobs where it is missing. Raises SetupError, RetryableError, CommitFailed."""
    found = locate(place, "blobs")
    await _service(found).create(found.setting)


def _service(place: Location) -> ArtifactService:
    place.require_driver("blobs")
    assert place.system.artifacts is not None  # noqa: S101 - it serves the role
    return place.system.artifacts()


class _PeerLog:
    """Logs once when a peer does not answer as it should, and once when it does again."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._bad: set[str] = set()

    def __call__(self, peer: str, reason: str) -> None:
        if reason and peer not in self._bad:
            self._bad.add(peer)
            extra = {"endpoint": self._endpoint, "peer": peer, "reason": reason}
            _log.warning("peer failing, requests will be retried", extra=extra)
        elif not reason and peer in self._bad:
            self._bad.discard(peer)
            _log.info("peer recovered", extra={"endpoint": self._endpoint, "peer": peer})


class EffectsParts(NamedTuple):
    """What handlers may create in addition to messages. `effects` is None where they can create nothing.

    `sweeps` cleans up after attempts that were never committed. `expired` are projections with tombstones to remove.
    """

    effects: Effects | None = None
    blobs: ArtifactStore | None = None
    sweeps: RegisteredEffects | None = None
    projections: Mapping[str, ProjectionWriter] = {}
    expired: tuple[DocumentProjection, ...] = ()


async def open_effects(stack: AsyncExitStack, settings: Settings, parts: StoreParts, environment: Environment) -> EffectsParts:
    """Open what the handlers of an endpoint may create. Connects to no peer. Raises SetupError, DriverMissing."""
    blobs = await _open_blobs(stack, settings, parts.register)
    peers = await _open_peers(stack, settings, parts.register, environment)
    artifacts: dict[str, ArtifactStore] = {} if blobs is None else {"blob": blobs}
    if peers is not None:
        artifacts[HTTP] = peers
    registered: RegisteredEffects | None = None
    if parts.register is not None and artifacts:
        ids, clock = environment.ids, environment.clock
        registered = RegisteredEffects(parts.store, parts.register, artifacts, ids=ids, clock=clock, remote=peers)
    calls = await _open_third_parties(stack, settings, environment)
    inner: Effects | None = registered
    if calls is not None:
        from onceonly.algorithms.third_party import CallingEffects  # noqa: PLC0415 - few endpoints call others

        inner = CallingEffects(registered or NoArtifacts(), calls, clock=environment.clock)
    if not settings.projections and peers is None:  # writes of an earlier setting wait until it comes back
        return EffectsParts(inner, blobs, registered)
    projections = await _open_projections(stack, settings, environment.clock)
    effects = ProjectionEffects(inner or NoArtifacts(), projections)  # so that no write goes to a peer
    listing = (each for each in projections.values() if isinstance(each, DocumentProjection) and each.is_swept)
    return EffectsParts(effects, blobs, registered, projections, tuple(listing))


@asynccontextmanager
async def open_projection(
    settings: Settings, name: str, *, environment: Environment, tell: Tell | None = None
) -> AsyncIterator[DocumentProjection]:
    """Open a projection that a URL names. Raises SetupError, RetryableError."""
    place = settings.places.projections.get(name)
    if place is None:
        raise SetupError(f"endpoint {settings.name!r} has no projection {name!r} with a URL: set projections={{{name!r}: URL}}")
    with errors_name_setting(settings, f"projection {name!r}", place):
        place.require_driver("projections")
        async with open_documents(place, clock=environment.clock) as documents:
            lists = not place.system.drops_expired
            kept = max(KEPT, settings.retention or KEPT)
            yield DocumentProjection(
                documents, name, clock=environment.clock, tombstones=kept, lists_tombstones=lists, tell=tell
            )


async def _open_projections(stack: AsyncExitStack, settings: Settings, clock: Clock) -> Mapping[str, ProjectionWriter]:
    opened: dict[str, ProjectionWriter] = {}
    for name, place in (settings.projections or {}).items():
        failures = _ProjectionLog(settings.name, name)
        if isinstance(place, str):
            environment = Environment(clock=clock)
            opening = open_projection(settings, name, environment=environment, tell=failures)
            opened[name] = await stack.enter_async_context(opening)
        else:
            opened[name] = OwnProjection(place, tell=failures)
    return opened


class AllExpired:
    """Several places where something expires."""

    def __init__(self, places: Sequence[Expires]) -> None:
        self._places = places

    async def remove_expired(self, limit: int = 1000) -> int:
        """Remove from each of them; see the port."""
        return max([await place.remove_expired(limit) for place in self._places])


def expiring(marks: Expires | None, projections: Sequence[Expires]) -> Expires | None:
    """Return all of these as one place where something expires; None if there is none."""
    places = [each for each in (marks, *projections) if each is not None]
    return AllExpired(places) if len(places) > 1 else next(iter(places), None)


class _ProjectionLog:
    """Logs once when a projection does not take writes, once when it does again, and each write that it rejects."""

    def __init__(self, endpoint: str, projection: str) -> None:
        self._endpoint, self._projection = endpoint, projection
        self._is_failing = False

    def __call__(self, count: int, error: Exception | None) -> None:
        if error is None:
            if self._is_failing:
                _projection_log.info("projection recovered", extra={"endpoint": self._endpoint, "projection": self._projection})
            self._is_failing = False
            return
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, CommitRefused):
            rejected = {"endpoint": self._endpoint, "projection": self._projection, "reason": reason}
            _projection_log.warning("projection write rejected", extra=rejected)
        elif not self._is_failing:
            self._is_failing = True
            failing = {"endpoint": self._endpoint, "projection": self._projection, "count": count, "reason": reason}
            _projection_log.warning("projection failing, writes will be retried", extra=failing)


async def _open_blobs(stack: AsyncExitStack, settings: Settings, register: Register | None) -> ArtifactStore | None:
    place = settings.places.blobs
    if place is None:
        return None
    with errors_name_setting(settings, "blobs", place):
        if register is None:
            raise SetupError(
                f"the store {settings.places.store} cannot track blobs and requests, so handlers cannot "
                "create them: use another store"
            )
        return await stack.enter_async_context(open_blobs(place))


async def _open_peers(
    stack: AsyncExitStack, settings: Settings, register: Register | None, environment: Environment
) -> Peers | None:
    peers = settings.protocol_peers
    if not peers:
        return None
    _require_client()
    if register is None:
        raise SetupError(f"the store {settings.places.store} cannot track requests to peers: use another store")
    from onceonly.adapters.http.remote import open_remote  # noqa: PLC0415 - imports the client, so only when it is needed

    return await stack.enter_async_context(open_remote(peers, clock=environment.clock, tell=_PeerLog(settings.name)))


async def _open_third_parties(stack: AsyncExitStack, settings: Settings, environment: Environment) -> "ThirdParties | None":
    if not settings.third_parties:
        return None
    _require_client()
    from onceonly.adapters.http.third_party import open_third_parties  # noqa: PLC0415 - see above

    tell = _PeerLog(settings.name)
    return await stack.enter_async_context(open_third_parties(settings.third_parties, clock=environment.clock, tell=tell))


def _require_client() -> None:
    if find_spec("httpx") is None:
        raise DriverMissing("peers: the HTTP client is not installed: pip install 'onceonly[http]'")
