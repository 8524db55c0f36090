"""A queue that is deleted and made again while delayed messages come due: they wait for it, and hold up no other endpoint."""

import asyncio

import pytest

from onceonly.adapters.rabbitmq import topology
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemClock
from tests.adapters.rabbitmq.harness import EVENT, TOPOLOGY, commands, ids, message, opened, take

OTHER = Topology(endpoint="other")
COUNT = 40  # RabbitMQ has 32 under way at most that it cannot route


@pytest.mark.parametrize("to", ["shop", ""])
async def test_what_is_due_while_its_queue_is_missing_arrives_when_it_is_there_again(to: str) -> None:
    """Commands and events; and what is delayed for others arrives meanwhile."""
    async with opened(TOPOLOGY, OTHER, levels=2, tick=200) as broker:
        transport = await broker.transport()
        due = SystemClock().now() + 300
        names = [f"{to or EVENT}-{number}" for number in range(COUNT)]
        await transport.send([Send(message=message(name), to=to, due=due) for name in names])
        async with broker.plain() as channel:
            deleted = await channel.queue_delete(broker.names.queue("shop"))
            assert deleted.message_count == 0
            async with asyncio.timeout(20):
                while (await channel.queue_declare(broker.names.missing("shop"), passive=True)).message_count == 0:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.02)
        await transport.send(commands("for another", to="other", due=SystemClock().now() + 100))
        other = await broker.transport("other")
        assert ids(await take(other, 1)) == ["for another"]
        await transport.declare([TOPOLOGY])
        got = await take(await broker.transport(), COUNT)
        assert sorted(ids(got)) == sorted(names)


async def test_a_delayed_message_comes_once_though_an_earlier_version_bound_the_queue_itself() -> None:
    """Its bindings stay beside the new ones."""
    async with opened(TOPOLOGY, levels=2, tick=200) as broker:
        transport = await broker.transport()
        async with broker.plain() as channel:
            await channel.queue_bind(broker.names.queue("shop"), broker.names.due, f"#.{topology.command('shop')}")
        due = SystemClock().now() + 100
        await transport.send([*commands("a", due=due), Send(message=message("b"), due=due)])
        got = await take(transport, 2)
        await transport.ack(got)
        assert sorted(ids(got)) == ["a", "b"]
        await asyncio.sleep(2 * topology.BACK * 0.2)
        assert await transport.receive(1, 0) == ()


async def test_a_level_of_delay_that_was_deleted_is_made_again() -> None:
    """By the next send, which is asked for again: what is delayed must not count as heard by nobody."""
    async with opened(TOPOLOGY, levels=2, tick=200) as broker:
        transport = await broker.transport()
        await transport.send([Send(message=message("first"), due=SystemClock().now() + 100)])
        assert ids(await take(transport, 1)) == ["first"]
        async with broker.plain() as channel:
            await channel.queue_delete(broker.names.level(topology.event(EVENT), 0))
        sends = [Send(message=message("again"), due=SystemClock().now() + 100)]
        assert await transport.send(sends) == (Answer.UNKNOWN,)
        assert await transport.send(sends) == (Answer.TAKEN,)
        assert ids(await take(transport, 1)) == ["again"]
        assert not transport.unsubscribed.counts
