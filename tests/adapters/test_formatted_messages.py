"""Messages of another format than CloudEvents as each broker carries them: plain headers, and its own properties."""

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from onceonly.adapters.aws.sqs import wire as sqs
from onceonly.adapters.azure.queue import wire as azure_queue
from onceonly.adapters.azure.servicebus import wire as servicebus
from onceonly.adapters.nats import wire as nats
from onceonly.adapters.rabbitmq import wire as rabbitmq
from onceonly.adapters.redis import entries as redis
from onceonly.formats.cloudevents import encode
from onceonly.model.message import Headers, Message, Send

TEXTS = (("message-id", "m-1"), ("type", "Order"), ("tenant", "acme"))
MESSAGE = Message(
    id="m-1",
    source="shop",
    type="Order",
    body=b'{"id":"1"}',
    time="2026-01-01T00:00:00Z",
    extensions=(("conversationid", "c-1"),),
    headers=TEXTS,
)
HEADERS, BODY = encode(Send(message=MESSAGE, to="sales", formatted=True))
JSON = ("content-type", "application/json")


def test_nothing_is_added() -> None:
    """The one place that all transports call."""
    assert ((JSON, *TEXTS), b'{"id":"1"}') == (HEADERS, BODY)


def test_rabbitmq_shows_id_type_and_conversation() -> None:
    """The table has the headers alone."""
    known = rabbitmq.properties(HEADERS, formatted=MESSAGE)
    assert known is not None
    assert (known.headers, known.content_type) == (dict(TEXTS), "application/json")
    assert known.shown == ("m-1", "Order", "c-1", 1767225600)
    assert rabbitmq.properties(HEADERS) != known


def test_nats_and_redis_have_plain_headers() -> None:
    """A line each, and a field each."""
    assert nats.write_headers(HEADERS) == (
        b"NATS/1.0\r\ncontent-type: application/json\r\nmessage-id: m-1\r\ntype: Order\r\ntenant: acme\r\n\r\n"
    )
    packed = redis.to_entry(HEADERS)
    assert packed is not None
    assert redis.from_entry(packed) == [text for pair in HEADERS for text in pair]


def read_sqs(content: sqs.SqsContent) -> sqs.SqsArrival:
    """Read what was written."""
    return sqs.read({"Body": content.body, "MessageId": "of-sqs", "MessageAttributes": content.attributes})


def test_sqs_has_an_attribute_for_each_header() -> None:
    """Other programs read these."""
    content = sqs.write(HEADERS, BODY, formatted=True, group="a b")
    assert {name: each["StringValue"] for name, each in content.attributes.items()} == dict(HEADERS)
    assert (content.body, len(content.group)) == ('{"id":"1"}', 32)
    assert read_sqs(content).headers == (("sqs-message-id", "of-sqs"), *sorted(HEADERS))
    assert not read_sqs(content).formatted


ODD = (
    *((f"h{number}", "x") for number in range(7)),
    ("AWS.x", "1"),
    ("a..b", "1"),
    ("empty", ""),
    ("h1", "again"),
    ("control", "\x00"),
)


def test_sqs_keeps_headers_that_cannot_be_attributes() -> None:
    """Ten attributes at most, also for a delayed body that is not text."""
    content = sqs.write((*HEADERS, *ODD), b"\x00", due=5, formatted=True)
    assert len(content.attributes) == 10
    assert dict(content.attributes)["tenant"]["StringValue"] == "acme"
    assert sorted(read_sqs(content).headers) == sorted((*HEADERS, *ODD))


@pytest.mark.parametrize("headers", [HEADERS, (*HEADERS, *ODD)])
def test_sqs_passes_a_delayed_message_on_as_it_is(headers: Headers) -> None:
    """What this library has sent is known by the time at which it is due."""
    first = sqs.write(headers, BODY, due=5, formatted=True)
    arrived = read_sqs(first)
    assert arrived.formatted
    again = sqs.write(arrived.headers, arrived.body, due=arrived.due, formatted=arrived.formatted)
    assert sorted(read_sqs(again).headers) == sorted(headers)
    assert len(again.attributes) == len(first.attributes)
    assert not read_sqs(sqs.write((("ce-id", "1"),), BODY, due=5)).formatted


def test_service_bus_has_its_own_properties() -> None:
    """Duplicate detection of the service then recognizes a second dispatch."""
    properties = servicebus.to_properties(HEADERS)
    assert properties is not None
    sent: Any = servicebus.outgoing(properties, BODY, message_id="new", formatted=MESSAGE)
    assert isinstance(sent, ServiceBusMessage)
    assert (sent.message_id, sent.subject, sent.correlation_id) == ("m-1", "Order", "c-1")
    assert (sent.application_properties, sent.content_type) == (dict(TEXTS), "application/json")
    plain: Any = servicebus.outgoing(properties, BODY, message_id="new")
    assert (plain.message_id, plain.subject) == ("onceonly-new", None)


@pytest.mark.parametrize("body", [b"{}", "köln\n".encode(), b"[1]"])
def test_azure_queues_have_the_body_alone(body: bytes) -> None:
    """A text, which is read as the body of a message of another program."""
    text = azure_queue.write_plain((JSON,), body)
    assert text == body.decode()
    found = azure_queue.read(text, "of-azure")
    assert (found.headers, found.body) == ((("azure-message-id", "of-azure"),), body)


@pytest.mark.parametrize(
    ("headers", "body"),
    [(HEADERS, b"{}"), ((JSON,), b"\xff"), ((JSON,), b"\x00"), ((JSON,), b"a\r\n"), ((JSON,), b"x" * 65_536)],
)
def test_azure_queues_refuse_what_would_change(headers: Headers, body: bytes) -> None:
    """They have no place for headers, and XML has not all characters."""
    assert azure_queue.write_plain(headers, body) is None
