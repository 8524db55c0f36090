"""Messages of other senders: the `cloudevents` package over plain aio-pika, and plain JSON."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

import aio_pika
import msgspec
import pytest
from cloudevents.core.bindings import amqp, rabbitmq
from cloudevents.core.v1.event import CloudEvent

from onceonly import IdentityField, IdentityHeader
from onceonly.endpoint.received_message import read
from onceonly.formats.identity import IdentityRule
from onceonly.model.message import Delivery, Message, Unreadable
from tests.adapters.rabbitmq.harness import EVENT, Broker, opened, take

AT = datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC)
ATTRIBUTES = {
    "id": "order-1",
    "source": "/till/7",
    "type": EVENT,
    "time": AT,
    "subject": "köln",
    "datacontenttype": "application/json",
    "conversationid": "c1",
}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened() as place:
        yield place


async def published(broker: Broker, message: aio_pika.Message, *, event: str = "") -> Delivery:
    """Publish with plain aio-pika, to the queue or to the exchange of an event; gives what arrives."""
    async with await aio_pika.connect(broker.url.partition("?")[0]) as connection:
        channel = await connection.channel()
        if event:
            exchange = await channel.get_exchange(broker.names.exchange(event))
            await exchange.publish(message, routing_key="")
        else:
            await channel.default_exchange.publish(message, routing_key=broker.names.queue("shop"))
    transport = await broker.transport()
    (delivery,) = await take(transport, 1)
    return delivery


def understood(delivery: Delivery, rule: IdentityRule | None = None) -> Message:
    """Read a delivery as the endpoint does."""
    message = read(delivery, [EVENT], identity=rule, max_body=10_000)
    assert not isinstance(message, Unreadable), message
    return message


def binary(event: CloudEvent) -> aio_pika.Message:
    """Write it with the package's RabbitMQ binding: `ce-` headers."""
    written = rabbitmq.to_binary_event(event)
    return aio_pika.Message(written.body, headers=dict(written.headers), content_type=written.content_type)


def structured(event: CloudEvent) -> aio_pika.Message:
    """Write it as one JSON document."""
    written = rabbitmq.to_structured_event(event)
    return aio_pika.Message(written.body, headers=dict(written.headers), content_type=written.content_type)


def with_underscores(event: CloudEvent) -> aio_pika.Message:
    """Write it with the package's AMQP binding: `cloudEvents_` headers, the time as a number."""
    written = amqp.to_binary_event(event)
    return aio_pika.Message(
        written.application_data, headers=written.application_properties, content_type=written.properties["content-type"]
    )


def with_colons(event: CloudEvent) -> aio_pika.Message:
    """Write it the other way that the binding allows."""
    plain = with_underscores(event)
    headers = {name.replace("cloudEvents_", "cloudEvents:"): value for name, value in plain.headers.items()}
    return aio_pika.Message(plain.body, headers=headers, content_type=plain.content_type)


@pytest.mark.parametrize("write", [binary, structured, with_underscores, with_colons])
@pytest.mark.parametrize("event", ["", EVENT])
async def test_an_event_of_the_cloudevents_package_is_handled_like_our_own(
    broker: Broker, write: Callable[[CloudEvent], aio_pika.Message], event: str
) -> None:
    """Every attribute is understood, whichever binding wrote it, sent to the queue or to the event's exchange."""
    message = understood(await published(broker, write(CloudEvent(attributes=ATTRIBUTES, data={"total": 3})), event=event))
    assert (message.id, message.source, message.type) == ("order-1", "/till/7", EVENT)
    assert (message.subject, message.extension("conversationid")) == ("köln", "c1")
    assert datetime.fromisoformat(message.time) == AT
    assert message.datacontenttype == "application/json"
    assert json.loads(message.body) == {"total": 3}


async def test_plain_json_is_identified_by_a_field(broker: Broker) -> None:
    """The source is the queue; the only type there is stands for the missing one."""
    delivery = await published(broker, aio_pika.Message(b'{"order": {"id": 7}}', content_type="application/json"))
    message = understood(delivery, IdentityField("order.id"))
    assert (message.source, message.id, message.type) == ("shop", "7", EVENT)


async def test_plain_json_is_identified_by_a_header_or_a_property(broker: Broker) -> None:
    """A property of AMQP's is as good as a header; its `type` is the message's."""
    plain = aio_pika.Message(b"{}", headers={"X-Id": 41}, message_id="mid", type="shop.other.v1", correlation_id="c")
    delivery = await published(broker, plain)
    assert understood(delivery, IdentityHeader("x-id")).id == "41"
    message = understood(delivery, IdentityHeader("message-id"))
    assert (message.id, message.type) == ("mid", "shop.other.v1")
    assert ("correlation-id", "c") in message.headers


async def test_without_a_rule_plain_json_has_no_identity(broker: Broker) -> None:
    """A message id is none: most clients make up a new one for every copy."""
    delivery = await published(broker, aio_pika.Message(b"{}", message_id="mid"))
    assert isinstance(read(delivery, [EVENT], identity=None, max_body=10), Unreadable)


async def test_headers_of_every_amqp_type_become_text(broker: Broker) -> None:
    """None of them loses the message."""
    headers: dict[str, Any] = {
        "flag": True,
        "number": -7,
        "price": Decimal("1.50"),
        "ratio": 0.5,
        "when": AT,
        "nothing": None,
        "bytes": bytearray(b"\xff\x00"),
        "list": ["a", 2],
        "table": {"a": {"b": AT}},
    }
    got = (await published(broker, aio_pika.Message(b"{}", headers=headers))).headers
    assert {name: [value for key, value in got if key == name] for name in headers} == {
        "flag": ["true"],
        "number": ["-7"],
        "price": ["1.50"],
        "ratio": ["0.5"],
        "when": ["2026-02-28T23:59:59Z"],
        "nothing": [""],
        "bytes": ["\udcff\x00"],
        "list": ["a", "2"],
        "table": ['{"a": {"b": "2026-02-28T23:59:59Z"}}'],
    }


async def test_a_released_foreign_message_comes_again_as_it_was(broker: Broker) -> None:
    """A release is a copy of ours; its headers, its properties and its identity stay the foreign sender's.

    The order of headers with different names is the broker's: RabbitMQ 4.3 sorts them.
    """
    plain = aio_pika.Message(
        b"[1]", headers={"b": "1", "a": ["x", "y"]}, message_id="mid", type=EVENT, content_type="text/json"
    )
    transport = await broker.transport()
    async with await aio_pika.connect(broker.url.partition("?")[0]) as connection:
        channel = await connection.channel()
        await channel.default_exchange.publish(plain, routing_key=broker.names.queue("shop"))
    (taken,) = await take(transport, 1)
    await transport.release([taken])
    first, again = in_order(taken), in_order(*await take(transport, 1))
    assert (again.headers, again.body, again.suspect) == (first.headers, first.body, False)
    assert understood(again, IdentityHeader("message-id")) == understood(first, IdentityHeader("message-id"))


def in_order(delivery: Delivery) -> Delivery:
    """Sort headers by their names. Those with the same name keep their order."""
    return msgspec.structs.replace(delivery, headers=tuple(sorted(delivery.headers, key=itemgetter(0))))
