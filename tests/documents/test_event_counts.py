"""Counts of events without subscribers in a document: what one process adds another one reads."""

import asyncio
from uuid import uuid4

import pytest

from onceonly import Endpoint
from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.cli.endpoint_status import read_maintenance
from onceonly.documents import bookkeeping
from onceonly.documents.bookkeeping import DocumentEventCounts
from onceonly.endpoint.host import host_of
from onceonly.model.message import Message, Send
from onceonly.ports.documents import Change
from tests.servers.available import redis_place


async def test_processes_add_to_the_same_counts() -> None:
    """Each endpoint has its own document."""
    documents = MemoryDocuments(Live())
    first, second, other = (DocumentEventCounts(documents, name) for name in ("shop", "shop", "mailer"))
    assert await first.read() == {}
    await asyncio.gather(first.add({"b": 2, "a": 1}), second.add({"b": 3}), other.add({"a": 9}))
    assert list((await first.read()).items()) == [("a", 1), ("b", 5)]
    assert await other.read() == {"a": 9}


async def test_a_document_counts_a_limited_number_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types that are counted already are still counted."""
    monkeypatch.setattr(bookkeeping, "MOST_TYPES", 2)
    counts = DocumentEventCounts(MemoryDocuments(Live()), "shop")
    await counts.add({"c": 1, "a": 1, "b": 1})
    await counts.add({"d": 1, "a": 1})
    assert await counts.read() == {"a": 2, "b": 1}


async def test_counts_of_another_format_begin_again() -> None:
    """Later events are counted."""
    documents = MemoryDocuments(Live())
    await documents.save([Change(key="unsubscribed/shop", body=b"[9]")])
    counts = DocumentEventCounts(documents, "shop")
    assert await counts.read() == {}
    await counts.add({"a": 1})
    assert await counts.read() == {"a": 1}


async def test_an_endpoint_on_a_document_store_counts_what_it_publishes() -> None:
    """In the service itself, where another process finds it: `onceonly status` reads it in the same way."""
    with redis_place() as place:
        shop = Endpoint("shop", store=place, transport=f"memory://{uuid4().hex}")

        @shop.handler(type="Work")
        async def work(message: dict[str, str]) -> None: ...

        late = Message(id="1", source="shop", type="Late", body=b"")
        async with host_of(shop).opened() as ports:
            await ports.transport.send([Send(message=late), Send(message=late)])
        assert (await read_maintenance(shop.settings))["unsubscribed"] == {"Late": 2}
