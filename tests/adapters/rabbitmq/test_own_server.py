"""A server of the test's own that runs full, stops and comes back, while workers work: nothing is lost, and work goes on."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceonly import Context, Endpoint, message
from onceonly.adapters.rabbitmq.link import is_open
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.errors import CommitFailed, RetryableError
from onceonly.model.message import Delivery
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from tests.adapters.rabbitmq.harness import EVENT, PATIENCE, Broker, commands, ids, line, opened, take, until
from tests.servers.rabbitmq import OwnRabbitMQ, own_rabbitmq

FULL, NORMAL = ("set_vm_memory_high_watermark", "0.0000001"), ("set_vm_memory_high_watermark", "0.6")
NAMES = [f"m{number}" for number in range(20)]


@message(EVENT)
@dataclass
class Order:
    """Something to handle."""

    total: int


@message("shop.placed")
@dataclass
class Placed:
    """What the handler tells."""

    order: str


@pytest.fixture(scope="module")
def server() -> Iterator[OwnRabbitMQ]:
    """Start one for this module."""
    with own_rabbitmq() as server:
        server.start()
        yield server


@pytest.fixture
async def broker(server: OwnRabbitMQ) -> AsyncIterator[Broker]:
    """Open a place there, with a queue that hears what the shop tells. Answers are waited for one second."""
    heard = Topology(endpoint="heard", events=("shop.placed",))
    async with opened(Topology(endpoint="shop", events=(EVENT,)), heard, server=server.url) as broker:
        broker.url = broker.url.replace("timeout=10", "timeout=1")
        yield broker


@asynccontextmanager
async def full(server: OwnRabbitMQ) -> AsyncIterator[None]:
    """Let the server run out of memory, as it believes; all is normal afterwards."""
    await asyncio.to_thread(server.control, *FULL)
    try:
        yield
    finally:
        await asyncio.to_thread(server.control, *NORMAL)


class Shop:
    """A worker that tells of every order it handles, in the application that is the test."""

    def __init__(self, folder: Path, url: str) -> None:
        self.handled: Counter[str] = Counter()
        self.endpoint = Endpoint("shop", store=f"sqlite:///{folder}/shop.db", transport=url)

        @self.endpoint.handler
        async def place(_order: Order, context: Context) -> None:
            self.handled[context.message.id] += 1
            context.publish(Placed(context.message.id))


async def heard(transport: RabbitMQTransport, names: set[str]) -> Counter[str]:
    """Take what the shop told until all of these were named; gives how often each message came, by its id."""
    came: Counter[str] = Counter()
    told: set[str] = set()
    async with asyncio.timeout(3 * PATIENCE):
        while told < names:
            got: tuple[Delivery, ...] = await transport.receive(100, 1.0)
            told |= {each.body.decode().partition(':"')[2].partition('"')[0] for each in got}
            came.update(ids(got))
            await transport.ack(got)
    return came


@pytest.mark.slow
async def test_a_full_server_makes_sends_unsure_and_receivers_wait(broker: Broker, server: OwnRabbitMQ) -> None:
    """An answer that does not come is unknown; what was sent lands when the alarm is over, and so does everything else."""
    transport, other = await broker.transport(), await broker.transport()
    assert await transport.send(commands("before")) == (Answer.TAKEN,)
    async with full(server):
        assert await transport.send(commands("a", "b")) == (Answer.UNKNOWN,) * 2
        with pytest.raises(CommitFailed, match="does not accept messages: it is low on memory or disk space"):
            await transport.send(commands("c"))
        assert await transport.receive(10, 0.2) == ()
        waiting = asyncio.create_task(transport.receive(10, 3600.0))
        assert ids(await take(other, 1)) == ["before"]
        assert not waiting.done()
    got = [*await waiting]
    async with asyncio.timeout(PATIENCE):
        while len(got) < 2:
            got += await transport.receive(10, 1.0)
    assert sorted(ids(got)) == ["a", "b"]
    assert await transport.send(commands("after")) == (Answer.TAKEN,)


@pytest.mark.slow
async def test_a_connection_that_the_server_blocks_is_kept(broker: Broker, server: OwnRabbitMQ) -> None:
    """A receiver's calls are not answered then, and that says nothing about the connection."""
    transport, other = await broker.transport(), await broker.transport()
    assert await transport.send(commands("before")) == (Answer.TAKEN,)
    (held,) = await take(transport, 1)
    connection = transport._link._reconnection.current
    async with full(server):
        assert await transport.send(commands("a")) == (Answer.UNKNOWN,)
        await transport.ack([held])
        assert await other.receive(1, 4.0) == ()  # four times as long as an answer is waited for
        assert transport._link._reconnection.current is connection
    assert ids(await take(transport, 1)) == ["a"]
    assert transport._link._reconnection.current is connection


@pytest.mark.slow
async def test_a_consumer_stays_while_the_server_blocks_its_connection(broker: Broker, server: OwnRabbitMQ) -> None:
    """A call to end it would not be answered, and its channel would be lost with the call."""
    transport = await broker.transport()
    assert await transport.send(commands("before")) == (Answer.TAKEN,)
    (held,) = await take(transport, 1)
    waiting = asyncio.create_task(transport.receive(1, 3600.0))
    async with full(server):
        assert await transport.send(commands("a")) == (Answer.UNKNOWN,)
        channel = transport._inbox._channel
        waiting.cancel()
        await asyncio.wait([waiting])
        resting = transport._inbox._resting
        assert resting is not None
        done, _ = await asyncio.wait([resting], timeout=4.0)  # it begins after 1.5 s, and an answer is waited for one second
        assert not done
    await asyncio.wait([resting])
    assert transport._inbox._channel is channel
    assert is_open(channel)
    await transport.ack([held])
    assert ids(await take(transport, 1)) == ["a"]


@pytest.mark.slow
async def test_work_goes_on_when_the_server_is_no_longer_full(
    broker: Broker, server: OwnRabbitMQ, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Handlers' work is committed, what they send waits; each order is told of in the end, and nothing is left."""
    transport, ear = await broker.transport(), await broker.transport("heard")
    await transport.send(commands(*NAMES))
    shop = Shop(tmp_path, broker.url)
    async with AsyncExitStack() as alarm:
        await alarm.enter_async_context(full(server))
        async with shop.endpoint.running():
            await until(line(caplog, "worker cannot settle messages, retrying with backoff"))
            assert await ear.receive(100, 0.2) == ()
            await alarm.aclose()
            came = await heard(ear, {*NAMES})
            await until_empty(transport)
    assert len(came) == len(NAMES), "each order is told of under one id, however often that is sent"
    assert shop.handled == dict.fromkeys(NAMES, 1)


@pytest.mark.slow
async def test_work_goes_on_when_a_server_was_restarted(
    broker: Broker, server: OwnRabbitMQ, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was taken before is there afterwards; the worker comes back by itself."""
    transport, ear = await broker.transport(), await broker.transport("heard")
    shop = Shop(tmp_path, broker.url)
    caplog.set_level(logging.INFO, "onceonly")
    async with shop.endpoint.running():
        await transport.send(commands("first"))
        await heard(ear, {"first"})
        await asyncio.to_thread(server.stop)
        await until(line(caplog, "worker cannot receive, retrying with backoff"))
        await asyncio.to_thread(server.start)
        await until(line(caplog, "worker recovered"))
        assert await until_taken(transport, "second") is Answer.TAKEN
        await heard(await broker.transport("heard"), {"second"})
    assert shop.handled == {"first": 1, "second": 1}


async def until_taken(transport: RabbitMQTransport, name: str) -> Answer:
    """Send as a worker does: again, under the same id, while nobody knows what became of it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                (answer,) = await transport.send(commands(name))
            except RetryableError:
                await asyncio.sleep(0.05)
            else:
                if answer is not Answer.UNKNOWN:
                    return answer


async def until_empty(transport: RabbitMQTransport) -> None:
    """Wait until nothing is left for the shop."""
    async with asyncio.timeout(PATIENCE):
        while await transport.depth("shop") != Depth(waiting=0, held=0, delayed=0):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.05)
