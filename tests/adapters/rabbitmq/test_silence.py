"""A connection to RabbitMQ on which nothing more arrives, though nobody closes it: every wait ends, and work goes on later."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count

import aiormq
import pytest

from onceonly.adapters.rabbitmq import link as rabbitmq_link
from onceonly.adapters.rabbitmq.link import Channel, answered
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.errors import RetryableError
from onceonly.model.message import Delivery
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from tests.adapters.rabbitmq.harness import TOPOLOGY, Broker, commands, opened
from tests.servers.available import RABBITMQ, need
from tests.servers.swallowing import Swallower, swallowing

PATIENCE = 90.0
"""Seconds; a heartbeat of 5 seconds is missed after 6."""
HEARD = Topology(endpoint="heard", events=())
TIMEOUT = 1.0
"""Seconds, where a test waits for answers that never come."""
BEGINNING = bytes((3,)) + (1).to_bytes(2) + (100_000).to_bytes(4)
"""The head of a frame whose rest never comes."""
CONSUMING = range(2)
"""How often a consumer that begins tells the server its prefetch count."""


@pytest.fixture(autouse=True)
def _driver_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver notices as well, after 18 seconds; here it waits for ten minutes, so that no test passes because of that."""
    monkeypatch.setattr(aiormq.Connection, "HEARTBEAT_GRACE_MULTIPLIER", 100)


@pytest.fixture
async def silence() -> AsyncIterator[tuple[Swallower, Broker, str]]:
    """Return a proxy, a place on the server, and the place's URL through the proxy."""
    async with asyncio.timeout(PATIENCE), swallowing(need(RABBITMQ)) as (swallower, through), opened(TOPOLOGY, HEARD) as broker:
        yield swallower, broker, broker.url.replace(need(RABBITMQ), through) + "&lease=5"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[int]:
    """Return the prefetch counts that the server was told, and has confirmed."""
    counts: asyncio.Queue[int] = asyncio.Queue()
    qos = Channel.basic_qos

    async def basic_qos(channel: Channel, *, prefetch_count: int) -> object:
        answer = await qos(channel, prefetch_count=prefetch_count)
        counts.put_nowait(prefetch_count)
        return answer

    monkeypatch.setattr(Channel, "basic_qos", basic_qos)
    return counts


@pytest.mark.slow
async def test_a_receive_ends_when_the_server_is_silent(silence: tuple[Swallower, Broker, str]) -> None:
    """It waits for nothing that it would be told; the heartbeat is what tells. Then it connects anew."""
    swallower, broker, url = silence
    transport = await broker.transport(url=url)
    assert await transport.receive(10, 0.1) == ()
    swallower.break_connections()
    await failing(transport)
    swallower.keep_connections()
    await broker.publish(b"{}", message_id="m1")
    assert len(await received(transport)) == 1


@pytest.mark.slow
async def test_a_send_that_is_not_confirmed_is_unknown(silence: tuple[Swallower, Broker, str]) -> None:
    """In the time that an answer may take, or when the heartbeat is missed."""
    swallower, broker, url = silence
    transport = await broker.transport(url=url)
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    swallower.break_connections()
    assert await transport.send(commands("m2")) == (Answer.UNKNOWN,)
    swallower.keep_connections()
    assert await sent(transport) == Answer.TAKEN


@pytest.mark.slow
async def test_a_connection_whose_publishes_are_not_answered_is_replaced(silence: tuple[Swallower, Broker, str]) -> None:
    """Although heartbeats arrive on it: a part of what it sent was lost, and the server waits for the rest of a frame."""
    _, broker, url = silence
    transport = await broker.transport(url=url)
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    begin_a_frame(transport)
    assert await transport.send(commands("m2")) == (Answer.UNKNOWN,)
    assert await sent(transport) == Answer.TAKEN


@pytest.mark.slow
async def test_a_connection_on_which_acknowledgements_are_lost_is_replaced(silence: tuple[Swallower, Broker, str]) -> None:
    """Although nothing is published that could be missed: acknowledgements have no answer."""
    _, broker, url = silence
    transport = await broker.transport(url=hasty(url))
    await broker.publish(b"{}", message_id="m1")
    (delivery,) = await transport.receive(1, 10.0)
    begin_a_frame(transport)
    await transport.ack([delivery])
    await transport.ack(await received(transport))
    await until_empty(transport)


@pytest.mark.slow
async def test_a_connection_on_which_deliveries_are_lost_is_replaced(
    silence: tuple[Swallower, Broker, str], told: asyncio.Queue[int]
) -> None:
    """The client waits for the rest of a frame, and whatever arrives is taken for that."""
    _, broker, url = silence
    transport = await broker.transport(url=hasty(url))
    waiting = asyncio.create_task(received(transport))
    for _ in CONSUMING:
        await told.get()
    connection = transport._link._reconnection.current
    assert connection is not None
    assert connection.streams.reader is not None
    connection.streams.reader.feed_data(BEGINNING)
    await broker.publish(b"{}", message_id="m1")
    assert len(await waiting) == 1


@pytest.mark.slow
async def test_a_connection_on_which_no_channel_opens_is_replaced(silence: tuple[Swallower, Broker, str]) -> None:
    """A part of what was sent was lost before the first channel was open."""
    _, broker, url = silence
    transport = await broker.transport(url=hasty(url))
    await transport._link._connected()
    begin_a_frame(transport)
    await broker.publish(b"{}", message_id="m1")
    assert len(await received(transport)) == 1


async def test_a_connection_that_is_answered_is_kept(silence: tuple[Swallower, Broker, str], told: asyncio.Queue[int]) -> None:
    """A receiver that waits asks now and then, and may be brought as much as before."""
    _, broker, url = silence
    transport = await broker.transport(url=hasty(url))
    waiting = asyncio.create_task(transport.receive(1, PATIENCE))
    before = {await told.get() for _ in CONSUMING}
    connection = transport._link._reconnection.current
    assert {await told.get(), await told.get()} == before
    await broker.publish(b"{}", message_id="m1")
    assert len(await waiting) == 1
    assert transport._link._reconnection.current is connection


@pytest.mark.slow
async def test_a_connection_on_which_publishes_are_confirmed_is_not_asked(
    silence: tuple[Swallower, Broker, str], told: asyncio.Queue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The confirms are answers enough. Here each look at their number finds more of them than the one before."""
    _, broker, url = silence
    transport = await broker.transport(url=hasty(url))
    looks: asyncio.Queue[int] = asyncio.Queue()
    numbers = count(1)

    def answered_more(channel: Channel) -> int:
        assert answered(channel) == 1
        looks.put_nowait(number := next(numbers))
        return number

    monkeypatch.setattr(rabbitmq_link, "answered", answered_more)
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    assert len(await transport.receive(1, PATIENCE)) == 1
    waiting = asyncio.create_task(transport.receive(1, PATIENCE))
    for _ in range(6):
        await looks.get()  # two in each time in which an answer is waited for
    assert told.qsize() == len(CONSUMING)
    await broker.publish(b"{}", message_id="m2")
    assert len(await waiting) == 1


@pytest.mark.slow
async def test_a_process_that_was_held_up_keeps_its_connection(
    silence: tuple[Swallower, Broker, str], told: asyncio.Queue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than an answer is waited for: the answer is there, and was not read yet."""
    _, broker, url = silence
    transport = await broker.transport(url=hasty(url))
    waiting = asyncio.create_task(transport.receive(1, PATIENCE))
    for _ in CONSUMING:
        await told.get()
    connection = transport._link._reconnection.current
    qos = Channel.basic_qos

    async def held_up(channel: Channel, *, prefetch_count: int) -> object:
        asyncio.get_running_loop().call_later(0.001, time.sleep, 2 * TIMEOUT)
        return await qos(channel, prefetch_count=prefetch_count)

    monkeypatch.setattr(Channel, "basic_qos", held_up)
    for _ in range(2):
        await told.get()
    assert transport._link._reconnection.current is connection
    await broker.publish(b"{}", message_id="m1")
    assert len(await waiting) == 1


@pytest.mark.slow
async def test_what_is_acknowledged_in_vain_comes_again(silence: tuple[Swallower, Broker, str]) -> None:
    """The server holds it for a connection that it believes to live; the end of that gives it back."""
    swallower, broker, url = silence
    transport = await broker.transport(url=url)
    await broker.publish(b"{}", message_id="m1")
    (delivery,) = await transport.receive(1, 10.0)
    swallower.break_connections()
    await transport.ack([delivery])
    await failing(transport)
    swallower.keep_connections()
    assert len(await received(transport)) == 1


@pytest.mark.slow
async def test_closing_does_not_wait_for_a_silent_server(silence: tuple[Swallower, Broker, str]) -> None:
    """A process has some seconds to end."""
    swallower, broker, url = silence
    transport = await broker.transport(url=url)
    await broker.publish(b"{}", message_id="m1")
    await transport.receive(1, 10.0)
    await transport.send(commands("m2"))
    swallower.break_connections()
    await transport.close()
    await transport._link.close()


def hasty(url: str) -> str:
    """Wait for answers for a short time only."""
    return url.replace("timeout=10", f"timeout={TIMEOUT:g}")


def begin_a_frame(transport: RabbitMQTransport) -> None:
    """Have the server wait for the rest of a frame, as when that was lost: whatever follows is taken for it."""
    connection = transport._link._reconnection.current
    assert connection is not None
    assert connection.streams.writer is not None
    connection.streams.writer.write(BEGINNING)


async def until_empty(transport: RabbitMQTransport) -> None:
    """Wait until the server has nothing left, neither waiting nor held."""
    while await transport.depth("shop") != Depth(waiting=0, held=0, delayed=0):  # noqa: ASYNC110 - it polls a server
        await asyncio.sleep(0.05)


async def failing(transport: RabbitMQTransport) -> None:
    """Receive until that fails."""
    try:
        while True:
            await transport.receive(10, 0.5)
    except RetryableError:
        return


async def received(transport: RabbitMQTransport) -> tuple[Delivery, ...]:
    """Receive until something comes, while the server is reached again."""
    while True:
        try:
            if found := await transport.receive(10, 0.5):
                return found
        except RetryableError:
            await asyncio.sleep(0.1)


async def sent(transport: RabbitMQTransport) -> Answer:
    """Send until it is answered."""
    while True:
        try:
            (answer,) = await transport.send(commands("m3"))
        except RetryableError:
            await asyncio.sleep(0.1)
        else:
            return Answer(answer)
