"""Messages of other senders, and readers that know nothing of the library: plain nats-py, and the `cloudevents` package."""

import json
from collections.abc import AsyncIterator

import pytest
from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent

from onceonly import IdentityField, IdentityHeader
from onceonly.endpoint.received_message import read
from onceonly.formats.identity import IdentityRule
from onceonly.model.message import Message, Send, Unreadable
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from tests.adapters.nats.harness import EVENT, PATIENCE, Broker, commands, message, opened, take

ATTRIBUTES = {"id": "order 1", "source": "/till/7", "type": EVENT, "subject": "köln", "datacontenttype": "application/json"}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened() as place:
        yield place


async def understood(broker: Broker, rule: IdentityRule | None = None) -> Message:
    """Receive a delivery, and read it as the endpoint does."""
    (delivery,) = await take(await broker.transport(), 1)
    message = read(delivery, [EVENT], identity=rule, max_body=10_000)
    assert not isinstance(message, Unreadable), message
    return message


@pytest.mark.parametrize("write", [http.to_binary_event, http.to_structured_event])
async def test_an_event_of_the_cloudevents_package_is_handled_like_our_own(broker: Broker, write: object) -> None:
    """Headers of the HTTP binding are those of NATS: `ce-`, with percent-encoding."""
    written = write(CloudEvent(attributes=ATTRIBUTES, data={"total": 3}))  # type: ignore[operator] # of the package
    await broker.publish(written.body, dict(written.headers))
    got = await understood(broker)
    assert (got.id, got.source, got.type, got.subject) == ("order 1", "/till/7", EVENT, "köln")
    assert json.loads(got.body) == {"total": 3}


async def test_plain_json_is_identified_by_a_field(broker: Broker) -> None:
    """The source is the queue; the only type there is stands for the missing one."""
    await broker.publish(b'{"order": {"id": 7}}')
    got = await understood(broker, IdentityField("order.id"))
    assert (got.source, got.id, got.type) == ("shop", "7", EVENT)


async def test_the_id_for_the_servers_deduplication_identifies_a_message_also_in_its_copies(broker: Broker) -> None:
    """A release sends a copy, which the server would drop if it had the `Nats-Msg-Id` of the original."""
    await broker.publish(b"{}", {"Nats-Msg-Id": "n1"})
    transport = await broker.transport()
    for _ in range(3):
        await transport.release(await take(transport, 1))
    assert (await understood(broker, IdentityHeader("nats-msg-id"))).id == "n1"


async def test_a_plain_consumer_reads_what_is_sent_to_its_stream(broker: Broker) -> None:
    """A stream that captures the subject of a queue is all that a command needs."""
    subject = broker.names.queue_subject("legacy")
    async with broker.plain() as client:
        context = client.jetstream()
        await context.add_stream(name=broker.names.queue("legacy"), subjects=[subject])
        try:
            assert await (await broker.transport()).send(commands("m1", to="legacy")) == (Answer.TAKEN,)
            reader = await context.pull_subscribe(subject, durable="plain")
            (got,) = await reader.fetch(1, timeout=PATIENCE)
            await got.ack()
        finally:
            await context.delete_stream(broker.names.queue("legacy"))
    assert got.headers == {
        "ce-specversion": "1.0",
        "ce-id": "m1",
        "ce-source": "till",
        "ce-type": EVENT,
        "content-type": "application/json",
    }
    assert json.loads(got.data) == {"total": 1}


async def test_a_plain_consumer_subscribes_to_events_by_publishing_its_subscription(broker: Broker) -> None:
    """It needs a stream for its queue, and one message in the stream of subscriptions."""
    subject = broker.names.queue_subject("legacy")
    async with broker.plain() as client:
        context = client.jetstream()
        await context.add_stream(name=broker.names.queue("legacy"), subjects=[subject])
        try:
            await context.publish(broker.names.subscription(EVENT, "legacy"), b"")
            assert await (await broker.transport()).send([Send(message=message())]) == (Answer.TAKEN,)
            reader = await context.pull_subscribe(subject, durable="plain")
            (got,) = await reader.fetch(1, timeout=PATIENCE)
        finally:
            await context.delete_stream(broker.names.queue("legacy"))
    assert got.headers is not None
    assert got.headers["ce-id"] == "m1"


async def test_an_event_without_subscribers_is_counted(broker: Broker) -> None:
    """Also one whose only subscriber has no queue any more, and a delayed one."""
    transport = await broker.transport()
    await transport.declare([Topology(endpoint="shop", gone=(EVENT,))])
    now = 4_000_000_000_000
    assert await transport.send([Send(message=message()), Send(message=message(), due=now)]) == (Answer.TAKEN,) * 2
    async with broker.plain() as client:
        await client.jetstream().publish(broker.names.subscription(EVENT, "deleted"), b"")
    assert await transport.send([Send(message=message())]) == (Answer.TAKEN,)
    assert transport.unsubscribed.take() == {EVENT: 3}
