"""Destinations that are not endpoints, on one broker each: what no rule for all transports says."""

import asyncio
from uuid import uuid4

import pytest
from pamqp import commands as spec

from onceonly.model.destination import Destination, Exchange, Queue, Stream, Subject
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from tests.adapters.nats import harness as nats
from tests.conformance.destination_subjects import KEY, NatsDestinations, RabbitMQDestinations, RedisDestinations, other
from tests.log_events import event_in


class Declare(spec.Exchange.Declare):
    """With a name that the driver refuses, as the two below."""

    def validate(self) -> None:
        """Accept it."""


class Bind(spec.Queue.Bind):
    def validate(self) -> None:
        """Accept it."""


class Delete(spec.Exchange.Delete):
    def validate(self) -> None:
        """Accept it."""


TAKEN, REFUSED, UNKNOWN = Answer.TAKEN, Answer.REFUSED, Answer.UNKNOWN


def to(destination: Destination | str, id_: str = "m1", body: bytes = b"{}") -> Send:
    """Make a message to a destination or an endpoint."""
    return Send(message=Message(id=id_, source="shop", type="Placed", body=body), to=str(destination))


async def test_an_exchange_that_routes_nowhere_takes_and_counts() -> None:
    """As for an event without a subscriber: it belongs to other programs who binds to their exchange."""
    async with RabbitMQDestinations.open() as subject:
        await subject.create()
        transport = await subject.transport()
        assert await transport.send([to(Exchange(subject.exchange, "other.key")), to(Exchange(subject.exchange, KEY))]) == (
            TAKEN,
            TAKEN,
        )
        assert transport.unsubscribed.take() == {"Placed": 1}


async def test_an_exchange_that_was_deleted_costs_no_other_message() -> None:
    """The server closes the channel of that exchange. Messages in flight on others are confirmed."""
    async with RabbitMQDestinations.open() as subject:
        queue, exchange = await subject.create()
        transport = await subject.transport()
        await transport.declare([Topology(endpoint="shop")])
        assert await transport.send([to(exchange), to(queue)]) == (TAKEN, TAKEN)
        shared = transport._publisher
        await subject.remove(exchange)
        many = [to(queue, f"q{number}") for number in range(20)]
        first = await transport.send([*many, to(exchange), to("shop"), *many, to(exchange)])
        assert [each for each in first if each is not TAKEN] == [UNKNOWN, UNKNOWN]
        assert await transport.send([to(exchange), *many]) == (REFUSED, *(TAKEN,) * 20)
        assert transport._publisher is shared


@pytest.mark.parametrize("name", ["Shop:Envelope[Order*]", "bestellungen-köln", "x" * 200])
async def test_an_exchange_has_any_name_that_the_server_takes(name: str) -> None:
    """The driver checks names more strictly, so every dispatch to such an exchange would fail."""
    async with RabbitMQDestinations.open() as subject:
        queue, _ = await subject.create()
        exchange = f"{name}-{uuid4().hex[:8]}"
        declared, bound, deleted = (
            Declare(exchange=exchange),
            Bind(queue=subject.queue, exchange=exchange),
            Delete(exchange=exchange),
        )
        transport = await subject.transport()
        assert await transport.send([to(Exchange(exchange)), to(queue, "m2")]) == (REFUSED, TAKEN)
        async with subject._administering() as link, link.temporary_channel() as channel:
            await channel.rpc(declared)
            try:
                await channel.rpc(bound)
                assert await transport.send([to(Exchange(exchange))]) == (TAKEN,)
            finally:
                await channel.rpc(deleted)
                subject._declared.exchanges.discard(exchange)
        assert len(await subject.arrived(queue, 5)) == 2


async def test_calls_that_overlap_share_the_channel_of_an_exchange() -> None:
    """Each exchange has one channel, however many calls there are."""
    async with RabbitMQDestinations.open() as subject:
        _, exchange = await subject.create()
        transport = await subject.transport()
        calls = [transport.send([to(exchange, f"m{number}")]) for number in range(20)]
        assert set(await asyncio.gather(*calls)) == {(TAKEN,)}
        assert len(transport._exchanges._channels) == 1
        assert len(await subject.arrived(exchange, 5)) == 20


async def test_many_exchanges_leave_few_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange that gives up its channel gets another one."""
    monkeypatch.setattr("onceonly.adapters.rabbitmq.exchanges.MOST_CHANNELS", 3)
    async with RabbitMQDestinations.open() as subject:
        await subject.create()
        names = [other() for _ in range(6)]
        async with subject._administering() as link, link.temporary_channel() as channel:
            for name in names:
                await channel.exchange_declare(name, exchange_type="fanout", durable=True)
        transport = await subject.transport()
        for name in names * 2:
            assert await transport.send([to(Exchange(name))]) == (TAKEN,)
            assert len(transport._exchanges._channels) <= 3
        connection = transport._link._reconnection.current
        assert connection is not None
        assert len(connection.channels) < 10


async def test_a_name_that_is_too_long_for_amqp_is_refused_alone() -> None:
    """No frame can carry it, and the others of the call are written all the same."""
    async with RabbitMQDestinations.open() as subject:
        queue, _ = await subject.create()
        transport = await subject.transport()
        assert await transport.send([to(Queue("ä" * 200)), to(queue)]) == (REFUSED, TAKEN)


async def test_a_subscriber_without_a_stream_gets_nothing() -> None:
    """It confirms nothing, so it would get the message at every attempt."""
    async with nats.opened() as broker, broker.plain() as client:
        subject = f"{other()}.placed"
        heard = await client.subscribe(subject)
        transport = await broker.transport()
        for _ in range(2):
            assert await transport.send([to(Subject(subject)), to("shop")]) == (REFUSED, TAKEN)
        await client.flush()
        assert heard.pending_msgs == 0


async def test_a_stream_that_is_deleted_meanwhile_refuses() -> None:
    """A sender that knows the stream notices by the missing answer."""
    async with NatsDestinations.open() as subject:
        (place,) = await subject.create()
        transport = await subject.transport()
        assert await transport.send([to(place)]) == (TAKEN,)
        await subject.remove(place)
        assert await transport.send([to(place)]) == (REFUSED,)


async def test_a_key_that_is_no_stream_costs_no_other_message(caplog: pytest.LogCaptureFixture) -> None:
    """Another program may have any key. The message stays unsent, and the log says why."""
    async with RedisDestinations.open() as subject:
        place, _ = await subject.create()
        wrong = Stream(f"{subject.keys.start.decode()}text-{uuid4().hex}")
        await subject.client.set(wrong.name, "text")
        transport = await subject.transport()
        await transport.declare([Topology(endpoint="shop")])
        assert await transport.send([to(wrong), to(place), to("shop")]) == (UNKNOWN, TAKEN, TAKEN)
        (logged,) = [each for each in caplog.records if event_in(each).startswith("destination cannot be served")]
        assert str(wrong) in logged.getMessage()
        with pytest.raises(OnceOnlyError, match="WRONGTYPE"):
            await transport.send([to(wrong)])
