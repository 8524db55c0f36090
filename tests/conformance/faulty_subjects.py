"""NATS and Redis on servers of the tests' own, behind proxies that break connections."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self
from urllib.parse import urlsplit

from redis.asyncio import Redis

from onceonly.adapters.nats.transport import NatsTransport
from onceonly.adapters.redis.transport import RedisTransport
from onceonly_conformance.suite import ENDPOINT
from tests.conformance.nats_subjects import NatsSubject
from tests.conformance.redis_subjects import LEASE_SECONDS, SMALL, RedisSubject
from tests.servers.nats import OwnNats, own_nats
from tests.servers.proxy import Inspector, Proxy, listening
from tests.servers.redis import OwnRedis, own_redis_server

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class BreakingProxy(Proxy):
    """Breaks one connection: when clients have sent something for the time `number`. With `arrives` the server gets it."""

    def __init__(self, url: str, number: int, *, arrives: bool) -> None:
        parts = urlsplit(url)
        super().__init__((parts.hostname or "", parts.port or 0))
        self._left = number
        self._moment = "after" if arrives else "before"
        self.has_broken = False

    def inspector(self) -> Inspector:
        """Count what any client sends."""
        return self._inspect

    def _inspect(self, _: bytes) -> str:
        self._left -= 1
        if self._left:
            return ""
        self.has_broken = True
        return self._moment


class Breaking(AsyncExitStack):
    """The proxies of one subject."""

    async def before(self, url: str, number: int, *, arrives: bool) -> tuple[str, Callable[[], bool]]:
        """Put a proxy before a server. Returns the URL of the proxy, and whether it has broken the connection."""
        proxy, port = await self.enter_async_context(listening(BreakingProxy(url, number, arrives=arrives)))
        return url.replace(f":{urlsplit(url).port}", f":{port}"), lambda: proxy.has_broken


class FaultyNats(NatsSubject):
    """A NATS server of its own."""

    def __init__(self, server: OwnNats, proxies: Breaking) -> None:
        super().__init__(server=server.url)
        self._server, self._proxies = server, proxies

    @classmethod
    @asynccontextmanager
    async def run(cls) -> AsyncIterator[Self]:
        """Start a server, and stop it at the end."""
        with own_nats() as server:
            server.start()
            async with Breaking() as proxies:
                subject = cls(server, proxies)
                try:
                    yield subject
                finally:
                    await subject.close(removes=False)

    async def breaking(self, request: int, *, arrives: bool) -> tuple[NatsTransport, Callable[[], bool]]:
        """Open a transport behind a proxy."""
        url, has_broken = await self._proxies.before(self.url, request, arrives=arrives)
        return self._opened(url, ENDPOINT, self.clock), has_broken

    async def restart(self) -> None:
        """Kill the server, and start it with its data."""
        self._server.stop(signal.SIGKILL)
        self._server.start()

    async def reset(self) -> None:
        """Kill the server, and start it without data."""
        self._server.reset()


class FaultyRedis(RedisSubject):
    """A Redis server of its own, which writes every change to the disk."""

    def __init__(self, server: OwnRedis, client: "Redis", proxies: Breaking) -> None:
        super().__init__(client, f"{server.url}?prefix=t:&max_body={SMALL}&lease={LEASE_SECONDS}")
        self._server, self._proxies = server, proxies

    @classmethod
    @asynccontextmanager
    async def run(cls) -> AsyncIterator[Self]:
        """Start a server, and stop it at the end."""
        with own_redis_server(*DURABLE) as server:
            async with Redis.from_url(server.url) as client, Breaking() as proxies:
                subject = cls(server, client, proxies)
                try:
                    yield subject
                finally:
                    await subject.close()

    async def breaking(self, request: int, *, arrives: bool) -> tuple[RedisTransport, Callable[[], bool]]:
        """Open a transport behind a proxy."""
        url, has_broken = await self._proxies.before(self.url, request, arrives=arrives)
        return self._opened(url, ENDPOINT), has_broken

    async def restart(self) -> None:
        """Kill the server, and start it with its data."""
        self._server.kill()
        self._server.start()
        await self.client.connection_pool.disconnect()

    async def reset(self) -> None:
        """Delete everything, and start the server again: it has no scripts then, either."""
        await self.client.flushall()
        await self.restart()
