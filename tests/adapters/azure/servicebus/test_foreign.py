"""Programs that use a plain client of Service Bus, on either side of a queue."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from onceonly import Endpoint, IdentityField, IdentityHeader
from onceonly.endpoint.received_message import read
from onceonly.formats.identity import IdentityRule
from onceonly.model.message import Message, Send, Unreadable
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from tests.servers.servicebus.harness import EVENT, Place, commands, foreign, keyed, message, opened, take, until


@dataclass
class PlaceOrder:
    """A command of a foreign program."""

    order_id: str


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """Open a namespace with the queue `shop`."""
    async with opened() as found:
        yield found


async def understood(place: Place, rule: IdentityRule | None = None) -> Message:
    """Receive a delivery, and read it as the endpoint does."""
    (delivery,) = await take(await place.transport(), 1)
    got = read(delivery, [EVENT], identity=rule, max_body=10_000)
    assert not isinstance(got, Unreadable), got
    return got


@pytest.mark.parametrize("options", ["", "&sessions=true"])
async def test_a_message_of_a_plain_client_is_handled_once(tmp_path: Path, options: str) -> None:
    """However often it is sent."""
    async with opened(Topology(endpoint="shop"), options=options) as place:
        seen: list[str] = []
        shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", transport=place.url)

        @shop.handler
        async def place_order(order: PlaceOrder) -> None:
            seen.append(order.order_id)

        def order(name: str) -> ServiceBusMessage:
            found = foreign(json.dumps({"order_id": name}).encode(), id=name, type="PlaceOrder")
            found.session_id = "customer 7"
            return found

        await place.put(order("A"), order("A"))
        async with shop.running():
            await place.put(order("A"), order("B"))
            await until(lambda: not place.queue.messages)
        assert seen == ["A", "B"]


async def test_attributes_of_a_plain_client_are_those_of_the_event(place: Place) -> None:
    """In any script, and with extensions. Names of properties are not changed."""
    await place.put(foreign(b'{"total": 3}', id="order 1", source="/till/7", subject="köln", more={"x-shop": "Zürich"}))
    got = await understood(place)
    assert (got.id, got.source, got.type, got.subject, got.body) == ("order 1", "/till/7", EVENT, "köln", b'{"total": 3}')
    assert got.datacontenttype == "application/json"
    assert dict(got.headers)["x-shop"] == "Zürich"


async def test_properties_of_other_types_are_text(place: Place) -> None:
    """A number, a truth value, bytes and a time of AMQP."""
    more = {"n": 7, "t": True, "b": b"bytes", "f": 1.5, b"name": "v"}
    await place.put(foreign(more=more))
    headers = dict((await understood(place)).headers)
    assert {name: headers[name] for name in ("n", "t", "b", "f", "name")} == {
        "n": "7",
        "t": "true",
        "b": "bytes",
        "f": "1.5",
        "name": "v",
    }


async def test_plain_json_is_identified_by_a_field_or_by_its_message_id(place: Place) -> None:
    """The source is the queue; the only type there is stands for the missing one. A release changes neither."""
    await place.put(ServiceBusMessage(b'{"order": {"id": 7}}', message_id="n1", correlation_id="c1", subject="order"))
    transport = await place.transport()
    await transport.release(await take(transport, 1))
    (delivery,) = await take(transport, 1)
    for rule, id_ in ((IdentityField("order.id"), "7"), (IdentityHeader("message-id"), "n1")):
        got = read(delivery, [EVENT], identity=rule, max_body=10_000)
        assert not isinstance(got, Unreadable)
        assert (got.source, got.id, got.type) == ("shop", id_, EVENT)
    assert {name: value for name, value in delivery.headers if name in ("correlation-id", "subject")} == {
        "correlation-id": "c1",
        "subject": "order",
    }


async def test_the_session_of_a_plain_client_is_the_key_of_its_message(place: Place) -> None:
    """Unless the message has a key."""
    found = foreign()
    found.session_id = "customer 7"
    await place.put(found)
    assert (await understood(place)).partition_key == "customer 7"


async def test_a_message_that_a_plain_client_schedules_comes_when_it_is_due(place: Place) -> None:
    """Not before."""
    due = place.broker.namespace.now() + 1000
    async with place.client.get_queue_sender("shop") as sender:
        await sender.schedule_messages(foreign(), datetime.fromtimestamp(due / 1000, UTC))
    (got,) = await take(await place.transport(), 1)
    assert place.broker.namespace.now() >= due
    assert not got.suspect


async def test_a_text_and_an_empty_value_are_bodies(place: Place) -> None:
    """The SDK sends text as data; other clients send a value of AMQP."""
    properties = {"cloudEvents_id": "o1", "cloudEvents_source": "s", "cloudEvents_type": EVENT}
    bodies: list[object] = ["köln", b"bytes", None]
    async with place.client.get_queue_sender("shop") as sender:
        for body in bodies:
            await sender.send_messages(AmqpAnnotatedMessage(value_body=body, application_properties=properties))
    got = await take(await place.transport(), 3)
    assert [each.body for each in got] == ["köln".encode(), b"bytes", b""]


async def test_a_plain_consumer_reads_what_is_sent_to_its_queue(place: Place) -> None:
    """A queue with the name of an endpoint is all that a command needs."""
    await (await place.transport()).declare([Topology(endpoint="legacy")])
    sent = message(body=b"\x00\xff", datacontenttype="application/x-order", headers=(("x-shop", "Zürich"),))
    assert await (await place.transport()).send([Send(message=sent, to="legacy")]) == (Answer.TAKEN,)
    got = await place.read("legacy")
    assert dict(got.application_properties or {}) == {
        b"cloudEvents_specversion": b"1.0",
        b"cloudEvents_id": b"m1",
        b"cloudEvents_source": b"till",
        b"cloudEvents_type": EVENT.encode(),
        b"x-shop": "Zürich".encode(),
    }
    assert (b"".join(got.body), got.content_type) == (b"\x00\xff", "application/x-order")


async def test_a_plain_consumer_reads_events_from_a_subscription_of_its_own(place: Place) -> None:
    """It receives from the subscription, which forwards to no queue."""
    namespace = place.broker.namespace
    topic = namespace.topics[f"event__{EVENT}"]
    topic.subscriptions["audit"] = namespace.entity("audit", {})
    assert await (await place.transport()).send([Send(message=message("e1"))]) == (Answer.TAKEN,)
    async with place.client.get_subscription_receiver(topic.name, "audit") as receiver:
        (got,) = await receiver.receive_messages(1, max_wait_time=20)
        assert (got.application_properties or {})[b"cloudEvents_id"] == b"e1"
    assert [dict(each.headers)["cloudEvents_id"] for each in await take(await place.transport(), 1)] == ["e1"]


async def test_a_plain_consumer_of_sessions_gets_the_messages_of_a_key_in_order() -> None:
    """The session is the key."""
    async with opened(Topology(endpoint="legacy"), options="&sessions=true") as place:
        await (await place.transport()).send([keyed(f"m{number}", f"k{number % 2}", to="legacy") for number in range(8)])
        async with place.client.get_queue_receiver("legacy", session_id="k1") as receiver:
            got = await receiver.receive_messages(8, max_wait_time=20)
        assert [(each.application_properties or {})[b"cloudEvents_id"] for each in got] == [b"m1", b"m3", b"m5", b"m7"]


async def test_duplicate_detection_of_the_user_drops_no_release_and_no_second_send(place: Place) -> None:
    """Each copy has a message id of its own. A plain producer that repeats one is deduplicated by the service."""
    place.queue.settings["RequiresDuplicateDetection"] = "true"
    transport = await place.transport()
    assert await transport.send(commands("m1", "m1")) == (Answer.TAKEN,) * 2
    await transport.release(await take(transport, 2))
    assert len(await take(transport, 2)) == 2
    for _ in range(2):
        repeated = foreign()
        repeated.message_id = "once"
        await place.put(repeated)
    assert len(await take(transport, 1)) == 1
    assert await transport.receive(1, 0.2) == ()


async def test_the_dead_letter_queue_of_the_service_is_not_touched(place: Place) -> None:
    """A plain client moves a message there, and reads it there."""
    await place.put(foreign())
    async with place.client.get_queue_receiver("shop") as receiver:
        (got,) = await receiver.receive_messages(1, max_wait_time=20)
        await receiver.dead_letter_message(got, reason="no")
    await until(lambda: len(place.queue.dead) == 1)
    assert await (await place.transport()).receive(1, 0.2) == ()
    assert len(place.queue.dead) == 1


async def test_an_event_without_a_topic_is_counted(place: Place) -> None:
    """Also a delayed one. A topic that had subscribers once takes the event, and drops it."""
    transport = await place.transport()
    sends = [Send(message=message(type="other")), Send(message=message(type="other"), due=4_000_000_000_000)]
    assert await transport.send(sends) == (Answer.TAKEN,) * 2
    assert transport.unsubscribed.take() == {"other": 2}


async def test_a_plain_consumer_and_a_worker_share_a_queue(place: Place) -> None:
    """No message is handled by both."""
    transport = await place.transport()
    names = [f"m{number}" for number in range(20)]
    await transport.send(commands(*names))
    got: list[str] = []

    async def work() -> None:
        while len(got) < len(names):
            held = await transport.receive(3, 0.3)
            got.extend(dict(each.headers)["cloudEvents_id"] for each in held)
            await transport.ack(held)

    async def consume() -> None:
        async with place.client.get_queue_receiver("shop") as receiver:
            while len(got) < len(names):
                for each in await receiver.receive_messages(3, max_wait_time=0.3):
                    got.append((each.application_properties or {})[b"cloudEvents_id"].decode())  # type: ignore[union-attr]
                    await receiver.complete_message(each)

    async with asyncio.timeout(60):
        await asyncio.gather(work(), consume())
    assert sorted(got) == sorted(names)
