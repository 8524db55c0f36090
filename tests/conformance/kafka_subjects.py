"""Kafka as a subject of the suites: each transport has a producer of its own, and topics that nobody else has."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from onceonly.adapters.kafka.address import read_address
from onceonly.adapters.kafka.link import KafkaLink
from onceonly.adapters.kafka.transport import KafkaTransport
from onceonly.runtime.environment import SystemRandomSource
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.suite import ENDPOINT


class KafkaSubject:
    """The topics of one test on a broker. The clock is the test's."""

    admin: AIOKafkaAdminClient

    def __init__(self, url: str) -> None:
        self.url = url
        self.servers = url.partition("://")[2]
        self.clock = ManualClock()
        self._links: list[KafkaLink] = []
        self._topics: list[str] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Self]:
        """Connect as an operator; close every producer at the end, and delete the topics."""
        subject = cls(url)
        async with AsyncExitStack() as stack:
            subject.admin = AIOKafkaAdminClient(bootstrap_servers=subject.servers)
            await subject.admin.start()
            stack.push_async_callback(subject.admin.close)
            stack.push_async_callback(subject.close)
            yield subject

    async def close(self) -> None:
        """Close every producer, and delete the topics."""
        for link in self._links:
            await link.close()
        if left := {*self._topics} & {*await self.admin.list_topics()}:
            await self.admin.delete_topics([*left])

    async def create_topic(self, name: str, partitions: int = 1) -> str:
        """Create a topic, which is deleted at the end."""
        answer = await self.admin.create_topics([NewTopic(name, partitions, 1)])
        assert [error for _, error, *_ in answer.topic_errors] == [0], answer
        self._topics.append(name)
        return name

    async def transport(self, endpoint: str = ENDPOINT) -> KafkaTransport:
        """Open a transport with a connection of its own."""
        link = KafkaLink(read_address(f"{self.url}?timeout=10"), SystemRandomSource())
        self._links.append(link)
        return KafkaTransport(link, endpoint, clock=self.clock)

    async def ahead(self, endpoint: str, milliseconds: int) -> KafkaTransport:
        """Open one whose process has another clock."""
        link = KafkaLink(read_address(self.url), SystemRandomSource())
        self._links.append(link)
        return KafkaTransport(link, endpoint, clock=ManualClock(self.clock.now() + milliseconds))

    def now(self) -> int:
        """Return the test's time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let it pass."""
        self.clock.advance(milliseconds)

    async def lapse(self) -> None:
        """Nothing has a lease."""
