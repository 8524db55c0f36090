"""URLs of RabbitMQ: what they may say, and that no message ever repeats their password."""

import asyncio
import socket
import ssl
from pathlib import Path
from textwrap import dedent

import pytest
from aiormq.exceptions import ChannelNotFoundEntity, ConnectionInternalError, ConnectionNotAllowed

from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import RabbitMQLink, translated
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.assembly import open_database, open_store, open_transport
from onceonly.cli import main
from onceonly.config.endpoint import Settings
from onceonly.model.errors import CommitFailed, OnceOnlyError, SetupError
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemClock, SystemRandomSource
from tests.adapters.rabbitmq.harness import Proxy, certificate, opened
from tests.servers.available import RABBITMQ, need

SECRET = "s3cr3t"  # noqa: S105 - one that must not be seen


def test_a_url_says_all_there_is_to_say() -> None:
    """Options of ours are taken out; the driver gets its own."""
    address = read_address(f"amqps://me:{SECRET}@host:5671/orders?prefix=a.&lease=90&max_body=5&timeout=3&cafile=/ca&verify=no")
    assert (address.prefix, address.lease, address.max_body, address.timeout) == ("a.", 90.0, 5, 3.0)
    assert address.place == "amqps://host:5671/orders"
    assert address.url == f"amqps://me:{SECRET}@host:5671/orders?cafile=%2Fca&heartbeat=90&name=onceonly&no_verify_ssl=1"


def test_a_heartbeat_is_never_so_short_that_it_alarms_for_nothing() -> None:
    """However short a lease is asked for."""
    assert "heartbeat=5" in read_address("amqp://host/?lease=1").url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"amqp://me:{SECRET}@/", "no host"),
        (f"amqp://me:{SECRET}/odd@host/", "cannot be read: percent-encode"),
        (f"amqp://me:{SECRET}@host:port/", "not a RabbitMQ URL"),
        (f"amqp://me:{SECRET}@host/?speed=9", "unknown option 'speed'.*prefix"),
        (f"amqp://me:{SECRET}@host/?prefix=a&prefix=b", "more than once"),
        (f"amqp://me:{SECRET}@host/?prefix=A", "lower-case letter"),
        (f"amqp://me:{SECRET}@host/?lease=soon", "number of seconds"),
        (f"amqp://me:{SECRET}@host/?timeout=0", "number of seconds"),
        (f"amqp://me:{SECRET}@host/?max_body=0", "number of bytes"),
        (f"amqp://me:{SECRET}@host/?management=host:15672", "http://HOST:15672"),
        (f"amqp://me:{SECRET}@host/?management=http://host:port", "http://HOST:15672"),
        (f"amqp://me:{SECRET}@host/?management=http://me:{SECRET}%40host:15672", "http://HOST:15672 without a user"),
        (f"amqp://me:{SECRET}@host/?cafile=x", "amqps://"),
        (f"amqps://me:{SECRET}@host/?verify=maybe", "true or false"),
    ],
)
def test_a_wrong_url_is_a_setup_error_without_its_password(url: str, why: str) -> None:
    """It says what to change."""
    with pytest.raises(SetupError, match=why) as caught:
        read_address(url)
    assert SECRET not in str(caught.value)


async def opening(url: str) -> str:
    """Try to use a server; gives what went wrong, with the kind of error."""
    link = RabbitMQLink(read_address(url), SystemRandomSource())
    transport = RabbitMQTransport(link, "shop", clock=SystemClock())
    try:
        await transport.receive(1, 0)
    except (CommitFailed, SetupError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await link.close()
    return ""


async def test_a_server_that_is_away_is_told_without_its_password() -> None:
    """It may come back, so this is no fault of the set-up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    told = await opening(f"amqp://me:{SECRET}@127.0.0.1:{port}/orders?timeout=1")
    assert told.startswith(f"CommitFailed: cannot connect to amqp://127.0.0.1:{port}/orders: ")
    assert SECRET not in told


async def test_a_wrong_password_or_virtual_host_is_told() -> None:
    """Both are faults of the set-up, and no password is repeated."""
    server = need(RABBITMQ)
    address = server.partition("@")[2].partition("/")[0]
    told = await opening(f"amqp://me:{SECRET}@{address}/")
    assert told == f"SetupError: cannot connect to amqp://{address}/: the server rejected this user or password"
    told = await opening(f"{server.rstrip('/')}/nowhere")
    assert told == (
        f"SetupError: cannot connect to amqp://{address}/nowhere: NOT_ALLOWED - vhost nowhere not found."
        " Use an existing virtual host that this user may access"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            ConnectionNotAllowed("NOT_ALLOWED - access to vhost 'a' refused for user 'me': connection limit (5) is reached"),
            CommitFailed,
        ),
        (ConnectionNotAllowed("NOT_ALLOWED - access to vhost 'a' refused for user 'me'"), SetupError),
        (
            ChannelNotFoundEntity(
                "NOT_FOUND - queue 'a' in vhost '/' process is stopped by supervisor, or is down or inaccessible"
            ),
            CommitFailed,
        ),
        (ChannelNotFoundEntity("NOT_FOUND - no queue 'a' in vhost '/'"), SetupError),
        (
            ConnectionInternalError("INTERNAL_ERROR - access to vhost 'a' refused for user 'me': vhost 'a' is down"),
            CommitFailed,
        ),
    ],
)
async def test_what_passes_by_itself_is_no_fault_of_the_set_up(error: Exception, kind: type[OnceOnlyError]) -> None:
    """The server says it with the codes of things that only a person can mend; its words tell them apart."""
    with pytest.raises(kind):
        async with translated("connect", definite=True):
            raise error


async def test_tls_is_a_matter_of_the_url(tmp_path: Path) -> None:
    """A certificate that nobody vouches for is refused, unless the URL names who does, or asks for no proof."""
    made, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made, key)
    async with opened() as broker, Proxy.before(broker.url, context) as proxy:
        url = proxy.through(broker.url).replace("amqp://", "amqps://")
        for options in (f"&cafile={made}", "&verify=false"):
            assert await opening(url + options) == ""
        told = await opening(url)
        assert told.startswith("CommitFailed: cannot connect to amqps://127.0.0.1:")
        assert "certificate" in told.lower()


async def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    """It took the connection, and that was all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        told = await opening(f"amqp://127.0.0.1:{listening.getsockname()[1]}/?timeout=0.1")
    assert "no answer for 0.1 s" in told


async def test_rabbitmq_is_a_transport_and_nothing_else() -> None:
    """Neither a store nor a database."""
    url = need(RABBITMQ)
    with pytest.raises(SetupError, match="no store for amqp://"):
        await open_store(Settings(name="shop", store=url, transport=url)).__aenter__()
    with pytest.raises(SetupError, match="is not a SQL database"):
        open_database(url, "transport")


async def test_endpoints_of_one_process_share_a_connection() -> None:
    """And both work on it."""
    async with (
        opened(Topology(endpoint="a"), Topology(endpoint="b")) as broker,
        open_transport(broker.url, "a") as first,
        open_transport(broker.url, "b") as second,
    ):
        assert (await first.receive(1, 0), await second.receive(1, 0)) == ((), ())
        assert isinstance(first, RabbitMQTransport)
        assert isinstance(second, RabbitMQTransport)
        assert first._link is second._link


def test_the_command_line_declares_and_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`topology create` needs no worker; `status` shows the queue then, and credentials nowhere."""
    url = f"{need(RABBITMQ)}?prefix=cli{tmp_path.name[-6:].lower().replace('_', '')}."
    program = f"""
        from dataclasses import dataclass
        from onceonly import Endpoint

        shop = Endpoint("shop", store="sqlite:///{tmp_path}/s.db", transport="{url}")

        @dataclass
        class Ordered:
            id: str

        @shop.handler
        async def place(ordered: Ordered) -> None: ...
    """
    (tmp_path / "rabbit_shop.py").write_text(dedent(program))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit):
        main(["schema", "create", "rabbit_shop:shop", "--component", "store"])
    capsys.readouterr()
    for arguments in (("topology", "create"), ("topology", "print"), ("status",)):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "rabbit_shop:shop", "--json"])
        said = capsys.readouterr()
        assert (ended.value.code, said.err) == (0, "")
        assert '"shop"' in said.out

    async def remove() -> None:
        link = RabbitMQLink(read_address(url), SystemRandomSource())
        await RabbitMQTransport(link, "shop", clock=SystemClock()).remove([Topology(endpoint="shop", events=("Ordered",))])
        await link.close()

    asyncio.run(remove())
