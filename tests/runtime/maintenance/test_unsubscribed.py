"""Events that no endpoint had subscribed to are counted by the transport, logged once, and stored."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from onceonly import Endpoint
from onceonly.assembly import temporary_transport
from onceonly.cli.endpoint_status import read_maintenance
from onceonly.endpoint.host import host_of
from onceonly.model.errors import CommitFailed
from onceonly.model.message import Message, Send
from onceonly.ports.transport import Topology
from onceonly.queues.destinations import UnsubscribedEvents
from onceonly.runtime.maintenance.counts import storing_counts
from onceonly.sql.database import open_database
from onceonly.sql.store import SqlEventCounts
from tests.adapters.rabbitmq.harness import EVENT, opened
from tests.adapters.rabbitmq.harness import message as event
from tests.servers.available import RABBITMQ, need


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
        """Return them."""
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


async def test_delayed_events_are_collected_at_the_start_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """What is collected is stored. A broker that is away at the start is reported by the worker, not by each attempt."""
    name = f"shop-{uuid4().hex}"
    events, stored, calls = UnsubscribedEvents(name), Stored(), 0
    caplog.set_level(logging.WARNING, "onceonly.events")

    async def collect() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise CommitFailed("the broker is away")
        events.add("late")

    async with storing_counts(events, stored, collect, endpoint=name):
        while not calls:  # noqa: ASYNC110 - the callable tells nobody
            await asyncio.sleep(0)
        assert not stored.counts
    assert (calls, stored.counts) == (2, {"late": 1})
    assert not caplog.records[:-1]
    assert "event dropped: no subscriber" in caplog.records[-1].message


async def test_an_outage_after_the_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Delayed events are then not counted for a while."""
    caplog.set_level(logging.WARNING, "onceonly.events")
    calls = 0

    async def collect() -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise CommitFailed("the broker is away")

    async with storing_counts(UnsubscribedEvents("shop"), None, collect, endpoint="shop"):
        while not calls:  # noqa: ASYNC110 - the callable tells nobody
            await asyncio.sleep(0)
    assert sum("not counted, will be retried" in line.message for line in caplog.records) == 1


async def test_without_stored_numbers_events_are_still_collected() -> None:
    """They are logged, and not kept in memory."""
    events = UnsubscribedEvents("shop")

    async def collect() -> None:
        events.add("late")

    async with storing_counts(events, None, collect, endpoint="shop"):
        pass
    assert not events.counts


async def test_processes_add_to_the_same_numbers(tmp_path: Path) -> None:
    """Each endpoint has its own."""
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/s.db", transport="memory://")

    @shop.handler(type="Work")
    async def work(message: dict[str, str]) -> None: ...

    async with host_of(shop).opened() as ports:
        database = await open_database(f"sqlite:///{tmp_path}/s.db", clock=host_of(shop).current_environment().clock)
        first, second, other = (SqlEventCounts(database, name) for name in ("shop", "shop", "other"))
        await first.add({"a": 1})
        await asyncio.gather(first.add({"a": 2, "b": 1}), second.add({"b": 3, "a": 4}), other.add({"a": 9}))
        assert await first.read() == {"a": 7, "b": 4}
        assert await ports.transport.send([Send(message=Message(id="1", source="shop", type="Late", body=b""))])
        await database.close()


async def test_the_store_has_the_number_of_delayed_events_on_rabbitmq(tmp_path: Path) -> None:
    """Also when the process that delayed the event has ended: a later one of the endpoint counts it."""
    prefix = f"t{uuid4().hex[:10]}."
    url = f"{need(RABBITMQ)}?prefix={prefix}&timeout=10"
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/s.db", transport=url)

    @shop.handler(type="Work")
    async def work(message: dict[str, str]) -> None: ...

    late = Message(id="1", source="shop", type="Late", body=b"{}")
    async with temporary_transport(url, [Topology(endpoint="shop", events=("Late", "Work"))]):
        async with host_of(shop).opened() as ports:
            await ports.transport.send([Send(message=late, due=host_of(shop).current_environment().clock.now() + 100)])
        async with asyncio.timeout(60):
            while not (counts := (await read_maintenance(shop.settings)).get("unsubscribed")):
                async with host_of(shop).opened():  # counts what is due by now
                    pass
        assert counts == {"Late": 1}


async def test_a_returned_event_is_counted_on_rabbitmq() -> None:
    """A command that cannot be routed, and an event with a subscriber, are not."""
    async with opened() as broker:
        transport = await broker.transport()
        unheard = Message(id="1", source="till", type="Unheard", body=b"")
        await transport.send([Send(message=unheard), Send(message=event()), Send(message=unheard, to="nobody")])
        assert transport.unsubscribed.take() == {"Unheard": 1}
        assert EVENT not in transport.unsubscribed.counts
