"""Programs that use a plain client of Azure Queue Storage, on either side of a queue."""

import hashlib
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from onceonly import Endpoint, IdentityField, IdentityHeader
from onceonly.endpoint.received_message import read
from onceonly.model.message import Send, Unreadable
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth
from tests.adapters.azure.queue.harness import EVENT, Broker, commands, event_text, ids, message, opened, take, until
from tests.servers.azurite import Azurite


@dataclass
class PlaceOrder:
    """A command of a foreign program."""

    order_id: str


@pytest.fixture
async def broker(azurite_storage: Azurite) -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened(azurite_storage) as place:
        yield place


async def test_a_message_of_a_plain_client_is_handled_once(broker: Broker, tmp_path: Path) -> None:
    """A CloudEvent in JSON format, however often it is put, and also in base64."""
    seen: list[str] = []
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", transport=broker.url())

    @shop.handler
    async def place_order(order: PlaceOrder) -> None:
        seen.append(order.order_id)

    text = event_text(data={"order_id": "A"})
    for _ in range(3):
        await broker.plain.send_message(text)
    async with shop.running():
        await broker.plain.send_message(b64encode(text.encode()).decode())
        await broker.plain.send_message(event_text(id="o2", data={"order_id": "B"}))
        await emptied(broker)
    assert sorted(seen) == ["A", "B"]


async def test_an_event_of_the_cloudevents_package_is_handled_like_our_own(broker: Broker) -> None:
    """With extensions and other letters."""
    event = CloudEvent(
        attributes={"id": "order 1", "source": "/till/7", "type": EVENT, "subject": "köln", "specversion": "1.0"},
        data={"total": 3},
    )
    await broker.plain.send_message(JSONFormat().write(event).decode())
    (delivery,) = await take(await broker.transport(), 1)
    got = read(delivery, [EVENT], identity=None, max_body=10_000)
    assert not isinstance(got, Unreadable)
    assert (got.id, got.source, got.subject, json.loads(got.body)) == ("order 1", "/till/7", "köln", {"total": 3})


async def test_plain_json_is_identified_by_a_field_or_by_the_id_of_the_service(broker: Broker) -> None:
    """The source is the queue; the only type there is stands for the missing one. A release changes neither."""
    sent = await broker.plain.send_message('{"order": {"id": 7}}')
    transport = await broker.transport()
    await transport.release(await take(transport, 1))
    (delivery,) = await take(transport, 1)
    for rule, id_ in ((IdentityField("order.id"), "7"), (IdentityHeader("azure-message-id"), sent.id)):
        got = read(delivery, [EVENT], identity=rule, max_body=10_000)
        assert not isinstance(got, Unreadable)
        assert (got.source, got.id, got.type) == ("shop", id_, EVENT)


async def test_a_plain_consumer_reads_what_is_sent_to_its_queue(broker: Broker) -> None:
    """A queue with the name of an endpoint is all that a command needs."""
    queue = await broker.service.create_queue(broker.names.queue("legacy"))
    sent = message(body=b"\x00\xff", datacontenttype="application/x-order", headers=(("x-shop", "Zürich"),))
    assert await (await broker.transport()).send([Send(message=sent, to="legacy")]) == (Answer.TAKEN,)
    got = await queue.receive_message()
    assert got is not None
    assert json.loads(got.content) == {
        "specversion": "1.0",
        "id": "m1",
        "source": "till",
        "type": EVENT,
        "datacontenttype": "application/x-order",
        "onceonlyheaders": '[["x-shop","Zürich"]]',
        "data_base64": "AP8=",
    }


async def test_a_plain_consumer_subscribes_with_a_queue_that_has_metadata(broker: Broker) -> None:
    """As docs/reference/azure-queues.md says."""

    def hashed(text: str) -> str:
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    queue = await broker.service.create_queue(broker.names.queue("audit"))
    name = f"{broker.prefix}-s-{hashed(EVENT)}-{hashed('audit')}"
    await broker.service.create_queue(name, metadata={"type": EVENT, "endpoint": "audit", "state": "subscribed"})
    assert await (await broker.transport()).send([Send(message=message("e1"))]) == (Answer.TAKEN,)
    got = await queue.receive_message()
    assert got is not None
    assert json.loads(got.content)["data"] == {"total": 1}
    assert ids(await take(await broker.transport(), 1)) == ["e1"]


async def test_an_event_without_subscribers_is_counted(broker: Broker) -> None:
    """Also a delayed one, when it is sent."""
    transport = await broker.transport()
    sends = [Send(message=message(type="other")), Send(message=message(type="other"), due=4_000_000_000_000)]
    assert await transport.send(sends) == (Answer.TAKEN,) * 2
    assert transport.unsubscribed.take() == {"other": 2}


async def test_messages_that_a_plain_client_deletes_are_skipped(broker: Broker) -> None:
    """A held delivery that is gone is settled; others are delivered."""
    transport = await broker.transport()
    await transport.send(commands("m1", "m2"))
    held = await take(transport, 2)
    await broker.plain.clear_messages()
    await transport.extend(held)
    await transport.release(held[:1])
    await transport.ack(held[1:])
    await transport.send(commands("m3"))
    assert ids(await take(transport, 1)) == ["m3"]


async def emptied(broker: Broker) -> None:
    """Wait until the queue is empty."""
    transport = await broker.transport()

    async def is_empty() -> bool:
        return await transport.depth("shop") == Depth(waiting=0, held=0, delayed=0)

    await until(is_empty)
