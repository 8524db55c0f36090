"""Redis as a subject of the suites: each transport has connections of its own, and keys that nobody else has."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Self
from uuid import uuid4

from redis.asyncio import Redis

from onceonly.adapters.redis.address import GROUP, Keys, read_address
from onceonly.adapters.redis.link import RedisLink
from onceonly.adapters.redis.transport import RedisTransport
from onceonly.model.errors import OnceOnlyError
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.suite import ENDPOINT
from tests.servers.available import REDIS, need

DATABASE = 11
SMALL = 4096
LEASE_SECONDS = 3600  # of the server's time, which the subject moves: no rule takes as long


class RedisSubject:
    """Everything behind one prefix on a server. The test's clock decides what is due, and the age of each lease."""

    def __init__(self, client: "Redis", url: str) -> None:
        self.clock = ManualClock()
        self.client: Any = client
        self.url = url
        self.keys = Keys(read_address(url).prefix)
        self._links: list[RedisLink] = []
        self._transports: list[RedisTransport] = []

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Begin with nothing; close every connection at the end, and delete every key."""
        server = f"{need(REDIS).rstrip('/')}/{DATABASE}"
        prefix = f"t{uuid4().hex[:10]}:"
        async with Redis.from_url(server) as client:
            subject = cls(client, f"{server}?prefix={prefix}&max_body={SMALL}&lease={LEASE_SECONDS}")
            try:
                yield subject
            finally:
                await subject.close()
                async for key in client.scan_iter(match=f"{{{prefix}}}*", count=1000):
                    await client.delete(key)

    async def close(self) -> None:
        """Close every connection."""
        for transport in self._transports:
            with suppress(OnceOnlyError):
                await transport.close()
        for link in self._links:
            await link.close()

    async def transport(self, endpoint: str = ENDPOINT) -> RedisTransport:
        """Open a transport on connections of its own."""
        return self._opened(self.url, endpoint)

    def _opened(self, url: str, endpoint: str) -> RedisTransport:
        self._links.append(RedisLink(read_address(url)))
        self._transports.append(RedisTransport(self._links[-1], endpoint, clock=self.clock, server_time=False))
        return self._transports[-1]

    async def ahead(self, endpoint: str, milliseconds: int) -> RedisTransport:
        """Open a transport: it has no clock of its own process."""
        return await self.transport(endpoint)

    def now(self) -> int:
        """Return the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Move the clock, and make every lease older."""
        self.clock.advance(milliseconds)
        async for stream in self.client.scan_iter(match=self.keys.start + b"stream:*"):
            held = await self.client.execute_command("XPENDING", stream, GROUP, "-", "+", 10_000, parse_detail=True)
            for each in held:
                idle = each["time_since_delivered"] + milliseconds
                options = ("IDLE", idle, "RETRYCOUNT", each["times_delivered"], "JUSTID")
                await self.client.execute_command(
                    "XCLAIM", stream, GROUP, each["consumer"], 0, each["message_id"], *options, parse_justid=True
                )

    async def lapse(self) -> None:
        """Let more time pass than a lease lasts, by the server's clock alone."""
        now = self.clock.now()
        await self.pass_time(LEASE_SECONDS * 1000)
        self.clock.advance(now - self.clock.now())

    async def limit(self, endpoint: str, most: int) -> None:
        """Fail: a stream has no limit. The rules that need one are waived."""
        raise AssertionError(f"cannot limit {endpoint} to {most} messages: Redis does not limit the length of a stream")

    async def delete(self, endpoint: str) -> None:
        """Delete the stream with its messages."""
        await self.client.delete(self.keys.queue(endpoint).stream)
