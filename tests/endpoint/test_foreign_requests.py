"""What other services send and answer: the application answers everything, and the caller knows each answer or asks again."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest

from onceonly import Endpoint, Peer
from onceonly.adapters.http.remote import HttpRemote
from onceonly.endpoint.http_app import HttpApp, rejection
from onceonly.formats.remote import DEADLINE, OPERATION, PROTOCOL, STATUS, decode_response, encode_response
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, OutcomeUnknown, PermanentFailure, UpgradeRequired
from onceonly.model.record import Answer
from onceonly.model.remote import HTTP, RemoteRequest, Response, Verb, name_of
from onceonly.model.transaction import key_of
from onceonly.runtime.environment import LIVE
from tests.endpoint.asgi_client import FAR, ask
from tests.endpoint.test_http_app import payments
from tests.fuzzing import Inputs

NAMES = (PROTOCOL, OPERATION, DEADLINE, "content-type", "traceparent", "x-tenant", "host", STATUS, "ce-id", "")
METHODS = ("PUT", "POST", "GET", "DELETE", "PATCH", "", "put", "\u0660")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    """Open a service that charges."""
    opened = payments("memory://payments", [])
    async with opened.opened():
        yield opened


async def send(app: HttpApp, scope: dict[str, Any], events: list[dict[str, Any]]) -> tuple[int, dict[bytes, bytes]]:
    """Return a request to an application, and check that it is answered as ASGI has it."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return events.pop(0) if events else {"type": "http.disconnect"}

    async def take(event: Any) -> None:
        sent.append(event)

    await app({"type": "http", **scope}, receive, take)
    start, body = sent
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    assert all(b"\n" not in part and b"\r" not in part for pair in start["headers"] for part in pair)
    return start["status"], dict(start["headers"])


async def test_fuzz_requests_of_peers(endpoint: Endpoint) -> None:
    """Methods, paths, headers and bodies. A good request after each hundred is executed."""
    inputs, app = Inputs(), endpoint.http_app(principal=lambda _: "who")
    now = LIVE.clock.now()
    values = (
        b"1",
        b"Charge",
        str(now + FAR).encode(),
        b"-1",
        b"9" * 30,
        "٣".encode(),
        b"application/json",
        b"\xff\xfe",
        b"a\r\nb: c",
    )
    for number in inputs.rounds():
        good = {PROTOCOL: b"1", OPERATION: b"Charge", DEADLINE: str(now + FAR).encode()}
        headers = [(name.encode(), value) for name, value in good.items() if inputs.random() < 0.9]
        headers += [
            (
                inputs.choice(NAMES).encode() if inputs.random() < 0.8 else inputs.data(),
                inputs.choice((inputs.choice(values), inputs.data())),
            )
            for _ in range(inputs.randrange(4))
        ]
        id_ = inputs.choice(("r1", f"r{number}", inputs.word(), "x" * 201, "%2e"))
        body = inputs.document(b'{"name": "a"}')
        parts = [{"type": "http.request", "body": body, "more_body": inputs.random() < 0.2}]
        scope = {
            "method": inputs.choice(METHODS),
            "path": f"{inputs.word()}/{id_}",
            "query_string": inputs.data(),
            "headers": headers,
        }
        status, answered = await send(app, scope, parts)
        assert status in {200, 204, 400, 401, 404, 405, 410, 413, 422, 500, 501, 503}
        assert answered[PROTOCOL.encode()] == b"1"
        if number % 100 == 0:
            deadline = {"onceonly_operation": "Charge", "onceonly_deadline": now + FAR, "content_type": "application/json"}
            assert (await ask(app, "PUT", f"/x/good{number}", b'{"name":"a"}', **deadline)).status == 204
            got = await ask(app, "POST", f"/x/good{number}", onceonly_deadline=now + FAR)
            assert (got.status, json.loads(got.body)) == (200, {"name": "a"})


def test_fuzz_stored_responses() -> None:
    """One that cannot be read, or sent, is refused; see also the rows of requests in SQL."""
    inputs = Inputs()
    plain = [encode_response(each) for each in (Response(body=b"{}"), rejection("no"), Response(status=204))]
    for _ in inputs.rounds():
        with suppress(PermanentFailure, UpgradeRequired):
            assert isinstance(decode_response(inputs.changed(inputs.choice(plain))).status, int)


@pytest.mark.parametrize(
    "stored",
    [
        encode_response(Response(body=b"x", content_type="text/plain\r\nset-cookie: a=b")),
        encode_response(Response(status=999)),
        b"\x01\xff",
        b"\x02",
        b"",
    ],
    ids=["line break", "status", "garbled", "newer", "empty"],
)
async def test_a_stored_response_that_cannot_be_sent_is_not_sent(tmp_path: Path, stored: bytes) -> None:
    """A line break in its type would be a header of its own. The caller asks again, and other requests are answered."""
    endpoint, now = payments(f"sqlite:///{tmp_path}/payments.db", []), LIVE.clock.now()
    async with endpoint.opened():
        app = endpoint.http_app(principal=lambda _: "who")
        sent = {"onceonly_operation": "Charge", "onceonly_deadline": now + FAR, "content_type": "application/json"}
        for name in ("bad", "good"):
            assert (await ask(app, "PUT", f"/x/{name}", b'{"name":"nothing"}', **sent)).status == 204
            assert (await ask(app, "POST", f"/x/{name}", onceonly_deadline=now + FAR)).status == 204
        with closing(sqlite3.connect(tmp_path / "payments.db")) as connection, connection:
            change = "UPDATE onceonly_requests SET answer = ? WHERE key = ?"
            assert connection.execute(change, (stored, key_of("payments", "who\0bad"))).rowcount == 1
        for method in ("GET", "POST"):
            got = await ask(app, method, "/x/bad", onceonly_deadline=now + FAR)
            assert (got.status, got.is_protocols) == (503, True)
            assert (await ask(app, method, "/x/good", onceonly_deadline=now + FAR)).status in {200, 204}


# What a peer answers


class AnsweringBackend(httpcore.AsyncNetworkBackend):
    """Answers every connection with the same bytes."""

    def __init__(self) -> None:
        self.answer = b""

    async def connect_tcp(self, *_arguments: Any, **_options: Any) -> httpcore.AsyncNetworkStream:
        """Connect to nothing."""
        return httpcore.AsyncMockStream([self.answer, b""])


async def test_fuzz_answers_of_peers() -> None:
    """Status lines, headers and bodies. Each is one of the port's outcomes."""
    inputs, told = Inputs(), dict[str, str]()
    backend = AnsweringBackend()
    transport = httpx.AsyncHTTPTransport(retries=0, trust_env=False)
    transport._pool = httpcore.AsyncConnectionPool(network_backend=backend, keepalive_expiry=0)
    url = "http://peer/x"
    async with httpx.AsyncClient(transport=transport) as client:
        remote = HttpRemote(client, [Peer(url)], clock=LIVE.clock, tell=told.__setitem__)
        artifact = Artifact(kind=HTTP, name=name_of("attempt", 0, url), data=b"{}", headers=((OPERATION, "Charge"),))
        for _ in inputs.rounds():
            backend.answer = any_answer(inputs)
            way = inputs.randrange(4)
            with suppress(CommitFailed, OutcomeUnknown):
                if way == 0:
                    await remote.create(artifact)
                elif way == 1:
                    await remote.delete(artifact.name)
                elif way == 2:
                    found = await remote.response(f"{url}/r1")
                    assert found is None or 200 <= found.status < 500
                else:
                    verb = inputs.choice((Verb.POST, Verb.DELETE))
                    answers = await remote.perform([RemoteRequest(verb, f"{url}/r1")])
                    assert set(answers) <= {Answer.TAKEN, Answer.UNKNOWN}


async def test_a_status_of_thousands_of_digits_is_refused() -> None:
    """Python reads no number of more than 4,300 digits, and raised ValueError."""
    backend = AnsweringBackend()
    transport = httpx.AsyncHTTPTransport(retries=0, trust_env=False)
    transport._pool = httpcore.AsyncConnectionPool(network_backend=backend)
    async with httpx.AsyncClient(transport=transport) as client:
        remote = HttpRemote(client, [Peer("http://peer/x")], clock=LIVE.clock, tell=dict[str, str]().__setitem__)
        for status in ("9" * 5000, "٢٠٠", "20", "700", "-200"):
            line = f"HTTP/1.1 200 OK\r\n{PROTOCOL}: 1\r\n{STATUS}: {status}\r\ncontent-length: 0\r\n\r\n"
            backend.answer = line.encode()
            with pytest.raises((CommitFailed, OutcomeUnknown)):
                await remote.response("http://peer/x/r1")


def any_answer(inputs: Inputs) -> bytes:
    """Return the bytes of an answer, most of them nearly good."""
    status = inputs.choice((200, 204, 404, 410, 500, 301, 422, 99, 1000, inputs.randrange(100, 600)))
    lines = [f"HTTP/1.1 {status} Words"]
    lines += [f"{PROTOCOL}: {inputs.choice(('1', '1', '1', '2', ''))}"] if inputs.random() < 0.9 else []
    lines += (
        [f"{STATUS}: {inputs.choice(('200', '422', '9' * 5000, '٣', '-1', '20.0', '999'))}"] if inputs.random() < 0.8 else []
    )
    lines += [f"content-type: {inputs.choice(('application/json', 'x', 'é', ''))}"] if inputs.random() < 0.5 else []
    lines += [f"content-encoding: {inputs.choice(('gzip', 'br', 'x'))}"] if inputs.random() < 0.1 else []
    body = inputs.data()
    lines += [f"content-length: {inputs.choice((len(body), len(body), -1, 'x', 10**9))}"] if inputs.random() < 0.8 else []
    plain = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    return inputs.changed(plain) if inputs.random() < 0.3 else plain
