"""The subscriptions of a queue, as the management HTTP API lists them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onceonly.adapters.rabbitmq import management
from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.names import RabbitMQNames
from onceonly.cli import main
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.ports.transport import Topology
from tests.adapters.rabbitmq.harness import opened
from tests.servers.rabbitmq import own_rabbitmq

KINDS = ("shop.order.v1", "Größe: 10", "a:b", "event:x", ":hash:", "")


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_can_be_read_back(kind: str) -> None:
    """Of an exchange behind a prefix."""
    names = RabbitMQNames("p.")
    assert names.event_of(names.exchange(kind)) == kind


@pytest.mark.parametrize(
    "exchange", [RabbitMQNames().exchange("x" * 200), "onceonly:event::ff", "onceonly:inbox:shop", "amq.topic"]
)
def test_what_is_no_type_is_none(exchange: str) -> None:
    """A hash, bytes that are not UTF-8, and other exchanges."""
    assert RabbitMQNames().event_of(exchange) is None


@asynccontextmanager
async def answering(status: str, body: bytes = b"") -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve one answer to all requests; gives the URL and the requests."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nLocation: http://127.0.0.1:1/\r\n\r\n".encode() + body
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        ("401 Unauthorized", b"", SetupError, "tag `management`"),
        ("403 Forbidden", b"", SetupError, "tag `management`"),
        ("302 Found", b"", CommitFailed, "status 302"),
        ("500 Error", b"", CommitFailed, "status 500"),
        ("200 OK", b"<html>", CommitFailed, "not a list of bindings"),
        ("200 OK", b'[{"source": 3}]', CommitFailed, "not a list of bindings"),
    ],
)
async def test_another_answer_is_an_error(status: str, body: bytes, kind: type[Exception], words: str) -> None:
    """It names the API, and never the password. A redirect is not followed."""
    async with answering(status, body) as (url, _):
        address = read_address(f"amqp://me:s3cr3t@127.0.0.1/?management={url}")
        with pytest.raises(kind, match=words) as caught:
            await management.sources(address, "shop")
    assert url in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


async def test_a_request_names_the_virtual_host_and_the_user() -> None:
    """Escaped. The queue may be missing."""
    async with answering("404 Not Found") as (url, asked):
        address = read_address(f"amqp://me%3A:pa%2Fss@127.0.0.1/my%2Fhost?management={url}/proxy/")
        assert await management.sources(address, "p.shop") == frozenset()
    assert asked[0].startswith(b"GET /proxy/api/queues/my%2Fhost/p.shop/bindings HTTP/1.1\r\n")
    assert b"Authorization: Basic bWU6OnBhL3Nz\r\n" in asked[0]


async def test_an_api_that_is_away_is_an_error() -> None:
    """As CommitFailed: try again."""
    async with answering("200 OK") as (url, _):
        pass
    with pytest.raises(CommitFailed, match=r"cannot reach the management API at http://127\.0\.0\.1"):
        await management.sources(read_address(f"amqp://127.0.0.1/?management={url}"), "shop")


PROGRAM = """
from onceonly import Endpoint

shop = Endpoint("shop", store="sqlite:///s.db", transport="{url}")


@shop.handler(type="order.v2")
async def order(message: dict) -> None:
    pass
"""


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, str]]:
    """Start a server with the API; gives both URLs."""
    with own_rabbitmq() as own:
        api = own.with_management()
        own.start()
        own.control("await_startup")
        yield own.url, api


async def test_the_server_lists_the_subscriptions(served: tuple[str, str]) -> None:
    """All types, and none for an endpoint without a queue. Without the option they are unknown."""
    server, api = served
    kinds = frozenset(kind for kind in KINDS if kind)
    async with opened(Topology(endpoint="shop", events=tuple(kinds)), Topology(endpoint="till"), server=server) as broker:
        transport = await broker.transport(url=f"{broker.url}&management={api}")
        assert await transport.subscriptions("shop") == kinds
        assert await transport.subscriptions("till") == frozenset()
        assert await transport.subscriptions("nobody") == frozenset()
        assert await (await broker.transport()).subscriptions("shop") is None
        await transport.declare([Topology(endpoint="shop", gone=KINDS[:1])])
        assert await transport.subscriptions("shop") == kinds - {KINDS[0]}


def test_status_shows_superfluous_subscriptions(
    served: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of an earlier program. An API that does not answer costs only them."""
    server, api = served
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, kind in (("earlier", "order.v1"), ("current", "order.v2")):
        url = f"{server}?management={api}"
        (tmp_path / f"{name}_shop.py").write_text(PROGRAM.format(url=url).replace("order.v2", kind))
    (tmp_path / "blind_shop.py").write_text(PROGRAM.format(url=f"{server}?management=http://127.0.0.1:1"))
    run("schema", "create", "earlier_shop:shop")
    run("topology", "create", "earlier_shop:shop")
    run("topology", "create", "current_shop:shop")
    capsys.readouterr()
    run("status", "current_shop:shop", "--json")
    (status,) = json.loads(capsys.readouterr().out)
    assert (status["superfluous"], status["waiting"]) == (["order.v1"], 0)
    run("status", "current_shop:shop")
    shown = capsys.readouterr().err
    assert "shop is subscribed to order.v1, which it does not handle as an event" in shown
    assert "`onceonly topology unsubscribe module:endpoint --type order.v1`" in shown
    run("status", "blind_shop:shop", "--json")
    (status,) = json.loads(capsys.readouterr().out)
    assert status["waiting"] == 0
    assert "superfluous" not in status
    assert status["problem"].startswith("the subscriptions of shop are unknown: cannot reach the management API")


def run(*arguments: str) -> None:
    """Run a command that succeeds."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code
