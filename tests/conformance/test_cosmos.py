"""Cosmos DB keeps every promise of documents and of what is built on them, as far as an emulator can tell; see its store."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from aiohttp import ClientConnectorError, ServerDisconnectedError, web
from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.core.pipeline import PipelineContext, PipelineRequest
from azure.cosmos.exceptions import CosmosHttpResponseError

from onceonly.adapters.cosmos import documents as adapter
from onceonly.adapters.cosmos.address import read_address
from onceonly.adapters.cosmos.client import Pause, ThrottledError, _SentOnce, translated
from onceonly.adapters.cosmos.documents import create, open_documents
from onceonly.documents.no_retry import SentTwiceError
from onceonly.model.errors import CommitFailed, OutcomeUnknown, SetupError
from onceonly.ports.documents import Change
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.on_documents import DocumentDedupSuite, DocumentProjectionSuite, DocumentTokenSuite
from onceonly_conformance.pending_list_suite import PendingListSuite
from onceonly_conformance.suite import raises
from tests.conformance.document_subject import ServiceSubject
from tests.servers.available import free_port
from tests.servers.cosmos import KEY, secured

WRITE = re.compile(rb"(?:POST|PUT|DELETE) [^ ]*/docs[/ ]")
QUERY = re.compile(rb"(?i)x-ms-documentdb-isquery|query\+json")


@pytest.fixture
async def url(cosmos_account: str) -> str:
    """Make a container of its own."""
    url = f"{cosmos_account}/onceonly/t{uuid4().hex[:12]}?emulator=true"
    await create(url)
    return url


class InCosmos:
    """A container of the emulator."""

    service: ClassVar[str] = "cosmos"

    @pytest.fixture(autouse=True)
    def _use(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[ServiceSubject]:
        """Open a container of its own."""
        async with ServiceSubject.open(
            open_documents,
            self._url,
            missing=self._url.replace("?", "missing?"),
            is_write=lambda data: WRITE.search(data) is not None and QUERY.search(data) is None,
            secured=secured(),
        ) as subject:
            yield subject


class TestCosmos(InCosmos, DocumentsSuite):
    """Documents themselves."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 100  # a request holds one
    lapse: ClassVar[int] = 250  # the emulator removes nothing


class TestPendingInCosmos(InCosmos, PendingListSuite):
    """The list of documents with unsent messages."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 100


class TestProjectionsInCosmos(InCosmos, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInCosmos(InCosmos, DocumentDedupSuite):
    """The dedup store for every service, here."""


class TestTokensInCosmos(InCosmos, DocumentTokenSuite):
    """The tokens for every service, here."""


async def test_a_json_body_can_be_queried(url: str) -> None:
    """It is kept as fields, with the seconds it has to live."""
    clock = ManualClock()
    async with open_documents(url, clock=clock) as documents:
        await documents.save([Change(key="k", body=b'{"state":{"total":17}}', expires=clock.now() + 5_001)])
        await documents.save([Change(key="l", body=b'{"state":{"total":18}}')])
        container = await documents._account.container()
        query = container.query_items("SELECT c.id, c.ttl FROM c WHERE c.body.state.total >= 17 ORDER BY c.id")
        assert [item async for item in query] == [{"id": "k", "ttl": 6}, {"id": "l", "ttl": -1}]


async def test_creating_again_changes_nothing(url: str) -> None:
    """The documents stay."""
    async with open_documents(url, clock=ManualClock()) as documents:
        await documents.save([Change(key="k", body=b"1")])
        await create(url)
        assert (await documents.load(["k"]))["k"].body == b"1"


async def test_a_client_is_closed_behind_its_look_at_regions(url: str) -> None:
    """The driver takes it in the background; cancelled while TLS begins, it would leave a connection open."""
    async with open_documents(url, clock=ManualClock()) as documents:
        client = await documents._account.client()
        look = client.client_connection._global_endpoint_manager.refresh_task
    assert look is not None
    assert (look.done(), look.cancelled()) == (True, False)


async def test_an_account_that_is_not_strong_is_refused(url: str) -> None:
    """The emulator's says Session, so it passes only where the URL calls it one; and then it is told."""
    async with open_documents(url, clock=ManualClock()) as documents:
        assert ["emulator" in warning for warning in await documents.check()] == [True]
        account = documents._account
        account.address = read_address(url.partition("?")[0])
        async with raises(SetupError):
            await documents.check()
    for level in ("BoundedStaleness", "Session", "ConsistentPrefix", "Eventual", "None"):
        with pytest.raises(SetupError, match="Strong"):
            adapter._refuse_stale(level, "https://a/")
    adapter._refuse_stale("Strong", "https://a/")


def test_a_container_of_another_form_is_refused() -> None:
    """Partitioned by something else than the id, or with unique keys of its own; without expiry it is warned of."""
    place = read_address("cosmos://a/d/c")
    good: dict[str, Any] = {"partitionKey": {"paths": ["/id"]}, "defaultTtl": -1}
    adapter._refuse_container(good, place)
    assert adapter._expiry_warnings(good) == ()
    assert len(adapter._expiry_warnings({"partitionKey": {"paths": ["/id"]}})) == 1
    for bad in (
        {"partitionKey": {"paths": ["/key"]}},
        {"uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/a"]}]}},
        {"partitionKey": {}},
    ):
        with pytest.raises(SetupError):
            adapter._refuse_container(good | bad, place)


async def test_a_service_that_is_away_is_a_definite_failure() -> None:
    """Nothing was sent."""
    away = f"cosmos://:{KEY}@127.0.0.1:{free_port()}/shop/docs?emulator=true&timeout=1"
    async with open_documents(away, clock=ManualClock()) as documents:
        for call in (documents.save([Change(key="k", body=b"1")]), documents.load(["k"]), documents.check()):
            async with raises(CommitFailed):
                await call


@pytest.mark.parametrize("status", [500, 503, 408, 410, 429, 449])
async def test_a_write_is_sent_once_whatever_is_answered(status: int) -> None:
    """The driver repeats such writes by itself, with all regions known; it must not get through with that."""
    async with answering(status) as (endpoint, seen):
        url = f"cosmos://:{KEY}@{endpoint}/shop/c?timeout=2"
        kind = CommitFailed if status in {429, 449} else OutcomeUnknown
        async with open_documents(url, clock=ManualClock()) as documents, raises(kind):
            await documents.save([Change(key="k", body=b"1")])
        assert [line for line in seen if line.startswith("POST") and "/docs" in line] == ["POST /dbs/shop/colls/c/docs/"]


async def test_the_driver_cannot_send_a_write_twice() -> None:
    """A read it can."""
    policy = _SentOnce(Pause(1.0))
    sent: list[str] = []
    policy.next = SimpleNamespace(send=lambda request: _answer(sent, request))  # type: ignore[assignment]
    for operation, times in (("Read", 2), ("Create", 1), ("Replace", 1), ("Delete", 1)):
        http = SimpleNamespace(data=None)
        for number in range(2):
            parameters = SimpleNamespace(operation_type=operation)
            request = PipelineRequest(http, PipelineContext(None, request_params=parameters))
            if number < times:
                await policy.send(request)
            else:
                async with raises(SentTwiceError):
                    await policy.send(request)
    assert len(sent) == 5


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CosmosHttpResponseError(status_code=429), CommitFailed),
        (CosmosHttpResponseError(status_code=413), CommitFailed),
        (CosmosHttpResponseError(status_code=500), OutcomeUnknown),
        (CosmosHttpResponseError(status_code=503), OutcomeUnknown),
        (CosmosHttpResponseError(status_code=408), OutcomeUnknown),
        (
            ServiceRequestError("x", error=ClientConnectorError(SimpleNamespace(host="h", port=1, ssl=None), OSError())),
            CommitFailed,
        ),  # type: ignore[arg-type]
        (ServiceRequestError("x", error=ServerDisconnectedError()), OutcomeUnknown),
        (ServiceResponseError("x"), OutcomeUnknown),
        (SentTwiceError("x"), OutcomeUnknown),
        (ThrottledError("x"), CommitFailed),
    ],
)
def test_only_what_the_service_said_for_sure_is_definite(error: Exception, kind: type[Exception]) -> None:
    """Everything else is OutcomeUnknown; but a read that failed has changed nothing."""
    assert type(translated(error)) is kind
    assert type(translated(error, reads=True)) is CommitFailed


@pytest.mark.parametrize(
    "url",
    ["cosmos://h", "cosmos://h/d", "cosmos://h/d/c/x", "cosmos://h/d/c?x=1", "cosmos://h/d/c?emulator=x", "cosmos:///d/c"],
)
async def test_a_wrong_url_is_a_setup_error(url: str) -> None:
    """It names an account, a database and a container."""
    async with raises(SetupError):
        await create(url)


@asynccontextmanager
async def answering(status: int) -> AsyncIterator[tuple[str, list[str]]]:
    """Answer every write with this status, and what the driver asks of an account; gives the address, and what was asked."""
    seen: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        seen.append(f"{request.method} {request.path}")
        place = f"https://127.0.0.1:{port}/"
        location = [{"name": "North", "databaseAccountEndpoint": place}]
        if request.path == "/":
            account = {"writableLocations": location, "readableLocations": [*location, {**location[0], "name": "South"}]}
            return web.json_response({"id": "a", **account, "userConsistencyPolicy": {"defaultConsistencyLevel": "Strong"}})
        if request.path.endswith("/docs/"):
            return web.json_response({"message": "x"}, status=status, headers={"x-ms-retry-after-ms": "1"})
        return web.json_response({"id": "c", "_rid": "r", "partitionKey": {"paths": ["/id"], "kind": "Hash"}})

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=secured().serving).start()
    try:
        yield f"127.0.0.1:{port}", seen
    finally:
        await runner.cleanup()


async def _answer(sent: list[str], request: Any) -> Any:
    sent.append(request.context.options.get("request_params", "sent"))
    return SimpleNamespace(http_response=SimpleNamespace(status_code=200))
