"""A queue that confirms nothing, as a quorum queue without a majority: it delays no messages to others."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from onceonly.adapters.rabbitmq.names import RabbitMQNames
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from tests.adapters.rabbitmq.harness import EVENT, TOPOLOGY, commands, ids, message, opened, take
from tests.servers.rabbitmq import OwnRabbitMQ, own_rabbitmq

PATIENCE = 60.0
FOREVER = 10_000.0
"""Seconds for a confirm: a test that waits for them fails."""
MUTE = Topology(endpoint="mute", events=("shop.heard",))
TAKEN, UNKNOWN = Answer.TAKEN, Answer.UNKNOWN
_FIND = '{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{}">>)), '
_PROCESS = "P = case amqqueue:get_pid(Q) of {{Name, _}} -> Name; Pid -> Pid end, sys:{}(P)."


@pytest.fixture(scope="module")
def server() -> Iterator[OwnRabbitMQ]:
    """Start one for this module."""
    with own_rabbitmq() as server:
        server.start()
        yield server


async def to_queue(server: OwnRabbitMQ, names: RabbitMQNames, what: str) -> None:
    """Suspend or resume the process of a queue. The server itself goes on."""
    await asyncio.to_thread(server.control, "eval", (_FIND + _PROCESS).format(names.queue("mute"), what))


@pytest.mark.slow
async def test_a_queue_that_was_silent_delays_no_others_and_is_trusted_when_it_confirms(
    server: OwnRabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    """What it does not confirm is unknown. The connection stays, and what others hold on it is not delivered again."""
    caplog.set_level(logging.INFO, "onceonly.transport")
    both = [*commands("x1", to="mute"), *commands("m1"), Send(message=replace(message("e1"), type="shop.heard"))]
    async with opened(TOPOLOGY, MUTE, server=server.url) as broker, asyncio.timeout(PATIENCE):
        transport = await broker.transport(url=broker.url.replace("timeout=10", "timeout=1"))
        assert await transport.send(both) == (TAKEN, TAKEN, TAKEN)
        (held,) = await take(transport, 1)
        await to_queue(server, broker.names, "suspend")
        assert await transport.send(both) == (UNKNOWN, TAKEN, UNKNOWN)
        link = transport._link
        link.address = replace(link.address, timeout=FOREVER)
        for _ in range(3):
            assert await transport.send(both) == (UNKNOWN, TAKEN, UNKNOWN)
        assert await transport.send(commands("x2", to="mute")) == (UNKNOWN,)
        assert caplog.text.count("destination does not confirm messages") == 2  # the queue, and the event's exchange
        await transport.ack([held])
        again = await take(transport, 4)
        assert ids(again) == ["m1"] * 4
        assert not any(each.suspect for each in again)
        await to_queue(server, broker.names, "resume")
        while caplog.text.count("destination confirms messages again") < 2:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.01)
        assert await transport.send(both) == (TAKEN, TAKEN, TAKEN)
        await transport.ack(again)


async def test_an_event_type_is_no_destination_of_another(server: OwnRabbitMQ) -> None:
    """The silent queue subscribes to one type. Events of the other are confirmed at once."""
    async with opened(TOPOLOGY, MUTE, server=server.url) as broker, asyncio.timeout(PATIENCE):
        transport = await broker.transport(url=broker.url.replace("timeout=10", "timeout=1"))
        heard, other = Send(message=replace(message("e1"), type="shop.heard")), Send(message=message("e2"))
        assert other.message.type == EVENT
        assert await transport.send([heard, other]) == (TAKEN, TAKEN)
        await to_queue(server, broker.names, "suspend")
        assert await transport.send([heard, other]) == (UNKNOWN, TAKEN)
        transport._link.address = replace(transport._link.address, timeout=FOREVER)
        assert await transport.send([heard, other]) == (UNKNOWN, TAKEN)
        await to_queue(server, broker.names, "resume")
