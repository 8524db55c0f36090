"""From a delivery to a message: binary and structured CloudEvents, foreign messages, and what cannot be read."""

# ruff: noqa: ARG001 - doubles take the arguments that are asked for

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly import Endpoint, IdentityField, IdentityHeader
from onceonly.endpoint.host import host_of
from onceonly.endpoint.received_message import ReceivedMessage
from onceonly.formats.cloudevents import Event, arrival, encode
from onceonly.model.identity import Identity, claim_key, outgoing_id
from onceonly.model.message import Delivery, Message, Send, Unreadable
from tests.endpoint.harness import delivery, endpoint, incoming, read, unreadable


@dataclass
class Order:
    """A message."""

    id: str


def shop(*types: str, **settings: Any) -> Endpoint:
    """Make an endpoint with handlers for these types."""
    made = endpoint(**settings)

    async def take(order: Order) -> None:
        """Do nothing."""

    for type_ in types or ("Order",):
        made.handler(type=type_)(take)
    return made


HANDLERS = host_of(shop("a", "b", identity=IdentityField("id"))).handlers()
CLOUD = {"ce_id": "1", "ce_source": "web", "ce_type": "Order"}


def arrives_again(delivered: Delivery, made: Endpoint, **copy: Any) -> Delivery:
    """Let the endpoint read a delivery and put a copy of its message back, as the retry does."""
    headers, body = encode(Send(message=read(made, delivered), to="shop", **copy))
    return arrival(2, "shop", headers, body, suspect=False)


def test_a_binary_cloudevent_is_read_from_its_headers() -> None:
    """Attributes and extensions apart, other headers kept."""
    message = read(shop(), delivery(ce_subject="s", ce_traceparent="t", x_other="o", content_type="application/json", **CLOUD))
    assert (message.id, message.source, message.type, message.subject) == ("1", "web", "Order", "s")
    assert (message.extensions, message.headers) == ((("traceparent", "t"),), (("x-other", "o"),))


def test_a_structured_cloudevent_is_read_from_its_body() -> None:
    """As brokers without headers carry it."""
    body = msgspec.json.encode({"specversion": "1.0", "id": "1", "source": "web", "type": "Order", "data": {"id": "7"}})
    message = read(shop(), delivery(body, content_type="application/cloudevents+json"))
    assert (message.id, message.source, message.type, message.body) == ("1", "web", "Order", b'{"id":"7"}')


@pytest.mark.parametrize("headers", [{}, {"ce_id": ""}, {"ce_id": "  "}])
def test_a_message_without_an_id_is_unreadable(headers: dict[str, str]) -> None:
    """It could never be recognized when it comes again."""
    found = unreadable(shop(), delivery(ce_source="web", ce_type="Order", **headers))
    assert "the CloudEvents attribute `id` is missing or empty" in found.reason
    assert found.message is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"id":1', b"[" * 100_000])
def test_a_broken_structured_body_is_unreadable(body: bytes) -> None:
    """And ends no worker."""
    assert "cannot be read" in unreadable(shop(), delivery(body, content_type="application/cloudevents+json")).reason


@pytest.mark.parametrize("id_", [b"null", b'""', b'{"a":1}', b"[1]"])
def test_a_structured_id_that_is_no_text_is_unreadable(id_: bytes) -> None:
    """Above all, `null` is no id that all such messages share."""
    body = b'{"id":' + id_ + b',"source":"web","type":"Order","data":{"id":"1"}}'
    assert unreadable(shop(), delivery(body, content_type="application/cloudevents+json")).message is None


NAMES = st.sampled_from(
    ["ce-id", "ce_type", "cloudEvents:source", "content-type", "ce-onceonlyattempts", "ce-onceonlyhistory", "x"]
)
VALUES = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.sampled_from(["application/cloudevents+json", "9" * 5000, "1", "[]", "null"]),
)


@given(
    headers=st.lists(st.tuples(NAMES, VALUES)),
    body=st.one_of(st.binary(), st.text().map(lambda t: json.dumps({"id": t}).encode())),
)
def test_whatever_arrives_is_a_message_or_says_why_not(headers: list[tuple[str, str]], body: bytes) -> None:
    """Reading never raises: one bad delivery must not keep a batch from its worker."""
    found = HANDLERS.read(arrival(1, "shop", tuple(headers), body, suspect=False))
    assert isinstance(found, Message | Unreadable)
    if isinstance(found, Message):
        assert found.id.strip()
        assert claim_key("shop", found.identity)


def test_attributes_that_are_no_text_are_unreadable() -> None:
    """They could not be hashed or stored."""
    assert "`id` is not valid UTF-8" in unreadable(shop(), delivery(ce_id="\udcff", ce_type="Order")).reason


def test_the_source_defaults_to_the_queues_name() -> None:
    """A foreign producer rarely has one."""
    assert read(shop(), delivery(queue="orders", ce_id="1", ce_type="Order")).source == "orders"


def test_a_message_without_a_type_is_the_only_handlers() -> None:
    """Plain JSON from a foreign producer; with several handlers nobody can tell."""
    assert read(shop(), delivery(ce_id="1")).type == "Order"
    assert read(shop("a", "b"), delivery(ce_id="1")).type == ""


def test_an_oversize_message_is_unreadable_but_known() -> None:
    """So that its dead letter carries its identity."""
    found = unreadable(shop(), delivery(b"x" * 11, **CLOUD), max_body=10)
    assert "11 bytes; the limit is 10" in found.reason
    assert found.message is not None
    assert found.message.identity == ("web", "1")


def test_a_message_knows_how_often_it_failed() -> None:
    """As its copy remembers."""
    message = read(shop(), delivery(attempts=3, **CLOUD))
    assert isinstance(message, ReceivedMessage)
    assert message.attempts == 3


def by_attributes(event: Event) -> str:
    """Return an id that would change if it were computed twice."""
    return event.attributes.get("source", "") + "/" + event.attributes.get("id", "")


FOREIGN = [
    (IdentityHeader("X-Id"), delivery(x_id="7"), "7"),
    (IdentityField("order_id"), delivery(b'{"order_id":"7"}'), "7"),
    (IdentityField("order_id"), delivery(b'{"order_id":7}'), "7"),
    (IdentityField("order.id"), delivery(b'{"order":{"id":"7"}}'), "7"),
    (lambda event: event.body.decode(), delivery(b"7"), "7"),
    (by_attributes, delivery(ce_source="web", ce_id="1"), "web/1"),
]


@pytest.mark.parametrize(("rule", "delivered", "expected"), FOREIGN)
def test_a_foreign_message_is_identified_by_the_rule(rule: Any, delivered: Delivery, expected: str) -> None:
    """By a header, a field, or a function."""
    assert read(shop(identity=rule), delivered).id == expected


@pytest.mark.parametrize(
    ("headers", "suggested"),
    [
        ({"X_Request_Id": "7"}, 'IdentityHeader("x-request-id")'),
        ({"x_tenant_id": "7", "event_id": "8"}, 'IdentityHeader("event-id")'),
        ({"event_id": " ", "idempotency_key": "8"}, 'IdentityHeader("idempotency-key")'),
        ({"message_id": "new for each copy"}, 'IdentityHeader("x-request-id")'),
        ({}, 'IdentityHeader("x-request-id")'),
    ],
)
def test_a_message_without_identity_suggests_the_setting(headers: dict[str, str], suggested: str) -> None:
    """With a header that the message has, where one of them usually is an id."""
    reason = unreadable(shop(), delivery(**headers)).reason
    assert f"set identity={suggested} or identity=IdentityField(" in reason
    assert "the CloudEvents attribute `id` is missing" in reason


@pytest.mark.parametrize(("rule", "delivered", "expected"), FOREIGN)
@pytest.mark.parametrize("copy", [{"attempts": 1}, {"alone": True}, {}], ids=["failed", "suspect", "put off"])
def test_a_copy_made_by_this_library_keeps_its_identity(
    rule: Any, delivered: Delivery, expected: str, copy: dict[str, Any]
) -> None:
    """However often it is retried: the rule is asked once."""
    made = shop(identity=rule)
    again = arrives_again(delivered, made, **copy)
    for _ in range(2):
        assert (read(made, again).identity, read(made, again).type) == (read(made, delivered).identity, "Order")
        again = arrives_again(again, made, **copy)


def test_what_this_library_sent_is_not_foreign() -> None:
    """An endpoint with a rule can still be sent messages by other endpoints."""
    sent = incoming(id=outgoing_id("till", Identity("", ""), 0, 17), source="till")
    headers, body = encode(Send(message=sent, to="shop"))
    assert read(shop(identity=IdentityHeader("x-id")), arrival(1, "shop", headers, body, suspect=False)).id == sent.id


def fails(event: Event) -> str:
    """Fail."""
    raise KeyError("order")


def exits(event: Event) -> str:
    """End the process, as it seems."""
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("rule", "delivered", "told"),
    [
        (IdentityHeader("x-id"), delivery(**CLOUD), "header 'x-id' is missing or empty"),
        (IdentityHeader("x-id"), delivery(x_id="", **CLOUD), "header 'x-id' is missing or empty"),
        (IdentityField("order_id"), delivery(b"{}"), "field 'order_id' is missing or empty"),
        (IdentityField("order_id"), delivery(b"[1]"), "field 'order_id' is missing or empty"),
        (IdentityField("order_id"), delivery(b"\xff"), "because the body is not JSON"),
        (IdentityField("order_id"), delivery(b'{"order_id":true}'), "must be text or an integer, not a boolean"),
        (IdentityField("order_id"), delivery(b'{"order_id":1.5}'), "must be text or an integer, not a fraction"),
        (fails, delivery(), "the identity rule failed: KeyError: 'order'"),
        (exits, delivery(), "the identity rule failed: SystemExit: 3"),
        (lambda _event: 5, delivery(), "returned an int; it must return text"),
        (lambda _event: "", delivery(), "the result of the identity rule is missing or empty"),
    ],
)
def test_a_foreign_message_that_the_rule_cannot_identify_is_unreadable(rule: Any, delivered: Delivery, told: str) -> None:
    """Never handled: it could not be recognized again."""
    assert told in unreadable(shop(identity=rule), delivered).reason


def test_an_instant_travels_with_every_copy() -> None:
    """A retry copy, also a delayed one, has the identity of its message, and with it the instant."""
    id_ = outgoing_id("till", Identity("", ""), 0, 1_700_000_000_000)
    first = delivery(**CLOUD | {"ce_id": id_, "ce_source": "till"})
    again = arrives_again(first, shop(), due=1_800_000_000_000, attempts=3)
    assert (read(shop(), again).instant, read(shop(), first).instant) == (1_700_000_000_000, 1_700_000_000_000)
