"""Messages of other senders, and readers that know nothing of the library: plain aiobotocore."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onceonly import IdentityField, IdentityHeader
from onceonly.adapters.aws.sqs import topology as sqs_topology
from onceonly.endpoint.received_message import read
from onceonly.formats.identity import IdentityRule
from onceonly.model.message import Message, Send, Unreadable
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from tests.adapters.aws.sqs.harness import EVENT, Broker, commands, message, opened, plain, take

ATTRIBUTES = {"ce-id": "order 1", "ce-source": "/till/7", "ce-type": EVENT, "ce-subject": "köln", "x-raw": b"\xff"}


@pytest.fixture
async def broker(ministack_endpoint: str) -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened(ministack_endpoint) as place:
        yield place


async def understood(broker: Broker, rule: IdentityRule | None = None) -> Message:
    """Receive a delivery, and read it as the endpoint does."""
    (delivery,) = await take(await broker.transport(), 1)
    found = read(delivery, [EVENT], identity=rule, max_body=10_000)
    assert not isinstance(found, Unreadable), found
    return found


async def test_attributes_of_a_plain_producer_are_headers(broker: Broker) -> None:
    """Also through a release, which packs them."""
    await broker.put('{"total": 3}', ATTRIBUTES)
    transport = await broker.transport()
    await transport.release(await take(transport, 1))
    got = await understood(broker)
    assert (got.id, got.source, got.type, got.subject) == ("order 1", "/till/7", EVENT, "köln")
    assert got.header("x-raw") == "\\xff"
    assert json.loads(got.body) == {"total": 3}


async def test_a_structured_event_is_read(broker: Broker) -> None:
    """As the HTTP binding of CloudEvents writes it."""
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": EVENT, "data": {"total": 3}}
    await broker.put(json.dumps(event), {"content-type": "application/cloudevents+json"})
    got = await understood(broker)
    assert (got.id, got.source, json.loads(got.body)) == ("1", "s", {"total": 3})


async def test_plain_json_is_identified_by_a_field(broker: Broker) -> None:
    """The source is the queue; the only type there is stands for the missing one."""
    await broker.put('{"order": {"id": 7}}')
    got = await understood(broker, IdentityField("order.id"))
    assert (got.source, got.id, got.type) == ("shop", "7", EVENT)


async def test_the_id_of_sqs_identifies_a_message_also_in_its_copies(broker: Broker) -> None:
    """A release sends a copy, which has another id at SQS."""
    await broker.put("{}")
    transport = await broker.transport()
    names = []
    for _ in range(3):
        held = await take(transport, 1)
        names.append(dict(held[0].headers)["sqs-message-id"])
        await transport.release(held)
    assert {(await understood(broker, IdentityHeader("sqs-message-id"))).id} == set(names)


async def test_a_plain_producer_of_a_fifo_queue_gives_its_group_and_its_id(ministack_endpoint: str) -> None:
    """The group is the key, and the id may be the identity."""
    async with opened(ministack_endpoint, options="&fifo=true") as broker:
        await broker.put("{}", MessageGroupId="c7", MessageDeduplicationId="d1")
        got = await understood(broker, IdentityHeader("sqs-message-deduplication-id"))
    assert (got.id, got.partition_key) == ("d1", "c7")


async def received(broker: Broker, endpoint: str) -> dict[str, Any]:
    """Receive one message as another program does."""
    link = await broker.link()
    answer = await link.polls.receive_message(
        QueueUrl=await link.need(link.names.queue(endpoint)), MessageAttributeNames=["All"], WaitTimeSeconds=10
    )
    (found,) = answer["Messages"]
    return dict(found)


async def test_a_plain_consumer_reads_what_is_sent_to_its_queue(broker: Broker) -> None:
    """A queue with the name is all that a command needs."""
    link = await broker.link()
    await link.sqs.create_queue(QueueName=link.names.queue("legacy"))
    binary = Send(message=message("m2", body=b"\x00\xff"), to="legacy")
    assert await (await broker.transport()).send(commands("m1", to="legacy")) == (Answer.TAKEN,)
    got = await received(broker, "legacy")
    assert json.loads(got["Body"]) == {"total": 1}
    assert dict(json.loads(got["MessageAttributes"]["onceonly-headers"]["StringValue"])) == {
        "ce-specversion": "1.0",
        "ce-id": "m1",
        "ce-source": "till",
        "ce-type": EVENT,
        "content-type": "application/json",
    }
    assert await (await broker.transport()).send([binary]) == (Answer.TAKEN,)
    got = await received(broker, "legacy")
    assert got["MessageAttributes"]["onceonly-body"]["StringValue"] == "base64"
    assert b64decode(got["Body"]) == b"\x00\xff"
    await sqs_topology.remove(link, [Topology(endpoint="legacy")])


async def test_a_plain_producer_publishes_an_event_to_its_topic(broker: Broker) -> None:
    """And a plain consumer subscribes to it."""
    link = await broker.link()
    await (await broker.transport()).declare([Topology(endpoint="audit", events=(EVENT,))])
    attributes = plain({name: value for name, value in ATTRIBUTES.items() if isinstance(value, str)})
    await link.sns.publish(TopicArn=await link.topic(EVENT), Message='{"total": 3}', MessageAttributes=attributes)
    assert (await understood(broker)).id == "order 1"
    assert (await received(broker, "audit"))["MessageAttributes"]["ce-id"]["StringValue"] == "order 1"
    await sqs_topology.remove(link, [Topology(endpoint="audit")])
