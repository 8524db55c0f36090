"""The demo with documents of the application, written by each service's own transactions, while processes are killed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple
from uuid import uuid4

import httpx
import pytest
from aiobotocore.session import get_session  # type: ignore[import-untyped]
from azure.data.tables.aio import TableClient
from pymongo import AsyncMongoClient

from onceonly_demo.flights import load
from onceonly_demo.options import Deduplication, DemoOptions
from onceonly_demo.report import passed
from onceonly_demo.run import Result, run
from onceonly_demo.view import MUST_BE_ZERO
from tests.servers.available import MEASURED
from tests.servers.azurite import ACCOUNT, KEY
from tests.servers.ravendb import remove_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

KILLS = 4
SERVICES = ("cosmos", "dynamodb", "azure_table", "mongodb", "ravendb")
FIRST, *OTHERS = SERVICES
ONE_IN_CI = [FIRST, *(pytest.param(name, marks=pytest.mark.repeated) for name in OTHERS)]
"""The services, of which `make test-ci` has the fastest."""
UNDER_KILLS = [*SERVICES[:3], pytest.param("mongodb", marks=pytest.mark.repeated), "ravendb"]
"""The services. On MongoDB, tests/faults/test_documents_under_kills.py kills workers at each command."""


class Place(NamedTuple):
    """Where a service keeps the store and the documents. `left` counts all of them, in the service's own way."""

    service: str
    store: str
    collection: str
    left: Callable[[], Awaitable[int]]


@pytest.fixture(params=SERVICES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """Return a place of its own, which the demo makes."""
    open_place = {
        "cosmos": in_cosmos,
        "dynamodb": in_dynamodb,
        "azure_table": in_azure_table,
        "mongodb": in_mongodb,
        "ravendb": in_ravendb,
    }[request.param]
    async for each in open_place(request, f"demo{uuid4().hex[:12]}"):
        yield each


async def in_cosmos(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Place]:
    """In a container that has the documents of a carrier in one partition."""
    server = request.getfixturevalue("cosmos_standin")

    async def left() -> int:
        return len(await asyncio.to_thread(server.items, name))

    yield Place("Cosmos DB", server.place(name, "?partition_key=/carrier"), "", left)


async def in_dynamodb(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Place]:
    """In the table of the store."""
    endpoint = request.getfixturevalue("ministack_endpoint")
    client = get_session().create_client(
        "dynamodb",
        region_name="eu-central-1",
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - an emulator's
    )
    async with client as tables:

        async def left() -> int:
            return int((await tables.scan(TableName=name, Select="COUNT"))["Count"])

        yield Place("DynamoDB", f"dynamodb://test:test@eu-central-1/{name}?endpoint={endpoint}", "", left)
        await tables.delete_table(TableName=name)


async def in_azure_table(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Place]:
    """In the table of the store, where a carrier is a partition."""
    storage = request.getfixturevalue("azurite_storage")
    address = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};TableEndpoint={storage.table}/{ACCOUNT};"
    async with TableClient.from_connection_string(address, name) as table:

        async def left() -> int:
            return len([each async for each in table.list_entities()])

        yield Place("Azure Table", storage.url("table", name), "", left)
        await table.delete_table()


async def in_mongodb(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Place]:
    """In a collection next to that of the store."""
    server = request.getfixturevalue("mongodb_transactions")
    client: AsyncMongoClient[dict[str, object]] = AsyncMongoClient(server.url(name))
    async with client:

        async def left() -> int:
            database = client[name]
            return sum([await database[each].count_documents({}) for each in await database.list_collection_names()])

        yield Place("MongoDB", server.url(name, collection="onceonly"), "flights", left)
        await client.drop_database(name)


async def in_ravendb(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Place]:
    """In a collection of the store's database."""
    store = f"{request.getfixturevalue('ravendb_server')}/{name}"

    async def left() -> int:
        place, _, database = store.replace("ravendb", "http", 1).rpartition("/")
        async with httpx.AsyncClient() as client:
            found = (await client.get(f"{place}/databases/{database}/docs", params={"start": 0, "pageSize": 10_000})).json()
        return len([each for each in found["Results"] if not each["@metadata"]["@id"].startswith("Raven/")])

    yield Place("RavenDB", store, "Flights", left)
    await asyncio.to_thread(remove_database, store)


async def demo_on(place: Place, **options: object) -> tuple[Result, DemoOptions]:
    """Run the demo, and check that it deleted what it wrote."""
    chosen = DemoOptions(store=place.store, documents=True, collection=place.collection, **options)  # type: ignore[arg-type]
    result = await run(load(chosen.flights), chosen, lambda _: None)
    assert await place.left() == 0
    numbers = result.numbers()
    MEASURED.append(
        f"documents of the demo in {place.service}, {chosen.deduplication}: {numbers['kills']} kills, {numbers['lost']} lost, "
        f"{numbers['duplicated']} doubled, {numbers['half_batches']} half batches, {numbers['seconds']:.0f} s"
    )
    return result, chosen


async def check_killed(place: Place, deduplication: Deduplication) -> None:
    """Kill processes: every flight counts once, and its documents agree with its entity."""
    result, options = await demo_on(place, flights=40, kills=KILLS, deduplication=deduplication)
    numbers = result.numbers()
    assert {name: numbers[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    assert numbers["effects"] == options.flights
    assert numbers["kills"] > 0  # on a fast machine the run may be over before the last one


@pytest.mark.parametrize("place", UNDER_KILLS, indirect=True)
async def test_no_half_of_a_batch_is_left_though_processes_are_killed(place: Place) -> None:
    """With the messages that were handled in the documents of the store."""
    await check_killed(place, Deduplication.HISTORY)


@pytest.mark.parametrize("deduplication", [Deduplication.DEDUP_STORE, Deduplication.TOKENS])
@pytest.mark.parametrize("place", ["cosmos", pytest.param("mongodb", marks=pytest.mark.repeated)], indirect=True)
async def test_no_half_is_left_where_deduplication_is_elsewhere(place: Place, deduplication: Deduplication) -> None:
    """The marks and tokens are documents of their own, outside the batch."""
    await check_killed(place, deduplication)


@pytest.mark.parametrize("place", ONE_IN_CI, indirect=True)
async def test_the_control_run_doubles_and_leaves_no_half(place: Place) -> None:
    """Without deduplication flights are counted again, each time with their documents."""
    result, options = await demo_on(place, flights=40, kills=1, deduplication=Deduplication.OFF)
    assert passed(result, options)
    assert result.findings.duplicated > 0
    assert result.findings.half_batches == 0
