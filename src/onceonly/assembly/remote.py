"""What endpoints have executed at each other: its peers, and the store of the requests that it receives."""

import logging
from contextlib import AsyncExitStack
from importlib.util import find_spec

from onceonly.config.endpoint import Settings
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import DriverMissing, SetupError
from onceonly.ports.effects import Register
from onceonly.ports.remote import Peers, RemoteRequests
from onceonly.runtime.environment import Environment

_log = EventLogger(logging.getLogger("onceonly.http"))


class _Told:
    """Says once when a peer does not answer as it should, and once when it does again."""

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


async def open_peers(
    stack: AsyncExitStack, settings: Settings, register: Register | None, environment: Environment
) -> Peers | None:
    """Give the services that an endpoint's handlers may ask, or None; connects to none. Raises SetupError, DriverMissing."""
    if not settings.peers:
        return None
    if find_spec("httpx") is None:
        raise DriverMissing("peers: the HTTP client is not installed: pip install 'onceonly[http]'")
    if register is None:
        raise SetupError(f"the store {settings.places.store} cannot track requests to peers: use another store")
    from onceonly.adapters.http.remote import open_remote  # noqa: PLC0415 - imports the client, so only when it is needed

    return await stack.enter_async_context(open_remote(settings.all_peers, clock=environment.clock, tell=_Told(settings.name)))


async def open_remote_requests(stack: AsyncExitStack, settings: Settings, environment: Environment) -> RemoteRequests:
    """Open the requests that an endpoint receives, in its store. Raises SetupError where that has no place for it."""
    store = settings.places.store
    if store.in_process and settings.plan.history is not None and not settings.makes_things:
        from onceonly.assembly import memory as adapters  # noqa: PLC0415 - only when it is named
    elif not store.is_sql:
        how = " (or memory:// without blobs, peers and entities)" if store.in_process else ""
        raise SetupError(
            f"responders need a SQL store{how}, which commits request, response and business data together: "
            f"{settings.places.store} cannot store requests"
        )
    else:
        from onceonly.assembly import sql as adapters  # type: ignore[no-redef]  # noqa: PLC0415 - imports a driver
    return await stack.enter_async_context(adapters.open_remote_requests(settings, clock=environment.clock))
