"""What handlers may create besides messages: blobs, in a place that a URL names, and requests to other services."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import NamedTuple

from onceonly.algorithms.effects import RegisteredEffects
from onceonly.assembly.document_places import tell
from onceonly.assembly.parts import StoreParts
from onceonly.assembly.stores import errors_name_setting
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import DriverMissing, SetupError
from onceonly.model.remote import HTTP
from onceonly.ports.effects import ArtifactStore, Register
from onceonly.ports.remote import Peers
from onceonly.runtime.environment import Environment
from onceonly.systems import ArtifactService

_log = EventLogger(logging.getLogger("onceonly.http"))


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
    """Artifacts of handlers. `effects` is None where they can create none."""

    effects: RegisteredEffects | None
    blobs: ArtifactStore | None


async def open_effects(stack: AsyncExitStack, settings: Settings, parts: StoreParts, environment: Environment) -> EffectsParts:
    """Open what the handlers of an endpoint may create. Connects to no peer. Raises SetupError, DriverMissing."""
    blobs = await _open_blobs(stack, settings, parts.register)
    peers = await _open_peers(stack, settings, parts.register, environment)
    artifacts: dict[str, ArtifactStore] = {} if blobs is None else {"blob": blobs}
    if peers is not None:
        artifacts[HTTP] = peers
    if parts.register is None or not artifacts:
        return EffectsParts(None, blobs)
    ids, clock = environment.ids, environment.clock
    return EffectsParts(RegisteredEffects(parts.store, parts.register, artifacts, ids=ids, clock=clock, remote=peers), blobs)


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
    if not settings.peers:
        return None
    if find_spec("httpx") is None:
        raise DriverMissing("peers: the HTTP client is not installed: pip install 'onceonly[http]'")
    if register is None:
        raise SetupError(f"the store {settings.places.store} cannot track requests to peers: use another store")
    from onceonly.adapters.http.remote import open_remote  # noqa: PLC0415 - imports the client, so only when it is needed

    return await stack.enter_async_context(
        open_remote(settings.all_peers, clock=environment.clock, tell=_PeerLog(settings.name))
    )
