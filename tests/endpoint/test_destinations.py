"""Messages to destinations that are not endpoints: what is refused at the call, what is stored, and the rule for events."""

# ruff: noqa: ARG001 - handlers under test need not use what they ask for

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from onceonly import Context, Endpoint, Exchange, PlainJson, Queue, SetupError, Stream, Subject, Tokens, Topic, message, testing
from onceonly.config.destinations import DestinationPolicy, shown_events
from onceonly.config.location import read_url
from onceonly.endpoint.context import decision_of
from onceonly.endpoint.message_builder import MessageBuilder
from onceonly.errors import InvalidEffect
from onceonly.formats.records import decode_record, encode_record
from onceonly.model.destination import Destination
from onceonly.model.message import Send
from onceonly.model.record import Record
from tests.endpoint.harness import NOW, endpoint, incoming

ARN = "arn:aws:sns:eu-west-1:123456789012:orders"
QUEUE_URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/Sales"
UNDERSTOOD = {
    "amqp://localhost": [Queue("Sales"), Exchange("Sales.Messages:OrderBilled"), Exchange("orders", "order.billed")],
    "nats://localhost": [Subject("orders.placed")],
    "redis://localhost": [Stream("shop:orders")],
    "sqs://eu-west-1": [Queue("Sales"), Queue("Sales.fifo"), Queue(QUEUE_URL), Topic(ARN)],
    "servicebus://key:c2VjcmV0@shop.servicebus.windows.net": [Queue("Sales"), Topic("orders/eu")],
    "azure-queue://account:c2VjcmV0": [Queue("sales-eu")],
    "sqlite:///queue.db": [],
    "postgresql://localhost/shop": [],
    "mariadb://localhost/shop": [],
    "memory://shop": [],
}
EVERY = [Queue("Sales"), Subject("orders.placed"), Stream("orders"), Exchange("orders"), Topic("orders")]


@dataclass
class Order:
    """A command."""

    id: str


@dataclass
class Placed:
    """An event."""

    id: str


@message("Billed", kind="event")
@dataclass
class Billed:
    """A class that is declared as an event."""

    id: str


def policy(url: str, **settings: Any) -> DestinationPolicy:
    """Return what an endpoint on this transport knows of destinations."""
    traits = read_url(url).traits
    assert traits is not None
    return DestinationPolicy(rules=traits.destinations, transport=url, **settings)


def captured(act: Callable[[Context], None], url: str = "amqp://localhost", **settings: Any) -> Send:
    """Return the one message that `act` sends on this transport."""
    used = Context(MessageBuilder("shop", max_body=1000, destinations=policy(url, **settings)), incoming(), now=NOW)
    act(used)
    (send,) = decision_of(used).effects
    assert isinstance(send, Send)
    return send


@pytest.mark.parametrize(("url", "to"), [(url, to) for url, places in UNDERSTOOD.items() for to in places])
def test_a_transport_takes_what_it_understands(url: str, to: Destination) -> None:
    """The stored message has the text of the destination, and the endpoint that a reply goes to."""
    send = captured(lambda c: c.send(Order("1"), to=to), url)
    assert (send.to, send.message.type, send.message.extension("replyto")) == (str(to), "Order", "shop")


@pytest.mark.parametrize(
    ("url", "to"),
    [(url, to) for url, places in UNDERSTOOD.items() for to in EVERY if to.kind not in {each.kind for each in places}],
)
def test_another_kind_is_refused_at_the_call(url: str, to: Destination) -> None:
    """The error names what there is."""
    names = list(dict.fromkeys(type(each).__name__ for each in UNDERSTOOD[url]))
    with pytest.raises(InvalidEffect, match=" and ".join(names) if names else "Send to an endpoint") as refused:
        captured(lambda c: c.send(Order("1"), to=to), url)
    assert str(to) in str(refused.value)
    assert url in str(refused.value)


@pytest.mark.parametrize(
    ("url", "to", "what"),
    [
        ("sqs://eu-west-1", Topic("orders"), "the ARN of a topic in SNS"),
        ("sqs://eu-west-1", Topic("arn:aws:sqs:eu-west-1:123456789012:orders"), "the ARN of a topic in SNS"),
        ("sqs://eu-west-1", Queue("a b"), "a queue in SQS"),
        ("sqs://eu-west-1", Queue("https://elsewhere"), "a queue in SQS"),
        ("azure-queue://account:c2VjcmV0", Queue("Sales"), "a queue in Azure Queue Storage"),
        ("azure-queue://account:c2VjcmV0", Queue("a"), "a queue in Azure Queue Storage"),
        ("servicebus://key:c2VjcmV0@shop.servicebus.windows.net", Queue("a b"), "in Service Bus"),
    ],
)
def test_a_name_that_the_broker_cannot_have_is_refused_at_the_call(url: str, to: Destination, what: str) -> None:
    with pytest.raises(InvalidEffect, match=what):
        captured(lambda c: c.send(Order("1"), to=to), url)


@pytest.mark.parametrize(
    ("url", "to", "longest"),
    [
        ("amqp://localhost", Queue("Sales"), 0),
        ("amqp://localhost", Exchange("orders"), 0),
        ("nats://localhost", Subject("orders"), 0),
        ("redis://localhost", Stream("orders"), 0),
        ("sqs://eu-west-1", Queue("Sales"), 900),
        ("sqs://eu-west-1", Queue("Sales.fifo"), 0),
        ("sqs://eu-west-1", Topic(ARN), 0),
        ("azure-queue://account:c2VjcmV0", Queue("sales"), 7 * 24 * 3600),
    ],
)
def test_a_delay_that_the_broker_does_not_keep_is_refused_at_the_call(url: str, to: Destination, longest: int) -> None:
    """No process of this library receives from there, so none could put the message off again."""
    if longest:
        assert captured(lambda c: c.send(Order("1"), to=to, delay=longest), url).due == NOW + longest * 1000
    late = datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(seconds=longest + 1)
    for options in ({"delay": longest + 1}, {"at": late}):
        with pytest.raises(InvalidEffect, match="delay"):
            captured(lambda c, options=options: c.send(Order("1"), to=to, **options), url)  # type: ignore[misc]
    past = datetime.fromtimestamp(NOW / 1000, UTC) - timedelta(seconds=1)
    assert captured(lambda c: c.send(Order("1"), to=to, at=past), url).due == NOW - 1000


def test_service_bus_keeps_any_delay() -> None:
    url = "servicebus://key:c2VjcmV0@shop.servicebus.windows.net"
    for to in (Queue("Sales"), Topic("orders")):
        assert captured(lambda c, to=to: c.send(Order("1"), to=to, delay=timedelta(days=900)), url).due > NOW  # type: ignore[misc]


@pytest.mark.parametrize(
    ("to", "headers"),
    [
        (Stream("orders"), {"data": "x"}),
        (Stream("orders", "tenant"), {"tenant": "acme"}),
        (Stream("orders", "ce-id"), {}),
        (Stream("orders", "type", format=PlainJson()), {}),
    ],
)
def test_a_header_in_the_field_of_the_body_is_refused_at_the_call(to: Stream, headers: dict[str, str]) -> None:
    """Most clients of Redis read an entry as a mapping, which has one value for a field."""
    with pytest.raises(InvalidEffect, match=f"the body is in the field '{to.field}', and a header has the same name"):
        captured(lambda c: c.send(Order("1"), to=to, headers=headers), "redis://localhost")
    assert captured(lambda c: c.send(Order("1"), to=Stream("orders", "Data"), headers={"data": "x"}), "redis://localhost")


def test_an_event_that_has_a_destination_goes_there() -> None:
    """Others go to their subscribers. An event asks for no reply."""
    rule = {"Placed": Exchange("orders", "placed")}
    for events in (rule, rule.get):
        send = captured(lambda c: c.publish(Placed("1")), events=events)
        assert (send.to, send.message.extension("replyto")) == ("exchange:orders#placed", "")
        assert captured(lambda c: c.publish(Order("1")), events=events).to == ""
        assert captured(lambda c: c.publish(Placed("1"), type="other"), events=events).to == ""
        assert captured(lambda c: c.send(Placed("1"), to="billing"), events=events).to == "billing"
    assert captured(lambda c: c.publish(Billed("1")), events={"Billed": Queue("Sales")}).to == "queue:Sales"


@pytest.mark.parametrize("result", ["orders", 5, Exchange, [Exchange("orders")]])
def test_a_wrong_result_of_the_rule_is_refused_at_the_call(result: object) -> None:
    with pytest.raises(InvalidEffect, match=r'Placed: events= returned .* Exchange\("orders"\), or None'):
        captured(lambda c: c.publish(Placed("1")), events=lambda _type: result)


def test_a_result_that_the_transport_does_not_have_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidEffect, match=r"has no stream of other programs\. Use Queue and Exchange"):
        captured(lambda c: c.publish(Placed("1")), events=lambda _type: Stream("orders"))


def test_a_delayed_event_of_the_rule_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidEffect, match="cannot delay what is sent to an exchange"):
        captured(lambda c: c.publish(Placed("1"), delay=5), events={"Placed": Exchange("orders")})


def test_a_reply_goes_to_endpoints_only() -> None:
    """A sender chooses `replyto`. It must not choose among all queues of the broker."""
    used = Context(
        MessageBuilder("shop", max_body=1000, destinations=policy("amqp://localhost")), incoming(replyto="queue:Sales"), now=NOW
    )
    with pytest.raises(InvalidEffect, match="not an endpoint name"):
        used.reply(Order("1"))


def test_a_text_is_no_destination() -> None:
    """A mistyped endpoint does not become a queue."""
    with pytest.raises(InvalidEffect, match="an endpoint name is"):
        captured(lambda c: c.send(Order("1"), to="queue:Sales"))


def test_a_record_keeps_the_destination() -> None:
    """What another process dispatches later goes to the same place."""
    send = captured(lambda c: c.send(Order("1"), to=Exchange("a b", "c#")))
    stored = encode_record(Record(send.message.identity, (send,)))
    assert decode_record(send.message.identity, stored).effects == (send,)


def test_tokens_refuse_other_destinations() -> None:
    """A token is used up by the endpoint that it is issued to. Other programs have none."""
    with pytest.raises(InvalidEffect, match=r"deduplication=Tokens\(\.\.\.\)"):
        captured(lambda c: c.send(Order("1"), to=Queue("Sales")), by_token=True)
    for rule in ({"Placed": Exchange("orders")}, lambda _type: None):
        with pytest.raises(SetupError, match=r"events.*deduplication=Tokens\(\.\.\.\)"):
            endpoint(transport="amqp://localhost", store="sqlite:///x.db", deduplication=Tokens(), events=rule)


WRONG = [
    (["Placed"], "events must be a mapping from type to destination, or a function, not a list"),
    ({"Placed": "orders"}, r"events\['Placed'\] must be a destination such as Exchange\(\"orders\"\), not 'orders'"),
    ({"Placed": Exchange}, r"events\['Placed'\] must be a destination"),
    ({"": Exchange("orders")}, "events: '' is not an event type"),
    ({5: Exchange("orders")}, "events: 5 is not an event type"),
    ({"a\nb": Exchange("orders")}, "is not an event type"),
    ({"Placed": Subject("orders")}, r"events\['Placed'\]: this transport \(amqp://localhost\) has no subject"),
    ({"Placed": Queue("Sales", format="json")}, r"events\['Placed'\]: format must be CloudEvents\(\)"),
]


@pytest.mark.parametrize(("rule", "problem"), WRONG)
def test_a_wrong_rule_is_refused_at_the_start(rule: object, problem: str) -> None:
    """All settings that are wrong are listed at once."""
    with pytest.raises(SetupError, match=problem) as refused:
        endpoint(transport="amqp://localhost", events=rule, timeout=0)
    assert "timeout must be" in str(refused.value)


def test_a_rule_is_shown() -> None:
    rule = {"Placed": Exchange("orders"), "Billed": Queue("Sales")}
    assert shown_events(rule) == {"Billed": "queue:Sales", "Placed": "exchange:orders"}
    assert shown_events(rule.get) == {"*": "a function decides"}
    assert shown_events(None) == {}


def billing(**settings: Any) -> Endpoint:
    """Make an endpoint that sends to a queue of another program and publishes to one of its exchanges."""
    made = Endpoint(
        "billing",
        store="sqlite:///billing.db",
        transport="amqp://localhost",
        events={"Placed": Exchange("orders")},
        **settings,
    )

    @made.handler
    async def bill(order: Order, session: AsyncSession, context: Context) -> None:
        context.send(Order(order.id), to=Queue("Sales"))
        context.publish(Placed(order.id))

    return made


async def test_a_test_of_a_handler_sees_the_destinations() -> None:
    """The queue of the test is in memory. The destinations are those of the endpoint's own transport."""
    made = billing()
    async with testing.run(made) as t:
        await t.deliver(Order("1"))
        await t.deliver(Order("1"))
        assert [(each.to, each.copies) for each in t.sent[:2]] == [("queue:Sales", 1), ("exchange:orders", 1)]
        async with made.transaction() as tx:
            tx.send(Order("2"), to=Exchange("direct", "key"))
            with pytest.raises(InvalidEffect, match="has no stream"):
                tx.send(Order("2"), to=Stream("orders"))
        assert t.sent[-1].to == "exchange:direct#key"


async def test_an_enlisted_session_sends_to_destinations() -> None:
    """The text is in the record that the caller commits."""
    engine = create_async_engine("sqlite+aiosqlite://")
    shop = Endpoint("shop", store=engine, transport="nats://localhost", events=lambda type_: Subject(f"shop.{type_}"))
    async with AsyncSession(engine) as session, session.begin():
        outgoing = shop.enlist(session)
        with pytest.raises(InvalidEffect, match=r"has no queue of other programs\. Use Subject"):
            outgoing.send(Order("1"), to=Queue("Sales"))
        with pytest.raises(InvalidEffect, match="cannot delay"):
            outgoing.send(Order("1"), to=Subject("orders"), delay=1)
    await engine.dispose()
