"""A broker whose settings change while a worker runs: it takes and sends nothing until they are corrected, and says why."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceonly import Endpoint, message
from onceonly.endpoint.host import host_of
from onceonly.model.errors import UnsafeSettings
from onceonly.model.health import HangLimits, HealthAssessment, Level, ProcessHealth, Pulse, readiness
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Transport
from onceonly.runtime.environment import Environment, SystemTimer
from onceonly.runtime.observe.health_state import HealthObserver
from onceonly.runtime.observe.observer import Point, PortCall
from tests.adapters.nats import harness as nats
from tests.adapters.redis import harness as redis
from tests.servers.redis import own_redis_server

PATIENCE = 60.0
RIGHT, WRONG = "right", "wrong"
CHECKED_AFTER = 31.0
"""Seconds: a check is due by then."""


@message(nats.EVENT, kind="command")
@dataclass
class Order:
    """A command."""

    total: int


class HurriedTimer(SystemTimer):
    """The system's, ahead by as much as a test has said."""

    ahead = 0.0

    def seconds(self) -> float:
        """Return them."""
        return super().seconds() + self.ahead


class Receives(HealthObserver):
    """Counts the receives that worked, and those that were refused."""

    received = refused = 0

    def ended(self, call: PortCall, error: BaseException | None) -> None:
        """Take in how a call ended."""
        super().ended(call, error)
        self.received += call.point is Point.RECEIVE and error is None
        self.refused += call.point is Point.RECEIVE and isinstance(error, UnsafeSettings)


class Shop:
    """A running endpoint, how it finds itself, and what it has handled."""

    def __init__(self, folder: Path, url: str) -> None:
        self.endpoint = Endpoint("shop", store=f"sqlite:///{folder}/shop.db", transport=url)
        self.endpoint.handler(self._place)
        self.handled: asyncio.Queue[int] = asyncio.Queue()
        self.timer, self.observer = HurriedTimer(), Receives()

    async def _place(self, order: Order) -> None:
        self.handled.put_nowait(order.total)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Transport]:
        """Run its worker; gives its transport."""
        host, environment = host_of(self.endpoint), Environment(timer=self.timer)
        async with host.opened(environment=environment, observer=self.observer) as ports:
            stop = asyncio.Event()
            working = [asyncio.create_task(each.run(stop)) for each in host.runners(ports, host.settings)]
            try:
                yield ports.transport
            finally:
                stop.set()
                await asyncio.gather(*working)

    def health(self) -> HealthAssessment:
        """Judge as `/ready` and `onceonly health` do."""
        pulse = Pulse(process=0, pid=1, runs=True)
        found = ProcessHealth(pulse=pulse, endpoints=self.observer.endpoints())
        return readiness([found], ["shop"], patience=HangLimits(60.0), now=0)

    async def find(self, level: Level) -> str:
        """Wait until this is how it is. Returns why."""
        while (found := self.health()).status is not level:  # noqa: ASYNC110 - the observer has no event
            await asyncio.sleep(0.01)
        return "; ".join(found.reasons)


async def suspended_and_resumed(
    shop: Shop,
    outside: Transport,
    *,
    harness: Callable[..., list[object]],
    change: Callable[[str], Awaitable[object]],
    words: str,
) -> None:
    """Change the setting, and correct it. `outside` is the transport of another program, which checks nothing."""
    async with asyncio.timeout(PATIENCE), shop.working() as transport:
        assert await outside.send(harness("m1")) == (Answer.TAKEN,)
        await shop.handled.get()
        await shop.find(Level.OK)
        await change(WRONG)
        shop.timer.ahead += CHECKED_AFTER
        assert words in await shop.find(Level.FAILING)
        assert await outside.send(harness("m2")) == (Answer.TAKEN,)
        with pytest.raises(UnsafeSettings, match=words.partition(" ")[0]):
            await transport.send(harness("m3"))
        looks = shop.observer.refused
        while shop.observer.refused < looks + 3:  # noqa: ASYNC110 - the observer has no event
            await asyncio.sleep(0.01)
        assert await outside.depth("shop") == Depth(waiting=1, held=0, delayed=0)
        assert shop.handled.empty()
        await change(RIGHT)
        shop.timer.ahead += 2.0
        await shop.handled.get()
        assert await transport.send(harness("m3")) == (Answer.TAKEN,)
        await shop.handled.get()
        assert not await shop.find(Level.OK)


async def test_a_limit_of_a_nats_stream_suspends_the_endpoint(tmp_path: Path) -> None:
    """`max_msgs_per_subject` drops messages that were confirmed. The limit here is high, so that none is lost in the test."""
    async with nats.opened() as broker:
        shop = Shop(tmp_path, broker.url)

        async def change(setting: str) -> None:
            await broker.change(max_msgs_per_subject=-1 if setting == RIGHT else 1000)

        await suspended_and_resumed(
            shop, await broker.transport(), harness=nats.commands, change=change, words="max_msgs_per_subject is 1000"
        )


async def test_a_redis_server_that_begins_to_evict_suspends_the_endpoint(tmp_path: Path) -> None:
    """`maxmemory-policy` decides that for all keys."""
    with own_redis_server() as server:
        async with redis.opened(server=server.url) as broker:
            shop = Shop(tmp_path, broker.url)

            async def change(setting: str) -> None:
                await broker.plain.config_set("maxmemory-policy", "noeviction" if setting == RIGHT else "allkeys-lru")

            await suspended_and_resumed(
                shop, await broker.transport(), harness=redis.commands, change=change, words="maxmemory-policy allkeys-lru"
            )


async def test_a_redis_server_that_restarts_with_other_settings_is_found_at_once(tmp_path: Path) -> None:
    """Not after 30 seconds: what it confirms until then could be lost."""
    settings = tmp_path / "settings.conf"
    settings.write_text("maxmemory-policy noeviction\n")
    with own_redis_server("--appendonly", "yes", "--include", str(settings)) as server:
        async with redis.opened(server=server.url) as broker:
            shop = Shop(tmp_path, broker.url)
            async with asyncio.timeout(PATIENCE), shop.working() as transport:
                await shop.find(Level.OK)
                await asyncio.to_thread(server.stop)
                settings.write_text("maxmemory-policy allkeys-lru\n")
                await shop.find(Level.FAILING)
                await asyncio.to_thread(server.start)
                while "maxmemory-policy allkeys-lru" not in await shop.find(Level.FAILING):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
                with pytest.raises(UnsafeSettings, match="maxmemory-policy allkeys-lru"):
                    await transport.send(redis.commands("m1"))
                assert (await transport.depth("shop")).waiting == 0
                looks = shop.observer.received
                await broker.plain.config_set("maxmemory-policy", "noeviction")
                while shop.observer.received == looks:  # noqa: ASYNC110 - the observer has no event
                    await asyncio.sleep(0.01)
                assert await transport.send(redis.commands("m1")) == (Answer.TAKEN,)
                await shop.handled.get()
                assert not await shop.find(Level.OK)
                assert shop.timer.ahead == 0
