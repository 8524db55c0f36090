"""The few lines of HTTP: what is asked properly is answered, all else is refused or cut off, and nobody keeps it busy."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest

from onceonly.model.errors import SetupError
from onceonly.runtime.observe import http
from onceonly.runtime.observe.http import MOST_BYTES, MOST_CONNECTIONS, HealthReply, serving
from onceonly.systems.urls import Address, parse_address

HERE = Address("127.0.0.1", 0)
GET = b"GET /live HTTP/1.1\r\nHost: here\r\n\r\n"


class Answer:
    """What came back."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        line, *headers = head.decode().split("\r\n")
        self.status = int(line.split()[1])
        self.headers = dict(header.split(": ", 1) for header in headers)

    @property
    def said(self) -> Any:
        """Read the body."""
        return json.loads(self.body)


@asynccontextmanager
async def site(status: HTTPStatus = HTTPStatus.OK) -> AsyncIterator[Address]:
    """Serve two pages."""
    pages = {"/live": lambda: HealthReply(status, {"status": "ok"}), "/ready": lambda: HealthReply(status, {"status": "fine"})}
    async with serving(HERE, pages) as address:
        yield address


async def ask(address: Address, request: bytes, *, ends: bool = True) -> bytes:
    """Say something, and hear all that is answered until the other side closes."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request)
        if ends:
            writer.write_eof()
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_page_is_answered_with_its_status_and_its_body() -> None:
    """As JSON that nobody keeps."""
    async with site(HTTPStatus.SERVICE_UNAVAILABLE) as address:
        answer = Answer(await ask(address, GET, ends=False))
    assert (answer.status, answer.said) == (503, {"status": "ok"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert int(answer.headers["content-length"]) == len(answer.body)


async def test_head_is_answered_without_the_body() -> None:
    """And with its length."""
    async with site() as address:
        answer = Answer(await ask(address, GET.replace(b"GET", b"HEAD")))
    assert answer.status == 200
    assert answer.body == b""
    assert int(answer.headers["content-length"]) > 0


async def test_what_follows_a_question_mark_is_nobodys_business() -> None:
    """Some probes add something there."""
    async with site() as address:
        assert Answer(await ask(address, GET.replace(b"/live", b"/ready?at=1"))).said == {"status": "fine"}


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /live HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", 405),
        (b"GET /live\r\n\r\n", 400),
        (b"GET /live HTTP/2.0\r\n\r\n", 400),
        (b"get /live HTTP/1.1\r\n\r\n", 400),
        (b"GET http://here/live HTTP/1.1\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nname: a\nother: b\r\n\r\n", 400),
        (b"GET /li\x00ve HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: here\r\n", 400),
        (b"GET /" + b"a" * MOST_BYTES + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /live HTTP/1.1\r\n" + b"name: value\r\n" * 1000 + b"\r\n", 431),
    ],
)
async def test_garbage_is_refused_and_the_next_one_is_answered(request_: bytes, status: int) -> None:
    """With words for the person who tries it by hand."""
    async with site() as address:
        answer = Answer(await ask(address, request_))
        assert answer.status == status
        assert answer.said["error"]
        assert Answer(await ask(address, GET)).status == 200


async def test_who_connects_and_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is who never ends."""
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.05)
    async with site() as address:
        assert await ask(address, b"", ends=False) == b""
        assert await ask(address, b"GET /live HTTP/1.1\r\n", ends=False) == b""
        assert Answer(await ask(address, GET)).status == 200


async def test_more_connections_than_it_has_room_for_are_closed_at_once() -> None:
    """Those that are open go on, and when they are gone there is room again."""
    async with site() as address:
        idle = [await asyncio.open_connection(*address) for _ in range(MOST_CONNECTIONS)]
        assert await ask(address, GET, ends=False) == b""
        idle[0][1].write(GET)
        assert Answer(await idle[0][0].read()).status == 200
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        while not (heard := await ask(address, GET, ends=False)):  # it learns of the closed ones in its own time
            pass
        assert Answer(heard).status == 200


async def test_an_address_that_is_taken_is_a_wrong_set_up() -> None:
    """It names the address."""
    async with site() as address:
        with pytest.raises(SetupError, match=rf"cannot listen at 127\.0\.0\.1:{address.port}"):
            async with serving(address, {}):
                pass


async def test_the_end_waits_for_nobody() -> None:
    """Who is connected is cut off."""
    async with site() as address:
        reader, writer = await asyncio.open_connection(*address)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),  # noqa: S104 - read, not bound to
        ("localhost:0", ("localhost", 0)),
        ("[::1]:8080", ("::1", 8080)),
    ],
)
def test_an_address_is_this_machines_unless_a_host_is_named(text: str, address: tuple[str, int]) -> None:
    """In brackets where the host has colons."""
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "here", "::1:80", "1:2:3", "a:65536", "a: 80", "http://a:80", "a:-1", "a/b:80"])
def test_what_is_no_address_is_told_with_what_to_write(text: str) -> None:
    """Whatever it is."""
    with pytest.raises(ValueError, match="use HOST:PORT"):
        parse_address(text)
