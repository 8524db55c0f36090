"""Delayed events that had no subscriber when they were due, on a real server."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiormq.exceptions import ChannelNotFoundEntity

from onceonly.adapters.rabbitmq import topology, unsubscribed_queue
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.errors import OutcomeUnknown
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemClock
from tests.adapters.rabbitmq.harness import EVENT, PATIENCE, TOPOLOGY, Broker, commands, ids, opened, take

SHOP = Topology(endpoint="shop")
TILL = Topology(endpoint="till")
TICK = 20
LEVELS = 2


def soon(name: str, kind: str = EVENT) -> Send:
    """Make an event that is due after one or two ticks."""
    return Send(message=Message(id=name, source="till", type=kind, body=b"{}"), due=SystemClock().now() + TICK)


async def ready(broker: Broker, queue: str) -> int:
    """Count what waits in a queue; 0 where there is none."""
    async with broker.plain() as channel:
        try:
            found = await channel.queue_declare(queue, passive=True)
        except Exception:  # noqa: BLE001 - not found
            return 0
        return found.message_count or 0


async def until(told: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a look at the server succeeds."""
    async with asyncio.timeout(PATIENCE):
        while not await told():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.02)


async def put_aside(broker: Broker, number: int, publisher: str = "till") -> None:
    """Wait until so many events wait to be counted."""

    async def told() -> bool:
        return await ready(broker, broker.names.unsubscribed_of(publisher)) == number

    await until(told)


async def levels_empty(broker: Broker, transport: RabbitMQTransport) -> None:
    """Wait until no event is delayed."""

    async def told() -> bool:
        return not await topology.count_delayed(transport._link, broker.names, [topology.event(EVENT)])

    await until(told)


async def test_delayed_events_without_a_subscriber_are_counted_by_their_publisher() -> None:
    """By any of its processes, and only by them. Types with dots and long names are counted too."""
    long = "x" * 200
    async with opened(TILL, SHOP, tick=TICK, levels=LEVELS) as broker:
        till, shop = await broker.transport("till"), await broker.transport("shop")
        other = await broker.transport("till")
        await other.collect_unsubscribed()  # there is no queue yet
        other._late._search_at = 0.0
        sends = [soon("a"), soon("b"), soon("c", "other.kind"), soon("d", long)]
        assert await till.send(sends) == (Answer.TAKEN,) * 4
        await put_aside(broker, 4)
        await shop.collect_unsubscribed()
        assert not shop.unsubscribed.counts
        await other.collect_unsubscribed()
        assert other.unsubscribed.take() == {EVENT: 2, "other.kind": 1, long: 1}
        await till.collect_unsubscribed()
        assert not till.unsubscribed.counts
        assert await ready(broker, broker.names.unsubscribed_of("till")) == 0
        await till.remove([TILL, SHOP, Topology(endpoint="till", events=(EVENT, "other.kind", long))])


async def test_a_delayed_event_with_a_subscriber_arrives_once_and_is_not_counted() -> None:
    """Two subscribers get one each, and no duplicate from the look whether there are any."""
    mailer = Topology(endpoint="mailer", events=(EVENT,))
    async with opened(TILL, TOPOLOGY, mailer, tick=TICK, levels=LEVELS) as broker:
        till = await broker.transport("till")
        await till.send([soon("a"), soon("b", "other.kind")])
        subscribers = [await broker.transport(name) for name in ("shop", "mailer")]
        for subscriber in subscribers:
            assert ids(await take(subscriber, 1)) == ["a"]
        await put_aside(broker, 1)
        await till.collect_unsubscribed()
        assert till.unsubscribed.take() == {"other.kind": 1}
        await till.send([*commands("c"), *commands("c", to="mailer")])
        for subscriber in subscribers:  # a duplicate would come before the command
            assert ids(await take(subscriber, 1)) == ["c"]
        await till.remove([Topology(endpoint="till", events=("other.kind",))])


async def test_a_subscription_that_ended_is_a_missing_subscriber() -> None:
    """From the moment it ends."""
    async with opened(TILL, TOPOLOGY, tick=TICK, levels=LEVELS) as broker:
        till = await broker.transport("till")
        await till.declare([Topology(endpoint="shop", gone=(EVENT,))])
        await till.send([soon("a")])
        await put_aside(broker, 1)
        await till.collect_unsubscribed()
        assert till.unsubscribed.take() == {EVENT: 1}


async def test_events_for_queues_of_other_programs_are_not_counted() -> None:
    """They are bound to the exchange of the type. One event arrives twice; further ones once."""
    async with opened(TILL, tick=TICK, levels=LEVELS) as broker:
        till = await broker.transport("till")
        await till._event(EVENT, delayed=True)
        queue = f"{broker.prefix}foreign"
        async with broker.plain() as channel:
            await channel.queue_declare(queue)
            await channel.queue_bind(queue, broker.names.exchange(EVENT))
            await till.send([soon("a"), soon("b")])
            await put_aside(broker, 2)
            await till.collect_unsubscribed()
            await till.send([soon("c")])
            await put_aside(broker, 1)
            await till.collect_unsubscribed()
            assert not till.unsubscribed.counts
            got = [(await channel.basic_get(queue, no_ack=True)).header.properties.message_id for _ in range(4)]
            assert sorted(got) == ["a", "a", "b", "c"] or sorted(got) == ["a", "b", "b", "c"]
            assert not (await channel.basic_get(queue, no_ack=True)).delivery_tag
            await channel.queue_delete(queue)
        await till.remove([TILL, TOPOLOGY])


async def test_a_subscriber_without_the_second_binding_is_not_missing() -> None:
    """It is bound to what is due only. It gets a duplicate, which its claim recognizes."""
    async with opened(TILL, TOPOLOGY, tick=TICK, levels=LEVELS) as broker:
        till, shop = await broker.transport("till"), await broker.transport("shop")
        async with broker.plain() as channel:
            names = broker.names
            await channel.exchange_unbind(names.inbox("shop"), names.subscribed, f"#.{topology.event(EVENT)}")
        await till.send([soon("a")])
        await put_aside(broker, 1)
        await till.collect_unsubscribed()
        assert not till.unsubscribed.counts
        assert ids(await take(shop, 2)) == ["a", "a"]


async def test_more_events_than_a_batch_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, in one call."""
    monkeypatch.setattr(unsubscribed_queue, "BATCH", 3)
    async with opened(TILL, tick=TICK, levels=LEVELS) as broker:
        till = await broker.transport("till")
        await till.send([soon(f"{number}") for number in range(8)])
        await put_aside(broker, 8)
        await till.collect_unsubscribed()
        assert till.unsubscribed.take() == {EVENT: 8}
        await till.remove([TILL, TOPOLOGY])


async def test_what_cannot_be_verified_now_is_counted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events stay in the queue."""
    async with opened(TILL, tick=TICK, levels=LEVELS) as broker:
        till = await broker.transport("till")
        await till.send([soon("a")])
        await put_aside(broker, 1)

        async def silent(_parcels: object) -> list[unsubscribed_queue.PublishOutcome]:
            return [unsubscribed_queue.PublishOutcome.UNKNOWN]

        with monkeypatch.context() as broken:
            broken.setattr(till._late, "_publish", silent)
            with pytest.raises(OutcomeUnknown, match=EVENT):
                await till.collect_unsubscribed()
        assert not till.unsubscribed.counts
        await put_aside(broker, 1)
        await till.collect_unsubscribed()
        assert till.unsubscribed.take() == {EVENT: 1}
        await till.remove([TILL, TOPOLOGY])


async def test_a_queue_that_nothing_empties_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops the oldest events, so that the levels of delay still empty."""
    monkeypatch.setattr(topology, "_LIMITED", topology._LIMITED | {"x-max-length": 2})
    async with opened(TILL, tick=TICK, levels=LEVELS) as broker:
        till = await broker.transport("till")
        await till.send([soon(f"{number}") for number in range(6)])
        await levels_empty(broker, till)
        await put_aside(broker, 2)
        await till.remove([TILL, TOPOLOGY])


async def test_what_is_removed_leaves_nothing() -> None:
    """Neither queues nor exchanges."""
    async with opened(TILL, tick=TICK, levels=LEVELS) as broker:
        till = await broker.transport("till")
        await till.send([soon("a")])
        await levels_empty(broker, till)
        await till.remove([TILL, TOPOLOGY])
        assert await topology.count(till._link, broker.names.unsubscribed_of("till")) is None
        for exchange in (broker.names.subscribed, broker.names.unsubscribed):
            with pytest.raises(ChannelNotFoundEntity):
                async with broker.plain() as channel:
                    await channel.exchange_declare(exchange, passive=True)
