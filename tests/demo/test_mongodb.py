"""The demo on MongoDB: it makes the collection, kills processes, and deletes its documents."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest
from pymongo import AsyncMongoClient

from onceonly import SetupError
from onceonly.adapters.mongodb.documents import open_documents
from onceonly.ports.documents import Change
from onceonly_conformance.clock import ManualClock
from onceonly_demo.backends import open_emptied
from onceonly_demo.locations import choose_locations
from onceonly_demo.options import DemoOptions
from tests import ROOT
from tests.demo.test_demo import ZEROS, demo
from tests.servers.available import free_port
from tests.servers.mongodb import ReplicaSet


@pytest.fixture
async def place(mongodb_transactions: ReplicaSet) -> AsyncIterator[str]:
    """Name a collection that nobody has made yet."""
    url = mongodb_transactions.url(f"t{uuid4().hex[:12]}", collection="demo")
    yield url
    async with AsyncMongoClient(url.partition("&")[0]) as client:
        await client.drop_database(client.get_default_database())


async def test_the_collection_is_created_and_the_documents_of_one_run_are_deleted(place: str) -> None:
    """Two runs at once, and a store of somebody else in the same collection: each deletes its own."""
    async with open_documents(place, clock=ManualClock()) as others, AsyncExitStack() as first:
        one = await open_emptied(first, choose_locations(DemoOptions(store=place), ROOT).store)
        await others.save([Change(key="entity/other", body=b"{}")])
        url = choose_locations(DemoOptions(store=place), ROOT).store
        async with AsyncExitStack() as second:
            two = await open_emptied(second, url)
            for documents in (one, two):
                await documents.save([Change(key=f"entity/{number}", body=b"{}") for number in range(3)])
        async with open_documents(url, clock=ManualClock()) as again:
            assert await again.keys("") == ()
        assert len(await one.keys("")) == 3
        await first.aclose()
        assert await others.keys("") == ("entity/other",)
        assert await others.check() == ()  # the collection is there, with its indexes


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # the driver leaves them to the garbage collector
async def test_what_cannot_be_created_is_reported() -> None:
    """As the error that a start would have."""
    async with AsyncExitStack() as stack:
        with pytest.raises(SetupError, match="has no database"):
            await open_emptied(stack, f"mongodb://127.0.0.1:{free_port()}")


@pytest.mark.slow
@pytest.mark.repeated
def test_every_flight_counts_once_in_mongodb(place: str) -> None:
    """All zeros, with ten kills, unless the run is over before the last one."""
    code, numbers = demo("--kills", "10", "--store", place, flights=60)
    assert {name: numbers[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert (code, numbers["effects"]) == (0, 60)
    assert numbers["kills"] > 0
