"""A connection to RabbitMQ on which nothing more arrives, though nobody closes it: every wait ends, and work goes on later."""

import asyncio
from collections.abc import AsyncIterator

import aiormq
import pytest
from rabbitmq_house import House, commands, opened

from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.errors import TryAgain
from onceonly.model.record import Answer
from servers import RABBITMQ, need
from swallowing_proxy import Swallower, swallowing

PATIENCE = 90.0
"""Seconds; a heartbeat of 5 seconds is missed after 6."""


@pytest.fixture(autouse=True)
def _driver_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver notices as well, after 18 seconds; here it waits for ten minutes, so that no test passes because of that."""
    monkeypatch.setattr(aiormq.Connection, "HEARTBEAT_GRACE_MULTIPLIER", 100)


@pytest.fixture
async def silence() -> AsyncIterator[tuple[Swallower, House, str]]:
    """Give a proxy, a place on the server, and the place's URL through the proxy."""
    async with asyncio.timeout(PATIENCE), swallowing(need(RABBITMQ)) as (swallower, through), opened() as house:
        yield swallower, house, house.url.replace(need(RABBITMQ), through) + "&lease=5"


async def test_a_receive_ends_when_the_server_is_silent(silence: tuple[Swallower, House, str]) -> None:
    """It waits for nothing that it would be told; the heartbeat is what tells. Then it connects anew."""
    swallower, house, url = silence
    transport = await house.transport(url=url)
    assert await transport.receive(10, 0.1) == ()
    swallower.everything = True
    await failing(transport)
    swallower.everything = False
    await house.publish(b"{}", message_id="m1")
    assert await received(transport) == 1


async def test_a_send_that_is_not_confirmed_is_unknown(silence: tuple[Swallower, House, str]) -> None:
    """In the time that an answer may take, or when the heartbeat is missed."""
    swallower, house, url = silence
    transport = await house.transport(url=url)
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    swallower.everything = True
    assert await transport.send(commands("m2")) == (Answer.UNKNOWN,)
    swallower.everything = False
    assert await sent(transport) == Answer.TAKEN


async def test_a_connection_whose_publishes_are_not_answered_is_replaced(silence: tuple[Swallower, House, str]) -> None:
    """Although heartbeats arrive on it: a part of what it sent was lost, and the server waits for the rest of a frame."""
    _, house, url = silence
    transport = await house.transport(url=url)
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    connection = transport._link._connection
    assert connection is not None
    assert connection.streams.writer is not None
    connection.streams.writer.write(bytes((3,)) + (1).to_bytes(2) + (100_000).to_bytes(4))
    assert await transport.send(commands("m2")) == (Answer.UNKNOWN,)
    assert await sent(transport) == Answer.TAKEN


async def test_what_is_acknowledged_in_vain_comes_again(silence: tuple[Swallower, House, str]) -> None:
    """The server holds it for a connection that it believes to live; the end of that gives it back."""
    swallower, house, url = silence
    transport = await house.transport(url=url)
    await house.publish(b"{}", message_id="m1")
    (delivery,) = await transport.receive(1, 10.0)
    swallower.everything = True
    await transport.ack([delivery])
    await failing(transport)
    swallower.everything = False
    assert await received(transport) == 1


async def test_closing_does_not_wait_for_a_silent_server(silence: tuple[Swallower, House, str]) -> None:
    """A process has some seconds to end."""
    swallower, house, url = silence
    transport = await house.transport(url=url)
    await house.publish(b"{}", message_id="m1")
    await transport.receive(1, 10.0)
    await transport.send(commands("m2"))
    swallower.everything = True
    await transport.close()
    await transport._link.close()


async def failing(transport: RabbitMQTransport) -> None:
    """Receive until that fails."""
    try:
        while True:
            await transport.receive(10, 0.5)
    except TryAgain:
        return


async def received(transport: RabbitMQTransport) -> int:
    """Receive until something comes, while the server is reached again."""
    while True:
        try:
            if found := await transport.receive(10, 0.5):
                return len(found)
        except TryAgain:
            await asyncio.sleep(0.1)


async def sent(transport: RabbitMQTransport) -> Answer:
    """Send until it is answered."""
    while True:
        try:
            (answer,) = await transport.send(commands("m3"))
        except TryAgain:
            await asyncio.sleep(0.1)
        else:
            return Answer(answer)
