"""The application that executes what other services ask: the protocol, word by word, on every store that can."""

import asyncio
import json
import re
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from onceonly import Context, Endpoint, Reject, Response, RetryLater, SetupError
from onceonly.assembly import open_database, schemas
from onceonly.cli.commands import Component
from onceonly.endpoint.http_app import HttpApp
from onceonly.model.remote import LARGEST
from onceonly.runtime.environment import LIVE
from onceonly.sql.schema import create
from tests.endpoint.asgi_client import FAR, Got, ask

PLACES = ("memory", "sqlite", "postgresql", "mariadb")


UNSENDABLE: Mapping[str, tuple[Response, str]] = {
    "line break": (Response(body=b"x", content_type="text/plain\r\nset-cookie: a=b"), "content type.*a media type in ASCII"),
    "nul": (Response(body=b"x", content_type="text/plain\0"), "content type.*a media type in ASCII"),
    "beyond latin-1": (Response(body=b"x", content_type="text/\N{EURO SIGN}"), "content type.*a media type in ASCII"),
    "letter of latin-1": (
        Response(body=b"x", content_type="text/\N{LATIN SMALL LETTER E WITH ACUTE}"),
        "a media type in ASCII",
    ),
    "surrogate": (Response(body=b"x", content_type="text/\ud800"), "a media type in ASCII"),
    "no media type": (Response(body=b"x", content_type="text"), "a media type in ASCII"),
    "blank at the end": (Response(body=b"x", content_type="text/plain "), "a media type in ASCII"),
    "long": (Response(body=b"x", content_type="text/" + "x" * 251), "256 characters; the limit is 255"),
    "no text": (Response(body=b"x", content_type=cast("str", None)), "content type.*must be a string, not NoneType"),
    "bytes": (Response(body=b"x", content_type=cast("str", b"text/plain")), "must be a string, not bytes"),
    "text for bytes": (Response(body=cast("bytes", "x")), "a body of type str: use bytes"),
    "body with 204": (Response(status=204, body=b"x"), "a body with status 204, which has none"),
    "status as text": (Response(status=cast("int", "200")), "a status of type str: use an int"),
    "status as float": (Response(status=cast("int", 200.0)), "a status of type float: use an int"),
}
"""What can be stored and never be sent, and what is logged about it."""


@dataclass
class Charge:
    """What is asked for."""

    name: str


@dataclass
class Receipt:
    """What is told."""

    name: str


class ServedResponder(NamedTuple):
    """An application, and what its responder has done."""

    app: HttpApp
    endpoint: Endpoint
    runs: list[str]

    async def put(self, id_: str = "r1", body: bytes = b'{"name":"a"}', **headers: object) -> Got:
        """PUT a request."""
        sent = {"onceonly_operation": "Charge", "onceonly_deadline": now() + FAR, "content_type": "application/json", **headers}
        return await ask(self.app, "PUT", f"/x/{id_}", body, **sent)

    async def ask(self, method: str, id_: str = "r1", **headers: object) -> Got:
        """Ask for anything else."""
        return await ask(self.app, method, f"/x/{id_}", **{"onceonly_deadline": now() + FAR, **headers})


def now() -> int:
    """Return milliseconds since 1970."""
    return LIVE.clock.now()


def payments(store: str, runs: list[str]) -> Endpoint:
    """Make an endpoint that charges."""
    endpoint = Endpoint("payments", store=store, transport="memory://queue")

    @endpoint.responder
    async def charge(asked: Charge, context: Context) -> object:
        runs.append(f"{asked.name} {context.attempts} {dict(context.message.headers).get('x-tenant', '')}".strip())
        if asked.name in UNSENDABLE and len(runs) == 1:
            context.publish(Receipt("never"))
            return UNSENDABLE[asked.name][0]
        match asked.name:
            case "poor":
                context.publish(Receipt("never"))
                raise Reject("no money")
            case "bug" if len(runs) == 1:
                raise ValueError("a secret bug")
            case "later" if len(runs) == 1:
                raise RetryLater(1)
            case "impossible" if len(runs) == 1:
                context.publish(Receipt("secret"), delay=-1)
            case "nothing":
                return None
            case "teapot":
                return Response(status=418, body=b"short and stout", content_type="text/plain")
            case "wrong":
                return Response(status=500)
        context.publish(Receipt(asked.name))
        return Receipt(asked.name)

    return endpoint


@pytest.fixture(params=PLACES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name each kind of store."""
    if request.param in {"postgresql", "mariadb"}:
        return f"{request.getfixturevalue(f'{request.param}_url')}?prefix=http_"
    return "memory://payments" if request.param == "memory" else f"sqlite:///{tmp_path}/payments.db"


@pytest.fixture
async def served(store: str) -> AsyncIterator[ServedResponder]:
    """Open an endpoint on it."""
    if store.startswith(("postgresql", "mysql")):
        async with open_database(store) as database:
            for schema in schemas("store", "http"):
                await create(database, schema)
    async with opened(store) as served:
        yield served


@asynccontextmanager
async def opened(store: str) -> AsyncIterator[ServedResponder]:
    """Open an endpoint on a store."""
    runs: list[str] = []
    endpoint = payments(store, runs)
    async with endpoint.opened():
        id_ = f"t{now()}"
        app = endpoint.http_app(principal=lambda scope: dict(scope["headers"]).get(b"x-who", id_.encode()).decode() or None)
        yield ServedResponder(app, endpoint, runs)


async def test_a_request_is_executed_once_however_often_it_is_posted(served: ServedResponder) -> None:
    """PUT executes nothing; every POST and GET gives the one response; after DELETE there is nothing."""
    assert (await served.put()).status == 204
    assert (served.runs, (await served.ask("GET")).status) == ([], 404)
    first, second = await served.ask("POST"), await served.ask("POST")
    assert first == second == (200, first.headers, b'{"name":"a"}')
    read = await served.ask("GET")
    assert (read.status, read.headers["onceonly-status"], read.body) == (200, "200", first.body)
    assert [(await served.ask("DELETE")).status for _ in range(2)] == [204, 204]
    assert [(await served.ask(method)).status for method in ("GET", "POST")] == [404, 410]
    assert served.runs == ["a 0"]


async def test_two_posts_at_once_execute_once(served: ServedResponder) -> None:
    """The second waits for the first, and gets its response."""
    await served.put()
    answers = await asyncio.gather(*[served.ask("POST") for _ in range(4)])
    assert {(each.status, each.body) for each in answers} == {(200, b'{"name":"a"}')}
    assert len(served.runs) == 1


async def test_a_put_after_the_delete_is_refused(served: ServedResponder) -> None:
    """Also of a request that never came before, which is how a caller cancels one that is still under way."""
    assert (await served.ask("DELETE")).status == 204
    assert ((await served.put()).status, (await served.ask("POST")).status, served.runs) == (410, 410, [])


async def test_the_same_put_again_is_fine_and_another_is_not(served: ServedResponder) -> None:
    """A network may repeat it; another body under the same id is somebody's mistake."""
    assert [(await served.put()).status, (await served.put()).status] == [204, 204]
    assert (await served.put(body=b'{"name":"b"}')).status == 410
    await served.ask("POST")
    assert ((await served.put()).status, served.runs) == (204, ["a 0"])


async def test_what_a_responder_rejects_is_an_answer(served: ServedResponder) -> None:
    """Its work is undone, the reason is stored, and nothing runs again."""
    await served.put(body=b'{"name":"poor"}')
    for method in ("POST", "POST", "GET"):
        got = await served.ask(method)
        assert (got.body, got.is_protocols) == (b'{"rejected": "no money"}', True)
    assert (await served.ask("GET")).headers["onceonly-status"] == "422"
    assert served.runs == ["poor 0"]


async def test_a_body_that_cannot_be_read_is_an_answer(served: ServedResponder) -> None:
    """It will never be readable."""
    await served.put(body=b"nonsense")
    assert [(await served.ask("POST")).status for _ in range(2)] == [422, 422]
    assert served.runs == []


@pytest.mark.parametrize(("name", "status"), [("bug", 500), ("later", 503), ("impossible", 500)])
async def test_after_a_failure_nothing_has_happened_and_it_is_asked_again(
    served: ServedResponder, name: str, status: int
) -> None:
    """The next POST executes it."""
    await served.put(body=f'{{"name":"{name}"}}'.encode())
    assert ((await served.ask("POST")).status, (await served.ask("GET")).status) == (status, 404)
    assert ((await served.ask("POST")).status, (await served.ask("GET")).status) == (200, 200)


@pytest.mark.parametrize(
    ("name", "words"), [("bug", "ValueError: a secret bug"), ("impossible", "delay must be 0 or more, not -1")]
)
async def test_a_responder_that_fails_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture, name: str, words: str
) -> None:
    """Its caller receives nothing of the error: what to correct is in the log of the side that was asked."""
    async with opened("memory://payments") as served:
        await served.put(body=f'{{"name":"{name}"}}'.encode())
        got = await served.ask("POST")
    assert (got.status, got.body) == (500, b"nothing happened: repeat the request\n")
    assert not [value for value in got.headers.values() if "secret" in value or "delay" in value]
    (line,) = [record for record in caplog.records if record.name == "onceonly.http"]
    assert "responder failed" in line.message
    assert vars(line)["request"] == "r1"
    assert words in vars(line)["reason"]
    assert line.exc_info
    assert "in charge" in "".join(traceback.format_exception(line.exc_info[1]))


@pytest.mark.parametrize(
    ("name", "status", "body"), [("nothing", 204, b""), ("teapot", 418, b"short and stout"), ("wrong", 500, None)]
)
async def test_a_responder_may_choose_its_response(served: ServedResponder, name: str, status: int, body: bytes | None) -> None:
    """None is 204; a Response is itself, if it is an answer for good."""
    await served.put(body=f'{{"name":"{name}"}}'.encode())
    got = await served.ask("POST")
    assert got.status == status
    read = await served.ask("GET")
    assert (read.status, read.body) == ((200, body) if body is not None else (404, b"no response\n"))


@pytest.mark.parametrize("name", UNSENDABLE)
async def test_a_response_that_can_never_be_sent_is_not_stored(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is a failure of the responder, which the caller asks again, and not an answer that fails for good."""
    async with opened("memory://payments") as served:
        await served.put(body=json.dumps({"name": name}).encode())
        assert ((await served.ask("POST")).status, (await served.ask("GET")).status) == (500, 404)
        assert ((await served.ask("POST")).status, (await served.ask("GET")).status) == (200, 200)
    (line,) = [record for record in caplog.records if record.name == "onceonly.http"]
    assert re.search(UNSENDABLE[name][1], vars(line)["reason"])


async def test_headers_of_the_caller_reach_the_responder(served: ServedResponder) -> None:
    """But not those that are about the connection, nor secrets."""
    await served.put(x_tenant="north", authorization="Bearer secret")
    await served.ask("POST")
    assert served.runs == ["a 0 north"]


async def test_nobody_touches_the_requests_of_another(served: ServedResponder) -> None:
    """A principal has a space of names of its own; nobody is refused."""
    await served.put(x_who="north")
    await served.ask("DELETE", x_who="south")
    assert [(await served.ask(method, x_who="south")).status for method in ("POST", "GET")] == [410, 404]
    assert (await served.ask("POST", x_who="north")).status == 200
    refused = await served.ask("POST", x_who="")
    assert (refused.status, refused.is_protocols) == (401, False)


async def test_what_is_no_request_of_the_protocol_says_so(served: ServedResponder) -> None:
    """Each with a status that the caller understands."""
    assert (await served.put(onceonly_http="2")).status == 501
    assert (await served.put(onceonly_operation="Pay")).status == 404
    assert b"use one of Charge" in (await served.put(onceonly_operation="Pay")).body
    assert [(await served.put(onceonly_deadline=each)).status for each in ("", "soon", now() + 10**9)] == [400, 400, 400]
    assert (await served.put(onceonly_deadline=now() - 1)).status == 410
    assert (await served.ask("DELETE", onceonly_deadline="")).status == 400
    assert (await served.put("a b")).status == 400
    assert (await served.put(body=bytes(LARGEST + 1))).status == 413
    other = await served.ask("PATCH")
    assert (other.status, other.headers["allow"]) == (405, "PUT, POST, GET, DELETE")
    assert (await served.ask("POST", "unknown")).status == 410
    assert served.runs == []


async def test_an_application_whose_endpoint_is_not_open_says_so(tmp_path: Path) -> None:
    """Its caller asks again."""
    runs: list[str] = []
    app = payments(f"sqlite:///{tmp_path}/p.db", runs).http_app()
    got = await ask(app, "POST", "/r1")
    assert (got.status, b"running()" in got.body) == (503, True)


async def test_the_lifespan_opens_the_endpoint(tmp_path: Path) -> None:
    """From startup to shutdown."""
    endpoint = payments(f"sqlite:///{tmp_path}/p.db", [])
    app = endpoint.http_app()
    events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    said: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    living = asyncio.create_task(app({"type": "lifespan"}, events.get, said.put))
    events.put_nowait({"type": "lifespan.startup"})
    assert (await said.get())["type"] == "lifespan.startup.complete"
    assert (await ServedResponder(app, endpoint, []).put()).status == 204
    events.put_nowait({"type": "lifespan.shutdown"})
    assert (await said.get())["type"] == "lifespan.shutdown.complete"
    await living
    assert (await ServedResponder(app, endpoint, []).put()).status == 503


async def test_a_lifespan_that_cannot_open_the_endpoint_says_why() -> None:
    """The server stops then."""
    app = payments("sqlite:////nowhere/at/all.db", []).http_app()
    said: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    await app({"type": "lifespan"}, receive, said.put)
    failed = await said.get()
    assert (failed["type"], "does not exist" in failed["message"]) == ("lifespan.startup.failed", True)


@pytest.mark.parametrize("changed", [{"blobs": "memory://b"}, {"peers": ["http://127.0.0.1:1/x"]}])
async def test_a_store_without_a_place_for_requests_is_refused_at_start(changed: dict[str, object]) -> None:
    """Documents have no one commit for request, response and data."""
    endpoint = Endpoint("payments", store="memory://here", transport="memory://queue", **changed)  # type: ignore[arg-type]

    @endpoint.responder
    async def charge(asked: Charge) -> None: ...

    with pytest.raises(SetupError, match="responders need a SQL store"):
        async with endpoint.opened():
            pass


def test_the_tables_are_a_component_of_their_own() -> None:
    """Made only where there are responders."""
    assert [schema.component for schema in schemas("http")] == ["http"]
    assert Component.HTTP.value == "http"
