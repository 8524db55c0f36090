"""Requests with an `Idempotency-Key`, the same for each framework: what is kept, what is rolled back, what is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from onceonly import Endpoint
from onceonly.assembly import open_database
from onceonly.errors import TransactionMisused
from onceonly.integrations.starlette import idempotent
from tests.integrations.harness import APPLICATIONS, FRAMEWORKS, ServedApplication, serving, two_with_one_key

KEPT = ("created", "empty", "moved", "refused", "bytes", "background", "streams", "template")
UNKEPT = ("broken", "raises-4xx", "raises", "large", "too-many", "injected")


@pytest.fixture(params=FRAMEWORKS, name="framework")
def each_framework(request: pytest.FixtureRequest) -> str:
    """Name a framework."""
    return str(request.param)


@asynccontextmanager
async def application_of(
    framework: str, folder: Path, *, wait: float = 30.0, **options: Any
) -> AsyncIterator[ServedApplication]:
    """Serve on a file. Unless told otherwise, no request is refused because the machine is busy."""
    async with serving(f"sqlite:///{folder}/shop.db", make=APPLICATIONS[framework], wait=wait, **options) as served:
        yield served


@pytest.fixture
async def served(framework: str, tmp_path: Path) -> AsyncIterator[ServedApplication]:
    """Serve on a file, on the usual terms."""
    async with application_of(framework, tmp_path) as served:
        yield served


@pytest.mark.parametrize("what", KEPT)
async def test_what_is_returned_is_committed_once_and_given_to_every_retry(served: ServedApplication, what: str) -> None:
    """Status, headers and body, byte for byte; one row, one message, one run."""
    first, *retries = [await served.post(what) for _ in range(3)]
    for retry in retries:
        assert (retry.status_code, retry.content) == (first.status_code, first.content)
        assert retry.headers.pop("idempotent-replayed") == "true"
        assert set(first.headers.multi_items()) - set(retry.headers.multi_items()) <= {("set-cookie", "session=secret")}
    assert await served.lines() == [what]
    assert len(await served.announced(1)) == served.behaviour.runs[what] == 1


@pytest.mark.parametrize("what", UNKEPT)
async def test_what_is_raised_and_any_5xx_is_rolled_back_and_served_anew(
    served: ServedApplication, framework: str, what: str
) -> None:
    """No row, no message, and the key is free."""
    if (framework, what) == ("wsgi", "raises-4xx"):
        pytest.skip("to WSGI, a framework's exception is a response")
    statuses = [(await served.post(what)).status_code for _ in range(2)]
    assert statuses == [{"broken": 502, "raises-4xx": 404, "too-many": 429}.get(what, 500)] * 2
    assert (await served.lines(), served.behaviour.runs[what]) == ([], 2)


async def test_a_key_is_free_after_what_was_rolled_back(served: ServedApplication) -> None:
    """For any other request, too: nothing of the first is there."""
    assert (await served.post("raises")).status_code == 500
    assert (await served.post("created")).status_code == 201


async def test_a_cookie_is_sent_once_and_not_kept(served: ServedApplication) -> None:
    """It is a secret, and the database is no place for it."""
    first, retry = [await served.post("created") for _ in range(2)]
    assert first.headers["set-cookie"] == "session=secret"
    assert "set-cookie" not in retry.headers
    assert first.headers["location"] == retry.headers["location"]


async def test_background_tasks_run_after_the_first_response_only(served: ServedApplication) -> None:
    """At most once, and after the commit; what must happen is sent as a message."""
    for _ in range(2):
        await served.post("background")
    assert served.behaviour.afterwards == ["background"]


@pytest.mark.parametrize(
    "other",
    [
        {"what": "empty"},
        {"content": b"other"},
        {"params": {"q": "1"}},
        {"headers": {"Authorization": "Bearer other"}},
        {"method": "PUT"},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_the_same_key_with_another_request_is_refused(served: ServedApplication, other: dict[str, Any]) -> None:
    """Method, path, query, principal and body are what a request is."""
    asked = {"content": b"body", "params": {"q": "0"}, "headers": {"Authorization": "Bearer one", "Idempotency-Key": '"k"'}}
    changed = {**asked, **other, "headers": {**asked["headers"], **other.get("headers", {})}}
    method, what = changed.pop("method", "POST"), changed.pop("what", "created")
    assert (await served.client.request("POST", "/lines/created", **asked)).status_code == 201
    refused = await served.client.request(method, f"/lines/{what}", **changed)
    assert problem(refused) == (422, "key-reused")
    assert (await served.client.request("POST", "/lines/created", **asked)).headers["idempotent-replayed"] == "true"
    assert await served.lines() == ["created"]


async def test_other_headers_are_not_what_a_request_is(served: ServedApplication) -> None:
    """A retry comes by another connection, another client, at another time."""
    for agent in ("one", "two"):
        assert (await served.post("created", headers={"User-Agent": agent})).status_code == 201
    assert served.behaviour.runs["created"] == 1


@pytest.mark.parametrize(
    ("lines", "code"),
    [([], "key-missing"), (['""'], "malformed-key"), (['"a", "b"'], "malformed-key"), ([f'"{"k" * 256}"'], "malformed-key")],
)
async def test_a_missing_or_malformed_key_is_a_400(served: ServedApplication, lines: list[str], code: str) -> None:
    """Told as a problem, and nothing is run."""
    refused = await served.client.post("/lines/created", headers=[("Idempotency-Key", line) for line in lines])
    assert problem(refused) == (400, code)
    assert not served.behaviour.runs


async def test_the_longest_key_serves(served: ServedApplication) -> None:
    """255 bytes."""
    assert [(await served.post("created", "k" * 255)).status_code for _ in range(2)] == [201] * 2
    assert served.behaviour.runs["created"] == 1


async def test_a_quoted_and_a_bare_key_are_the_same(served: ServedApplication) -> None:
    """The quotes are how it is written."""
    for written in ('"k-1"', "k-1"):
        assert (await served.client.post("/lines/created", headers={"Idempotency-Key": written})).status_code == 201
    assert served.behaviour.runs["created"] == 1


async def test_without_a_required_key_a_repeated_request_is_done_again(framework: str, tmp_path: Path) -> None:
    """Each is a transaction all the same: what fails leaves nothing."""
    async with application_of(framework, tmp_path, key_required=False) as served:
        assert [(await served.post("created", None)).status_code for _ in range(2)] == [201] * 2
        assert (await served.post("raises", None)).status_code == 500
        assert await served.lines() == ["created"] * 2


async def test_a_body_that_is_too_large_is_refused(framework: str, tmp_path: Path) -> None:
    """Whether its length is announced or not; the largest that may be is taken."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x"

    async with application_of(framework, tmp_path, max_body=10) as served:
        # Django reads no body without a length from a WSGI server
        for content in (bytes(11), *(() if framework == "django" else (chunks(),))):
            assert problem(await served.post("created", content=content)) == (413, "too-large")
        assert (await served.post("created", content=bytes(10))).status_code == 201


async def test_who_asks_can_be_told_by_something_else(framework: str, tmp_path: Path) -> None:
    """Such as a user's name: tokens change between retries."""

    def user(request: Request) -> str | None:
        return request.headers.get("x-user")

    async with application_of(framework, tmp_path, principal=user) as served:
        asked = [{"x-user": "ann", "authorization": "1"}, {"x-user": "ann", "authorization": "2"}, {"x-user": "bob"}]
        assert [(await served.post("created", headers=headers)).status_code for headers in asked] == [201, 201, 422]


def tenant(request: Request) -> str | None:
    """Return the tenant that a request names."""
    return request.headers.get("x-tenant")


async def test_one_tenant_cannot_use_up_read_or_block_the_key_of_another(framework: str, tmp_path: Path) -> None:
    """One key in two scopes, and without one, is three keys: three runs, and each tenant's retry gets its own response."""
    async with application_of(framework, tmp_path, scope=tenant) as served:
        asked: list[dict[str, str]] = [{"x-tenant": "ann"}, {"x-tenant": "bob"}, {}]
        first = [await served.post("created", headers=headers) for headers in asked]
        again = [await served.post("created", headers=headers) for headers in asked]
        assert [each.status_code for each in first] == [201] * 3
        assert len({each.content for each in first}) == 3
        assert [each.content for each in again] == [each.content for each in first]
        assert [each.headers["idempotent-replayed"] for each in again] == ["true"] * 3
        assert served.behaviour.runs["created"] == 3


async def test_a_tenant_at_work_holds_up_no_other_with_its_key(framework: str, postgresql_url: str) -> None:
    """A request that takes long has its key in its own scope only."""
    async with serving(postgresql_url, make=APPLICATIONS[framework], scope=tenant, wait=0.1) as served:
        entered, may_go = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            served.behaviour.before = None
            entered.set()
            await may_go.wait()

        served.behaviour.before = held
        first = asyncio.create_task(served.post("created", headers={"x-tenant": "ann"}))
        await entered.wait()
        assert problem(await served.post("created", headers={"x-tenant": "ann"})) == (409, "in-progress")
        assert (await served.post("created", headers={"x-tenant": "bob"})).status_code == 201
        may_go.set()
        assert (await first).status_code == 201


async def test_requests_with_one_key_at_once_are_done_once(served: ServedApplication) -> None:
    """Others wait, and get the answer of the first."""
    responses = await asyncio.gather(*(served.post("created") for _ in range(8)))
    assert {(response.status_code, response.content) for response in responses} == {(201, responses[0].content)}
    assert (served.behaviour.runs["created"], await served.lines()) == (1, ["created"])


async def test_a_second_request_waits_for_so_long_and_is_then_told(framework: str, tmp_path: Path) -> None:
    """A 409 says that the first is at work; a retry afterwards gets its answer."""
    async with application_of(framework, tmp_path, wait=2.0, query="&timeout=100") as served:
        first, second, may_go = await two_with_one_key(served)
        assert (*problem(second), second.headers["retry-after"]) == (409, "in-progress", "1")
        may_go.set()
        assert (await first).status_code == 201
        assert (await served.post("created")).content == (await first).content
        assert served.behaviour.runs["created"] == 1


@pytest.mark.parametrize("framework", ["fastapi", "starlette"])
async def test_a_client_that_goes_away_while_it_sends_is_no_error(served: ServedApplication) -> None:
    """Nothing is run."""
    sent: list[Any] = []
    received = iter([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    app = served.client._transport.app  # type: ignore[attr-defined] # the client's own transport
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/lines/created",
        "raw_path": b"/lines/created",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"idempotency-key", b"k")],
        "scheme": "http",
        "server": ("shop", 80),
        "client": None,
    }
    await app(scope, receive, send)
    assert (sent[0]["status"], served.behaviour.runs) == (400, {})


async def test_a_database_that_is_busy_is_a_503_for_a_request_without_a_key(framework: str, tmp_path: Path) -> None:
    """Nothing was done, and there is no other request that it would have to wait for."""
    async with application_of(framework, tmp_path, wait=2.0, key_required=False, query="&timeout=0.2") as served:
        async with open_database(served.url) as other, other.writing():
            busy = await served.post("created", None)
        assert (*problem(busy), busy.headers["retry-after"]) == (503, "not-done", "1")
        assert (await served.post("created", None)).status_code == 201


def problem(response: Any) -> tuple[int, str]:
    """Read problem details; gives status and code."""
    assert response.headers["content-type"] == "application/problem+json"
    said = response.json()
    assert said["status"] == response.status_code
    assert said["title"]
    assert said["detail"]
    return response.status_code, said["code"]


async def test_equal_requests_in_other_bytes_get_the_stored_response(served: ServedApplication) -> None:
    """Order and white space of JSON, order of the query."""
    headers = {"Idempotency-Key": '"k"', "Content-Type": "application/json"}
    first = await served.client.post("/lines/created?a=1&b=2", content=b'{"x":1,"y":2}', headers=headers)
    again = await served.client.post("/lines/created?b=2&a=1", content=b'{ "y": 2, "x": 1 }', headers=headers)
    other = await served.client.post("/lines/created?b=2&a=1", content=b'{"x":1,"y":3}', headers=headers)
    assert (first.status_code, again.content, other.status_code) == (201, first.content, 422)
    assert again.headers["idempotent-replayed"] == "true"


async def test_a_fingerprint_of_ones_own_decides(framework: str, tmp_path: Path) -> None:
    """It replaces query and body."""
    async with application_of(framework, tmp_path, fingerprint=lambda _, body: body[:1]) as served:
        headers = {"Idempotency-Key": '"k"'}
        statuses = [
            (await served.client.post(f"/lines/created{query}", content=body, headers=headers)).status_code
            for query, body in (("", b"ab"), ("?q=1", b"ac"), ("", b"b"))
        ]
    assert statuses == [201, 201, 422]


async def test_store_if_frees_the_key_of_what_is_not_stored(framework: str, tmp_path: Path) -> None:
    """The transaction is rolled back."""
    async with application_of(framework, tmp_path, store_if=lambda status: status < 400) as served:
        assert [(await served.post("refused")).status_code for _ in range(2)] == [409, 409]
        assert (await served.lines(), served.behaviour.runs["refused"]) == ([], 2)
        assert (await served.post("created")).status_code == 201


def test_options_that_are_not_functions_are_refused() -> None:
    """When the application is made."""
    shop = Endpoint("shop", store="memory://x", transport="memory://x")
    for options in ({"fingerprint": "x"}, {"store_if": [200]}):
        with pytest.raises(TransactionMisused, match="must be a function"):
            idempotent(shop, **options)
