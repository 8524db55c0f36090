"""Queues of one URL share a connection, which is closed after the last of them."""

import pytest

from onceonly.model.errors import SetupError
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemRandomSource
from onceonly.systems.shared import RemovableTransport, SharedQueues
from onceonly_conformance.clock import ManualClock

CHANCE = SystemRandomSource()
TOPOLOGIES = (Topology(endpoint="shop"),)


class Connection:
    """A connection that tells what was done with it, in `log`."""

    def __init__(self, url: str, log: list[str]) -> None:
        self.url, self.log = url, log
        self.log.append(f"connect {url}")

    async def close(self) -> None:
        """Note it."""
        self.log.append(f"close {self.url}")


class Queue(RemovableTransport):
    """A queue that can only be opened and removed."""

    def __init__(self, connection: Connection, endpoint: str, *, clock: Clock) -> None:
        self.connection, self.endpoint, self.clock = connection, endpoint, clock

    async def remove(self, topologies: object) -> None:
        """Note it."""
        self.connection.log.append(f"remove {topologies == TOPOLOGIES}")

    async def close(self) -> None:
        """Note it."""
        self.connection.log.append(f"close queue {self.endpoint}")


def queues(log: list[str]) -> SharedQueues[Connection]:
    """Return queues that note what happens."""

    class Noting(Queue):
        @staticmethod
        async def connect(url: str, random: RandomSource) -> Connection:
            assert random is CHANCE
            if url == "wrong":
                raise SetupError("no such server")
            return Connection(url, log)

    return SharedQueues(Noting)


async def test_endpoints_with_one_url_share_a_connection() -> None:
    """It is closed with the last of them, after the queue."""
    log: list[str] = []
    shared, clock = queues(log), ManualClock()
    async with (
        shared.open_transport("a", "shop", clock=clock, random=CHANCE) as shop,
        shared.open_transport("a", "mail", clock=clock, random=CHANCE) as mail,
        shared.open_transport("b", "mail", clock=clock, random=CHANCE) as other,
    ):
        assert isinstance(shop, Queue)
        assert isinstance(mail, Queue)
        assert isinstance(other, Queue)
        assert (shop.endpoint, mail.endpoint, shop.clock) == ("shop", "mail", clock)
        assert shop.connection is mail.connection
        assert shop.connection is not other.connection
    assert log == ["connect a", "connect b", "close queue mail", "close b", "close queue mail", "close queue shop", "close a"]


async def test_temporary_queues_are_removed_also_after_an_error() -> None:
    """They are removed before the connection is closed."""
    log: list[str] = []
    with pytest.raises(RuntimeError, match="mine"):
        async with queues(log).temporary_transport("a", TOPOLOGIES, clock=ManualClock(), random=CHANCE):
            raise RuntimeError("mine")
    assert log == ["connect a", "remove True", "close queue ", "close a"]


async def test_a_connection_that_cannot_be_opened_leaves_nothing() -> None:
    """The next attempt connects again."""
    log: list[str] = []
    shared = queues(log)
    for _ in range(2):
        with pytest.raises(SetupError, match="no such server"):
            async with shared.open_transport("wrong", "shop", clock=ManualClock(), random=CHANCE):
                raise AssertionError
    async with shared.open_transport("a", "shop", clock=ManualClock(), random=CHANCE):
        assert log == ["connect a"]
