"""`onceonly relay` as a process: what was committed elsewhere is sent, and the broker may be away meanwhile."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from uuid import uuid4

import pytest

from onceonly import Endpoint
from onceonly.assembly import open_store, open_transport, temporary_transport
from onceonly.ports.transport import Topology
from tests.cli.probe import ask, until
from tests.cli.terminal import Running, Terminal
from tests.servers.rabbitmq import own_rabbitmq

PROGRAM = """
from onceonly import Endpoint, History, Off
desk = Endpoint("desk", store="sqlite:///desk.db", transport="sqlite:///queue.db", relay_after=0.05)
off = Endpoint("off", store="sqlite:///desk.db", transport="sqlite:///queue.db", deduplication=Off())
"""
ANSWERS = "health server listening"
STARTED, WAITS = "relay started", "endpoint cannot start yet, retrying with backoff"
SOON = 0.05


@pytest.fixture(autouse=True)
def program(onceonly: Terminal) -> None:
    """Write a program whose endpoints have no handler at all: they only send."""
    (onceonly.folder / "office.py").write_text(PROGRAM)


@contextmanager
def relaying(onceonly: Terminal, *arguments: str) -> Iterator[Running]:
    """Run a relay; whatever happens, it is over at the end."""
    with onceonly.start("relay", *arguments) as process:
        try:
            yield Running(process)
        finally:
            if process.poll() is None:
                process.kill()


def desk(onceonly: Terminal, transport: str = "") -> Endpoint:
    """Return the endpoint in this process, which does not run it."""
    store = f"sqlite:///{onceonly.folder}/desk.db"
    return Endpoint("desk", store=store, transport=transport or f"sqlite:///{onceonly.folder}/queue.db", relay_after=SOON)


async def commit(endpoint: Endpoint, *names: str, to: str = "archive") -> None:
    """Commit a transaction for each name with one message, in a process that cannot send it."""
    for name in names:
        async with endpoint.transaction() as tx:
            tx.send({"name": name}, to=to, type="note")


@asynccontextmanager
async def archive(url: str) -> AsyncIterator[Topology]:
    """Let a queue be there that takes what is sent."""
    topology = Topology(endpoint="archive")
    async with temporary_transport(url, [topology]), open_transport(url, "archive") as transport:
        await transport.declare([topology])
        yield topology


async def received(url: str, count: int) -> list[bytes]:
    """Take so many messages from the archive's queue, and see that there are no more."""
    bodies: list[bytes] = []
    async with open_transport(url, "archive") as transport, asyncio.timeout(60):
        while len(bodies) < count:
            taken = await transport.receive(100, 1.0)
            bodies += [delivery.body for delivery in taken]
            await transport.ack(taken)
        assert (await transport.depth("archive")).waiting == 0
    return sorted(bodies)


async def test_what_waits_is_sent_and_a_signal_stops_it(onceonly: Terminal) -> None:
    """Committed by a process that cannot reach the broker, by an endpoint without handlers; exit code 0, no traceback."""
    queue = f"sqlite:///{onceonly.folder}/queue.db"
    await commit(desk(onceonly, "amqp://127.0.0.1:1/"), "a", "b")
    async with archive(queue):
        with relaying(onceonly, "office:desk") as relay:
            relay.until(STARTED)
            assert await received(queue, 2) == [b'{"name":"a"}', b'{"name":"b"}']
            assert relay.stop() == 0
    assert "relay stopped" in relay.said
    assert "Traceback" not in relay.said
    assert await left(onceonly) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_with_nothing_to_do_ends_at_a_signal(onceonly: Terminal, number: signal.Signals) -> None:
    """Several endpoints in one process, each with its own relay."""
    with relaying(onceonly, "office:desk", "shop:mailer", "--log-format", "json") as relay:
        relay.until(STARTED, times=2)
        assert relay.stop(number) == 0


@pytest.mark.slow
async def test_messages_wait_in_the_store_while_the_broker_is_away(onceonly: Terminal) -> None:
    """Not there at start, then stopped: transactions are committed all the same, and each message comes out once."""
    with own_rabbitmq() as server:
        url = f"{server.url}?prefix=t{uuid4().hex[:10]}."
        endpoint = desk(onceonly, url)
        with relaying(onceonly, "office:desk", "--transport", url) as relay:
            assert "endpoint 'desk' cannot use its transport amqp://127.0.0.1" in relay.until(WAITS)
            await commit(endpoint, "before")
            await asyncio.to_thread(server.start)
            async with open_transport(url, "archive") as transport:
                await transport.declare([Topology(endpoint="archive")])
            relay.until(STARTED)
            assert await received(url, 1) == [b'{"name":"before"}']
            await asyncio.to_thread(server.stop)
            await commit(endpoint, "a", "b", "c")
            relay.until("relay cannot dispatch, retrying with backoff")
            assert await left(onceonly) == 3
            await asyncio.to_thread(server.start)
            relay.until("relay recovered")
            assert await received(url, 3) == [b'{"name":"a"}', b'{"name":"b"}', b'{"name":"c"}']
            assert relay.stop() == 0
    assert await left(onceonly) == 0


@pytest.mark.slow
async def test_it_is_ready_while_it_reaches_its_store_and_its_broker(onceonly: Terminal) -> None:
    """Live all the time, also while it waits for the broker at start; a broker that goes away shows with nothing to send."""
    with own_rabbitmq() as server:
        url = f"{server.url}?prefix=t{uuid4().hex[:10]}."
        with relaying(onceonly, "office:desk", "--transport", url, "--health", "0") as relay:
            port = int(relay.until(ANSWERS).rsplit(":", 1)[1])
            relay.until(WAITS)
            assert ask(port, "/live")[0] == 200
            status, body = ask(port, "/ready")
            assert (status, body["reasons"]) == (503, [f"{DESK}: is starting and has not connected to its servers yet"])
            await asyncio.to_thread(server.start)
            relay.until(STARTED)
            until(port, "/ready", lambda status, body: (status, body["status"]) == (200, "ok"))
            await asyncio.to_thread(server.stop)
            _, body = until(port, "/ready", lambda status, _: status == 503)
            assert body["reasons"][0].startswith(f"{DESK}: transport failing for ")
            assert ask(port, "/live")[0] == 200
            await asyncio.to_thread(server.start)
            until(port, "/ready", lambda status, _: status == 200)
            onceonly.change("desk.db", "ALTER TABLE onceonly_records RENAME TO hidden")
            _, body = until(port, "/ready", lambda status, _: status == 503)
            assert body["reasons"][0].startswith(f"{DESK}: store failing for ")
            assert relay.stop() == 0
    assert "call=declare" not in relay.said


def test_an_address_of_the_endpoints_own_is_not_the_relays(onceonly: Terminal) -> None:
    """`onceonly run` on the same machine has it."""
    with (onceonly.folder / "office.py").open("a") as program:
        program.write('desk.settings = __import__("dataclasses").replace(desk.settings, health="1")\n')
    with relaying(onceonly, "office:desk") as relay:
        relay.until(STARTED)
        assert relay.stop() == 0
    assert ANSWERS not in relay.said
    assert onceonly("relay", "office:desk", "--health", "nowhere").code == 2


async def test_once_sends_what_waits_and_ends(onceonly: Terminal) -> None:
    """Exit code 0. A second time there is nothing to do."""
    async with archive(f"sqlite:///{onceonly.folder}/queue.db"):
        await commit(desk(onceonly, "memory://"), "a", "b")
        done = await asyncio.to_thread(onceonly, "relay", "office:desk", "--once")
        assert (done.code, "records sent 2, left 0" in done.out) == (0, True)
        assert await left(onceonly) == 0
    assert "records sent 0, left 0" in (await asyncio.to_thread(onceonly, "relay", "office:desk", "--once")).out


async def test_once_says_what_is_left(onceonly: Terminal) -> None:
    """A command without a queue stays: exit code 1, with its type and destination."""
    await commit(desk(onceonly, "memory://"), "a", to="nowhere")
    done = await asyncio.to_thread(onceonly, "relay", "office:desk", "--once")
    assert (done.code, "records sent 0, left 1" in done.out, "left: note to nowhere" in done.out) == (1, True, True)
    assert await left(onceonly) == 1


DESK = "endpoint desk, process 0"

WRONG = {
    "off": (("office:off",), "deduplication=Off() stores no records"),
    "memory": (("office:desk", "--store", "memory://"), "its store memory:// exists only in the memory of one process"),
    "queue": (("office:desk", "--transport", "memory://"), "its transport memory:// exists only in the memory of one process"),
    "documents": (("office:desk", "--store", "s3://bucket"), "does not list documents with unsent messages"),
    "nothing": (("office:nothing",), "'office:nothing' does not exist in module 'office'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_where_nothing_can_be_relayed_it_says_why(onceonly: Terminal, what: str) -> None:
    """Exit code 2 and one line, before anything is waited for."""
    arguments, words = WRONG[what]
    done = onceonly("relay", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.error


async def left(onceonly: Terminal) -> int:
    """Count the records that wait."""
    async with open_store(desk(onceonly).settings) as opened:
        assert opened.pending is not None
        return len(await opened.pending.undispatched(1 << 52, 1000))
