"""Hostile HTTP clients: keys of every shape, bodies of every kind, clients that go away, many with one key at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn
from sqlalchemy import insert
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from onceonly import Endpoint, Transaction
from onceonly.integrations.starlette import idempotent, lifespan
from tests.adversary.harness import Place, opened_place
from tests.adversary.program import Done, tables
from tests.servers.available import RABBITMQ, free_port, need

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


class Shop:
    """An application that writes one row for each request that is committed."""

    def __init__(self, place: Place, port: int) -> None:
        self.place, self.port = place, port
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self.entered, self.may_go = asyncio.Event(), asyncio.Event()
        self.may_go.set()

    async def post(self, key: bytes | str | None = b'"k"', content: Any = b"{}", **headers: str) -> httpx.Response:
        """Send a request."""
        sent: Any = [*((name.replace("_", "-"), value) for name, value in headers.items())]
        if key is not None:
            sent.append(("Idempotency-Key", key))
        return await self.client.post("/", content=content, headers=sent)

    async def raw(self, *parts: bytes, half_close: bool = False) -> bytes:
        """Send bytes; returns the answer, empty when there is none."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with suppress(OSError):
            for part in parts:
                writer.write(part)
                await writer.drain()
            if half_close:
                writer.write_eof()
            async with asyncio.timeout(30):
                answer = await reader.read(65536)
                writer.close()
                return answer
        writer.close()
        return b""

    async def rows(self) -> int:
        """Count what was committed."""
        return await self.place.handled()


@asynccontextmanager
async def served(postgresql_url: str) -> AsyncIterator[Shop]:
    """Serve it by uvicorn, on a port of its own."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        _, effects, _ = tables(f"{place.prefix}effects")
        shop = Endpoint("shop", store=place.store, transport=place.transport)
        shared_shop: Shop

        @shop.handler(type="Order")
        async def order(_body: bytes) -> None:
            """Do nothing: only the web sends here."""

        @idempotent(shop, scope=lambda request: request.headers.get("x-tenant"), max_body=1 << 20, wait=20)
        async def write(request: Request, tx: Transaction) -> JSONResponse:
            name = (await request.body())[:20].hex() or "empty"
            await tx.sql.execute(insert(effects).values(name=name.encode()))
            tx.publish(Done(name))
            shared_shop.entered.set()
            await shared_shop.may_go.wait()
            return JSONResponse({"name": name}, 201)

        app = Starlette(routes=[Route("/", write, methods=["POST"])], lifespan=lifespan(shop))
        port = free_port()
        shared_shop = Shop(place, port)
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="on"))
        serving = asyncio.create_task(server.serve())
        try:
            while not server.started:
                assert not serving.done()
                await asyncio.sleep(0.01)
            yield shared_shop
        finally:
            shared_shop.may_go.set()
            await shared_shop.client.aclose()
            server.should_exit = True
            await serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_shop(postgresql_url: str) -> AsyncIterator[Shop]:
    """Serve it for all cases."""
    async with served(postgresql_url) as shop:
        yield shop


@pytest_asyncio.fixture(loop_scope="module")
async def shop(shared_shop: Shop) -> Shop:
    """Begin without rows and keys."""
    await shared_shop.place.execute(
        f"DELETE FROM {shared_shop.place.prefix}effects", f"DELETE FROM {shared_shop.place.prefix}keys"
    )
    shared_shop.entered.clear()
    shared_shop.may_go.set()
    return shared_shop


GOOD_KEYS = {
    "one byte": b"k",
    "255 bytes": b'"' + b"k" * 255 + b'"',
    "quotes inside": b'"a\\"b"',
    "backslash": b'"a\\\\b"',
    "SQL": b'"\'; DROP TABLE onceonly_keys; --"',
    "blanks inside": b'"a b"',
    "percent": b"%00%0a%s",
}
BAD_KEYS = {
    "256 bytes": b'"' + b"k" * 256 + b'"',
    "empty": b"",
    "empty in quotes": b'""',
    "one quote": b'"',
    "a list": b'"a", "b"',
    "parameters": b'"a";p=1',
    "latin-1": b'"M\xfcller"',
    "UTF-8": '"Müller"'.encode(),
    "60 KB": b'"' + b"k" * 60_000 + b'"',
}


@pytest.mark.parametrize("name", GOOD_KEYS)
async def test_a_good_key_is_done_once(shop: Shop, name: str) -> None:
    """Repeated, it gets the same response."""
    first, again = await shop.post(GOOD_KEYS[name]), await shop.post(GOOD_KEYS[name])
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.headers["idempotent-replayed"] == "true"
    assert await shop.rows() == 1


@pytest.mark.parametrize("name", BAD_KEYS)
async def test_a_bad_key_changes_nothing(shop: Shop, name: str) -> None:
    """It is refused as the client's fault, and the next request is served."""
    refused = await shop.post(BAD_KEYS[name])
    assert refused.status_code in {400, 431}
    assert await shop.rows() == 0
    assert (await shop.post()).status_code == 201


@pytest.mark.parametrize("key", [b'"a\0b"', b'"a\x1bb"', b'"a\r\nb"', b'"a\x7fb"'], ids=["NUL", "ESC", "CRLF", "DEL"])
async def test_controls_in_a_key_change_nothing(shop: Shop, key: bytes) -> None:
    """Written by hand: no client library sends them."""
    answer = await shop.raw(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nidempotency-key: " + key + b"\r\n\r\n{}")
    assert not answer or answer.split(b" ")[1] == b"400"
    assert await shop.rows() == 0


async def test_twenty_requests_with_one_key_at_once_are_one(shop: Shop) -> None:
    """All get the same response."""
    responses = await asyncio.gather(*(shop.post() for _ in range(20)))
    assert {(each.status_code, each.content) for each in responses} == {(201, responses[0].content)}
    assert await shop.rows() == 1


async def test_one_key_in_twenty_scopes_at_once_is_twenty(shop: Shop) -> None:
    """No tenant waits for another."""
    responses = await asyncio.gather(*(shop.post(x_tenant=f"tenant {number}") for number in range(20)))
    assert [each.status_code for each in responses] == [201] * 20
    assert await shop.rows() == 20


async def test_a_tenant_cannot_hold_up_another_ones_key(shop: Shop) -> None:
    """While one has the key, another one's request with that key is served."""
    shop.may_go.clear()
    first = asyncio.create_task(shop.post(x_tenant="ann"))
    await shop.entered.wait()
    second = asyncio.create_task(shop.post(x_tenant="bob"))
    shop.entered.clear()
    await shop.entered.wait()  # it is in its transaction too
    shop.may_go.set()
    assert [(await each).status_code for each in (first, second)] == [201, 201]


@pytest.mark.parametrize("moment", ["in the body", "before the response"])
async def test_a_client_that_goes_away_can_ask_again(shop: Shop, moment: str) -> None:
    """Whatever became of its first request, it is done once."""
    head = b'POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: "k"\r\ncontent-type: text/plain\r\n'
    if moment == "in the body":
        assert b" 201 " not in await shop.raw(head + b"content-length: 1000\r\n\r\n{", half_close=True)
        assert await shop.rows() == 0
    else:
        shop.may_go.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", shop.port)
        writer.write(head + b"content-length: 2\r\n\r\n{}")
        await shop.entered.wait()
        writer.transport.abort()
        shop.may_go.set()
    assert (await shop.post()).status_code == 201
    assert await shop.rows() == 1


@pytest.mark.parametrize(
    ("size", "status"),
    [(0, 201), (1 << 20, 201), ((1 << 20) + 1, 413), (20 << 20, 413)],
    ids=["0", "1 MiB", "1 MiB + 1", "20 MiB"],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_bodies_are_limited(shop: Shop, size: int, status: int, *, chunked: bool) -> None:
    """By what comes, not by what was announced."""

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, size, 1 << 16):
            yield bytes(min(1 << 16, size - start))

    with suppress(httpx.WriteError, httpx.ReadError):  # the server answers before it has read it all
        assert (await shop.post(content=parts() if chunked else bytes(size))).status_code == status
    assert await shop.rows() == (status == 201)
    assert (await shop.post(b'"after"')).status_code == 201


async def test_a_body_that_never_ends_holds_up_nobody(shop: Shop) -> None:
    """Nothing is open while it is read."""
    _, writer = await asyncio.open_connection("127.0.0.1", shop.port)
    writer.write(b'POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: "k"\r\ncontent-length: 100\r\n\r\n{')
    await writer.drain()
    assert (await shop.post()).status_code == 201
    writer.transport.abort()
    assert await shop.rows() == 1
