"""Cosmos DB in a container of the application's: URLs, items, batches and their answers, throttling, what a start refuses."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from azure.cosmos.exceptions import CosmosBatchOperationError

from onceonly import Context, Endpoint
from onceonly.adapters.cosmos.address import read_address
from onceonly.adapters.cosmos.batches import Operation, refused
from onceonly.adapters.cosmos.client import Pause
from onceonly.adapters.cosmos.documents import CosmosDocuments, create, open_documents
from onceonly.formats.partitions import PlacedKey, join_key
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown, PermanentFailure, SetupError
from onceonly.ports.documents import Change, DocumentAddress, DocumentWrite
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.suite import raises
from tests.servers.cosmosdb.harness import CosmosStandIn, run_standin

OPTIONS = "?partition_key=/tenantId"
KEY = join_key(PlacedKey(("acme",), "entity/Account/A"))
ORDER = DocumentAddress("", ("order-1",))


@pytest.fixture(name="container")
def container_name() -> str:
    """Return the name of a container of its own."""
    return f"t{uuid4().hex[:12]}"


@asynccontextmanager
async def opened(server: CosmosStandIn, container: str, options: str = OPTIONS) -> AsyncIterator[CosmosDocuments]:
    """Create the container if it is missing, and open its documents."""
    url = server.place(container, options)
    await create(url)
    async with open_documents(url, clock=ManualClock()) as documents:
        yield documents


def put(name: str, body: Any, **more: Any) -> DocumentWrite:
    """Write a document of the application."""
    return DocumentWrite(address=DocumentAddress("", (name,)), body=json.dumps(body).encode(), **more)


# URLs


@pytest.mark.parametrize(
    ("option", "paths"),
    [
        ("/tenantId", ("/tenantId",)),
        ("%2FtenantId", ("/tenantId",)),
        ("/tenantId,/userId,/address/city", ("/tenantId", "/userId", "/address/city")),
    ],
)
def test_a_partition_key_is_read_from_the_url(option: str, paths: tuple[str, ...]) -> None:
    assert read_address(f"cosmos://a/d/c?partition_key={option}").paths == paths


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("", "use 1 to 3 paths"),
        ("tenantId", "use 1 to 3 paths"),
        ("/a,/b,/c,/d", "use 1 to 3 paths"),
        ("/a//b", "use 1 to 3 paths"),
        ('/"a b"', "use 1 to 3 paths"),
        ("/a,/a", "no path can be inside another one"),
        ("/a/b,/a", "no path can be inside another one"),
        ("/id", "each document a partition of its own"),
        ("/tenantId,/id", "each document a partition of its own"),
        ("/ttl", "the property ttl has another meaning"),
        ("/onceonly/name", "the property onceonly has another meaning"),
        ("/_ts", "the property _ts has another meaning"),
    ],
)
def test_a_partition_key_that_cannot_be_used_is_refused(option: str, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        read_address(f"cosmos://a/d/c?partition_key={option}")


@pytest.mark.parametrize("prefix", ["", "a b", "a=", "a/", "-a", "x" * 64])
def test_a_prefix_that_no_id_can_have_is_refused(prefix: str) -> None:
    if prefix:
        with pytest.raises(SetupError, match="prefix"):
            read_address(f"cosmos://a/d/c?prefix={prefix}")
    else:
        assert read_address("cosmos://a/d/c?prefix=").prefix == ""


# At start


async def test_the_partition_key_of_the_container_is_compared(cosmos_standin: CosmosStandIn, container: str) -> None:
    """In both directions, and the URL that is right is in the message."""
    cosmos_standin.create(container, ("/tenantId", "/userId"))
    for options, hint in (("", r"add \?partition_key=/tenantId,/userId"), (OPTIONS, "with partition key /tenantId$")):
        async with open_documents(cosmos_standin.place(container, options), clock=ManualClock()) as documents:
            with pytest.raises(SetupError, match=hint):
                await documents.check()
    right = cosmos_standin.place(container, "?partition_key=/tenantId,/userId")
    async with open_documents(right, clock=ManualClock()) as documents:
        assert await documents.check() == ()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/email"]}]}}, "unique keys"),
        ({"indexingPolicy": {"indexingMode": "consistent", "includedPaths": [{"path": "/a/?"}]}}, "/onceonly/name/"),
        ({"indexingPolicy": {"indexingMode": "none"}}, "/onceonly/name/"),
    ],
)
async def test_a_container_that_cannot_hold_the_documents_is_refused(
    cosmos_standin: CosmosStandIn, container: str, more: dict[str, Any], reason: str
) -> None:
    cosmos_standin.create(container, ("/tenantId",), **more)
    async with open_documents(cosmos_standin.place(container, OPTIONS), clock=ManualClock()) as documents:
        with pytest.raises(SetupError, match=reason):
            await documents.check()


async def test_a_container_without_the_index_has_no_list_of_pending_documents(
    cosmos_standin: CosmosStandIn, container: str
) -> None:
    """Both paths are named; and with them it has one."""
    paths = ["/onceonly/name/?", "/onceonly/pending_at/?", "/onceonly/pending_for/[]/?"]
    for number, (count, listed) in enumerate(((1, False), (3, True))):
        policy = {"indexingMode": "consistent", "includedPaths": [{"path": path} for path in paths[:count]]}
        cosmos_standin.create(f"{container}{number}", ("/tenantId",), indexingPolicy=policy)
        place = cosmos_standin.place(f"{container}{number}", OPTIONS)
        async with open_documents(place, clock=ManualClock()) as documents:
            await documents.check()
            assert ("/onceonly/pending_at/?" in await documents.why_unlisted()) is not listed


async def test_an_account_at_session_consistency_is_refused(container: str) -> None:
    """Its own writes can be read back, but those of other processes may be missing."""
    with run_standin("Session") as server:
        async with opened(server, container) as documents:
            with pytest.raises(SetupError, match="has consistency level Session"):
                await documents.check()


async def test_a_container_of_its_own_says_how_to_write_together(cosmos_standin: CosmosStandIn, container: str) -> None:
    async with opened(cosmos_standin, container, "") as documents:
        assert "?partition_key=/PATH" in await documents.why_not_together()
        async with raises(CommitRefused):
            await documents.save_together(Change(key=KEY, body=b"{}"), [put("order-1", {})])


# Items


async def test_items_are_in_the_partition_and_can_be_recognized(cosmos_standin: CosmosStandIn, container: str) -> None:
    """Those of a partition have its values and its types, all others a partition of their own each. A query leaves them out."""
    keys = [join_key(PlacedKey(("acme", 7), "entity/Account/A")), join_key(PlacedKey(("acme", "7"), "entity/Account/A"))]
    outside = ["dead/letter/1", "entity/Account/A"]
    async with opened(cosmos_standin, container, "?partition_key=/tenantId,/address/city&prefix=shop:") as documents:
        await documents.save([Change(key=key, body=b'{"n":1}') for key in (*keys, *outside)])
        await documents.save_together(
            Change(key=f"{keys[0]}/B", body=b"{}"), [put("order-1", {"n": 1, "address": {"zip": "1"}})]
        )
        items = cosmos_standin.items(container)
        found = {(item["id"], item["tenantId"], item["address"]["city"]) for item in items}
        assert {("shop:entity=2FAccount=2FA", "acme", 7), ("shop:entity=2FAccount=2FA", "acme", "7")} <= found
        others = [item for item in items if item["tenantId"].startswith("onceonly-")]
        assert {item["address"]["city"] for item in others} == {"onceonly"}
        assert len({item["tenantId"] for item in others}) == len(outside)
        assert {item["onceonly"]["name"] for item in items if "onceonly" in item} == {
            f"shop:{key}" for key in (*keys, *outside, f"{keys[0]}/B")
        }
        own = (await documents._account.container()).query_items(
            "SELECT * FROM c WHERE NOT IS_DEFINED(c.onceonly)", partition_key=["acme", 7]
        )
        assert [item["address"] async for item in own] == [{"zip": "1", "city": 7}]


@pytest.mark.parametrize("options", ["", OPTIONS])
async def test_places_with_other_prefixes_see_nothing_of_each_other(
    cosmos_standin: CosmosStandIn, container: str, options: str
) -> None:
    """Neither by key nor in a list; also endpoints of one name, and one without a prefix."""
    async with (
        opened(cosmos_standin, container, options) as bare,
        opened(cosmos_standin, container, f"{options or '?'}&prefix=a") as one,
        opened(cosmos_standin, container, f"{options or '?'}&prefix=ab") as other,
    ):
        for documents in (bare, one, other):
            change = Change(key=KEY, body=b"{}", pending_for=("shop",), pending_since=5)
            assert await documents.save([change]) != (None,)
            assert await documents.keys("entity/") == (KEY,)
            assert [each.key for each in await documents.pending("shop", 6)] == [KEY]


async def test_an_item_of_another_program_is_not_taken_for_a_document(cosmos_standin: CosmosStandIn, container: str) -> None:
    async with opened(cosmos_standin, container) as documents:
        cosmos_standin.put(container, "acme", {"id": "entity=2FAccount=2FA", "tenantId": "acme", "mine": True})
        with pytest.raises(PermanentFailure, match="was not written by onceonly"):
            await documents.load([KEY])


@pytest.mark.parametrize("values", [("acme", "extra"), (2**53 + 1,)])
async def test_a_partition_that_the_container_cannot_have_is_a_permanent_failure(
    cosmos_standin: CosmosStandIn, container: str, values: tuple[Any, ...]
) -> None:
    key = join_key(PlacedKey(values, "entity/Account/A"))
    async with opened(cosmos_standin, container) as documents:
        for call in (documents.load([key]), documents.save([Change(key=key, body=b"{}")])):
            with pytest.raises(PermanentFailure):
                await call


# Documents of the application


async def test_a_document_has_its_id_and_partition_and_nothing_of_the_service(
    cosmos_standin: CosmosStandIn, container: str
) -> None:
    """Written with them or without. What the service adds is left out, also when a program writes it back."""
    async with opened(cosmos_standin, container) as documents:
        body = {"id": "order-1", "n": 1, "tenantId": "acme", "_etag": "mine", "_ts": 1}
        await documents.save_together(Change(key=KEY, body=b"{}"), [put("order-1", body)])
        found = (await documents.read(KEY, [ORDER]))[ORDER]
        assert json.loads(found.body) == {"id": "order-1", "n": 1, "tenantId": "acme"}
        (item,) = (item for item in cosmos_standin.items(container) if item["id"] == "order-1")
        assert found.version == item["_etag"] != "mine"


async def test_a_document_lives_as_long_as_it_is_told(cosmos_standin: CosmosStandIn, container: str) -> None:
    """By `expires`, by a `ttl` of its own, or else as the container says; the store's documents are not concerned."""
    clock = ManualClock()
    cosmos_standin.create(container, ("/tenantId",), defaultTtl=100)
    async with open_documents(cosmos_standin.place(container, OPTIONS), clock=clock) as documents:
        writes = [put("a", {"ttl": 50}), put("b", {"ttl": 5}, expires=clock.now() + 199_001), put("c", {})]
        await documents.save_together(Change(key=KEY, body=b"{}"), writes)
        addresses = [each.address for each in writes]
        for seconds, left in ((0, "abc"), (50, "bc"), (50, "b"), (100, "")):
            cosmos_standin.pass_time(seconds)
            assert "".join(str(each.key[0]) for each in await documents.read(KEY, addresses)) == left
        assert KEY in await documents.load([KEY])


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (put("order-1", {"id": "order-2"}), "its id is 'order-2'"),
        (put("order-1", {"tenantId": "other"}), "its /tenantId is not the partition"),
        (put("order-1", {"tenantId": 7}), "its /tenantId is not the partition"),
        (put("order-1", {"onceonly": {}}), "an object with the name onceonly"),
        (put("order-1", {"ttl": 0}), "Cosmos DB takes seconds from 1"),
        (put("order-1", {"n": 2**53 + 1}), "stores inexactly"),
        (put("entity=2FAccount=2FA", {}), "cannot contain =2F"),
        (put("a/b", {}), "an id in Cosmos DB"),
        (put("x" * 1024, {}), "an id in Cosmos DB"),
        (DocumentWrite(address=DocumentAddress("orders", ("a",)), body=b"{}"), "leave collection= out"),
        (DocumentWrite(address=DocumentAddress("", (7,)), body=b"{}"), "is one str"),
        (DocumentWrite(address=DocumentAddress("", ("a", "b")), body=b"{}"), "is one str"),
    ],
)
async def test_a_document_that_cannot_be_one_is_refused(
    cosmos_standin: CosmosStandIn, container: str, write: DocumentWrite, reason: str
) -> None:
    """While the handler runs, and again by the write; and nothing is sent."""
    async with opened(cosmos_standin, container) as documents:
        assert reason in documents.problem_of(KEY, write)
        cosmos_standin.log()
        with pytest.raises(CommitRefused, match="cannot write document"):
            await documents.save_together(Change(key=KEY, body=b"{}"), [write])
        assert cosmos_standin.log()[0] == []


async def test_a_document_without_a_partition_of_the_handler_is_refused(cosmos_standin: CosmosStandIn, container: str) -> None:
    async with opened(cosmos_standin, container) as documents:
        assert "has no partition_key=" in documents.problem_of("entity/Account/A", put("a", {}))
        with pytest.raises(CommitRefused, match="has no partition_key="):
            await documents.read("entity/Account/A", [ORDER])


async def test_a_document_of_the_library_is_not_read_as_one_of_the_application(
    cosmos_standin: CosmosStandIn, container: str
) -> None:
    async with opened(cosmos_standin, container) as documents:
        cosmos_standin.put(container, "acme", {"id": "order-1", "tenantId": "acme", "onceonly": {"name": "x"}})
        with pytest.raises(CommitRefused, match="is a document of this library"):
            await documents.read(KEY, [ORDER])


async def test_a_batch_over_two_megabytes_is_refused(cosmos_standin: CosmosStandIn, container: str) -> None:
    """Each document is small enough alone. Just below the limit all are written."""
    async with opened(cosmos_standin, container) as documents:
        too_large, small = ([put(name, {"text": "x" * size}) for name in ("a", "b")] for size in (2**20, 2**20 - 4096))
        with pytest.raises(CommitRefused, match="the limit of Cosmos DB is 2,097,152"):
            await documents.save_together(Change(key=KEY, body=b"{}"), too_large)
        assert cosmos_standin.items(container) == []
        assert await documents.save_together(Change(key=KEY, body=b"{}"), small)
        assert len(cosmos_standin.items(container)) == 3


async def test_a_document_that_must_not_exist_is_deleted_in_a_batch(cosmos_standin: CosmosStandIn, container: str) -> None:
    """It is created and deleted in one step, so it is refused where it exists."""
    async with opened(cosmos_standin, container) as documents:
        gone = Change(key=KEY, body=None)
        assert await documents.save_together(gone, [put("a", {})]) == ""
        await documents.save([Change(key=KEY, body=b"{}")])
        assert await documents.save_together(gone, [put("b", {})]) is None
        assert {item["id"] for item in cosmos_standin.items(container)} == {"a", "entity=2FAccount=2F" + "A"}


# What an answer means


BATCH: list[Operation] = [
    ("replace", ("e", {}), {"if_match_etag": "1"}),
    ("create", ({},), {}),
    ("upsert", ({},), {}),
    ("delete", ("d",), {"if_match_etag": "1"}),
]


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        ([412, 424, 424, 424], None),
        ([404, 424, 424, 424], None),
        ([424, 409, 424, 424], None),
        ([424, 424, 424, 412], None),
        ([424, 424, 424, 404], None),
        ([409, 424, 424, 424], CommitFailed),
        ([424, 424, 409, 424], CommitFailed),
        ([424, 429, 424, 424], CommitFailed),
        ([424, 449, 424, 424], CommitFailed),
        ([424, 403, 424, 424], CommitFailed),
        ([424, 400, 424, 424], CommitRefused),
        ([424, 413, 424, 424], CommitRefused),
        ([424, 412, 424, 424], OutcomeUnknown),
        ([424, 408, 424, 424], OutcomeUnknown),
        ([424, 500, 424, 424], OutcomeUnknown),
        ([424, 503, 424, 424], OutcomeUnknown),
        ([424, 424, 424, 424], OutcomeUnknown),
        ([200, 409, 424, 424], OutcomeUnknown),
        ([200, 201, 200, 412], OutcomeUnknown),
        ([412, 424, 424], OutcomeUnknown),
        ([], OutcomeUnknown),
    ],
)
def test_a_refused_batch_means_what_is_certain(statuses: list[int], kind: type[Exception] | None) -> None:
    """One operation failed, and all others depend on it. Any other answer is unknown, also of a batch applied in part."""
    answers = [{"statusCode": status} for status in statuses]
    error = CosmosBatchOperationError(status_code=0, headers={}, message="x", operation_responses=answers)
    found = refused(error, BATCH, Pause(1.0))
    assert type(found) is (kind or type(None))


@pytest.mark.parametrize("status", [400, 413, 429, 449])
async def test_a_batch_that_the_service_did_not_take_has_failed(
    cosmos_standin: CosmosStandIn, container: str, status: int
) -> None:
    """It is sent once."""
    async with opened(cosmos_standin, container) as documents:
        assert await _answered(cosmos_standin, documents, status, "before") is CommitFailed
        assert cosmos_standin.items(container) == []


@pytest.mark.parametrize("status", [408, 500, 503])
@pytest.mark.parametrize(("when", "written"), [("before", 0), ("after", 2)])
async def test_a_batch_that_may_have_been_applied_is_unknown(  # noqa: PLR0917 - fixtures and parameters
    cosmos_standin: CosmosStandIn, container: str, status: int, when: str, written: int
) -> None:
    """It is sent once, whether it was applied or not."""
    async with opened(cosmos_standin, container) as documents:
        assert await _answered(cosmos_standin, documents, status, when) is OutcomeUnknown
        assert len(cosmos_standin.items(container)) == written


async def _answered(server: CosmosStandIn, documents: CosmosDocuments, status: int, when: str) -> type[Exception]:
    """Write two documents, and return the kind of the error, where the service answers with this status."""
    await documents.load([KEY])
    server.log()
    server.fault("batch", str(status), when=when)
    with pytest.raises((CommitFailed, OutcomeUnknown)) as raised:
        await documents.save_together(Change(key=KEY, body=b"{}"), [put("a", {})])
    server.release()
    assert server.log()[0] == ["batch"]
    return raised.type


# Throttling


async def test_no_request_comes_before_the_time_that_the_service_asked_to_wait(
    cosmos_standin: CosmosStandIn, container: str
) -> None:
    """Neither a batch nor a read, also when several are on their way. A refused one was not applied, and is not repeated."""
    async with opened(cosmos_standin, container) as documents:
        await documents.load([KEY])
        cosmos_standin.throttle(2, 300)
        async with raises(CommitFailed):
            await documents.save_together(Change(key=KEY, body=b"{}"), [put("a", {})])
        async with raises(CommitFailed):
            await documents.load([KEY])
        assert cosmos_standin.items(container) == []
        await asyncio.gather(*(documents.load([KEY]) for _ in range(5)))
        assert await documents.save_together(Change(key=KEY, body=b"{}"), [put("a", {})])
        assert cosmos_standin.log()[1] == 0


async def test_a_pause_longer_than_a_request_may_take_fails_at_once(cosmos_standin: CosmosStandIn, container: str) -> None:
    """Nothing is sent meanwhile."""
    async with opened(cosmos_standin, container, f"{OPTIONS}&timeout=5") as documents:
        await documents.load([KEY])
        cosmos_standin.throttle(1, 60_000)
        async with raises(CommitFailed):
            await documents.load([KEY])
        cosmos_standin.log()
        for call in (documents.save([Change(key=KEY, body=b"{}")]), documents.load([KEY])):
            with pytest.raises(CommitFailed, match="asked to wait"):
                await call
        assert cosmos_standin.log()[0] == []


async def test_a_pause_in_the_answer_to_a_batch_counts_too() -> None:
    """Operations of a batch have a field for it."""
    answers = [{"statusCode": 429, "retryAfterMilliseconds": 60_000}, *[{"statusCode": 424}] * 3]
    error = CosmosBatchOperationError(status_code=429, headers={}, message="x", operation_responses=answers)
    pause = Pause(1.0)
    assert isinstance(refused(error, BATCH, pause), CommitFailed)
    with pytest.raises(Exception, match="asked to wait"):
        await pause.over()


# A handler


@dataclass
class Deposit:
    """A message of one tenant."""

    tenant: str
    account_id: str
    amount: int


@dataclass
class Account:
    """The entity."""

    account_id: str
    balance: int = 0


async def test_a_handler_writes_documents_of_its_partition_with_its_entity(
    cosmos_standin: CosmosStandIn, container: str
) -> None:
    """A copy of the message is known, and changes nothing."""
    store = cosmos_standin.place(container, OPTIONS)
    await create(store)
    bank = Endpoint("bank", store=store, transport="memory://bank", janitor=False)

    @bank.handler(entity=Account, key="account_id", partition_key="tenant")
    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.balance += message.amount
        context.documents.put(f"receipt-{message.amount}", {"balance": account.balance})

    async with bank.hosted() as hosted:
        for name, amount in (("d1", 5), ("d2", 7), ("d1", 5)):
            body = b'{"tenant": "acme", "account_id": "A", "amount": %d}' % amount
            outcome = await hosted.handle_one(body, headers={"ce-id": name, "ce-source": "web", "ce-type": "Deposit"})
            assert outcome.is_settled, outcome.reason
    items = {item["id"]: item for item in cosmos_standin.items(container) if item["tenantId"] == "acme"}
    assert items["entity=2FAccount=2FA"]["onceonly"]["body"]["state"]["balance"] == 12
    assert {name: item["balance"] for name, item in items.items() if "receipt" in name} == {"receipt-5": 5, "receipt-7": 12}
