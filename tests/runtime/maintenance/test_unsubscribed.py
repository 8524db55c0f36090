"""Events that no endpoint had subscribed to are counted by the transport, logged once, and stored."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from onceonly import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.model.errors import CommitFailed
from onceonly.model.message import Message, Send
from onceonly.runtime.maintenance.unsubscribed import storing_counts
from onceonly.sql.database import open_database
from onceonly.sql.store import SqlEventCounts
from onceonly.systems.unsubscribed import UnsubscribedEvents
from tests.adapters.rabbitmq.harness import EVENT, opened
from tests.adapters.rabbitmq.harness import message as event


class Stored:
    """Numbers in memory. The first `failing` calls fail."""

    def __init__(self, failing: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.failing = failing

    async def add(self, counts: Mapping[str, int]) -> None:
        """Add, or fail."""
        if self.failing:
            self.failing -= 1
            raise CommitFailed("the store is away")
        self.counts.update(counts)

    async def read(self) -> Mapping[str, int]:
        """Give them."""
        return self.counts


def test_the_first_of_each_type_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once for each endpoint, type and process, whatever the transport."""
    name = f"shop-{uuid4().hex}"
    for events in (UnsubscribedEvents(name), UnsubscribedEvents(name)):
        for kind in ("a", "b", "a"):
            events.add(kind)
    logged = [(line.message, line.__dict__["type"]) for line in caplog.records if line.__dict__.get("endpoint") == name]
    assert logged == [(f"event dropped: no subscriber endpoint={name} type={kind}", kind) for kind in "ab"]


async def test_what_was_counted_is_stored_at_the_end() -> None:
    """Also what is counted just before."""
    events, stored = UnsubscribedEvents("shop"), Stored()
    async with storing_counts(events, stored, endpoint="shop"):
        events.add("a")
        await asyncio.sleep(0)
        events.add("b")
        events.add("b")
    assert stored.counts == {"a": 1, "b": 2}


async def test_what_cannot_be_stored_now_is_stored_later(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged once."""
    events, stored = UnsubscribedEvents("shop"), Stored(failing=1)
    caplog.set_level(logging.WARNING, "onceonly.events")
    events.add("a")
    async with storing_counts(events, stored, endpoint="shop"):
        while stored.failing:  # noqa: ASYNC110 - the port tells nobody
            await asyncio.sleep(0)
        events.add("a")
    assert stored.counts == {"a": 2}
    assert sum("not stored" in line.message for line in caplog.records) == 1


async def test_processes_add_to_the_same_numbers(tmp_path: Path) -> None:
    """Each endpoint has its own."""
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/s.db", transport="memory://")

    @shop.handler(type="Work")
    async def work(message: dict[str, str]) -> None: ...

    async with host_of(shop).opened() as ports:
        database = await open_database(f"sqlite:///{tmp_path}/s.db", clock=host_of(shop).surroundings_here().clock)
        first, second, other = (SqlEventCounts(database, name) for name in ("shop", "shop", "other"))
        await first.add({"a": 1})
        await asyncio.gather(first.add({"a": 2, "b": 1}), second.add({"b": 3, "a": 4}), other.add({"a": 9}))
        assert await first.read() == {"a": 7, "b": 4}
        assert await ports.transport.send([Send(message=Message(id="1", source="shop", type="Late", body=b""))])
        await database.close()


async def test_a_returned_event_is_counted_on_rabbitmq() -> None:
    """A command that cannot be routed, and an event with a subscriber, are not."""
    async with opened() as broker:
        transport = await broker.transport()
        unheard = Message(id="1", source="till", type="Unheard", body=b"")
        await transport.send([Send(message=unheard), Send(message=event()), Send(message=unheard, to="nobody")])
        assert transport.unsubscribed.take() == {"Unheard": 1}
        assert EVENT not in transport.unsubscribed.counts
