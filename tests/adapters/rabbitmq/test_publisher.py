"""What is published: the bytes of a message, and when they leave."""

import asyncio
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.frame import unmarshal
from pamqp.header import ContentHeader

from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import RabbitMQLink, is_open, publish
from onceonly.adapters.rabbitmq.publisher import PUBLISH, OwnProperties, PublishOutcome, PublishRequest, ShownProperties
from onceonly.adapters.rabbitmq.wire import DUE, properties
from onceonly.model.headers import headers_of
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.runtime.environment import SystemRandomSource
from tests.adapters.rabbitmq.harness import EVENT, commands, ids, opened, take


@pytest.mark.parametrize("content_type", [None, "application/json"])
@pytest.mark.parametrize("named", [{}, {"message_id": "köln 7", "message_type": "t", "correlation_id": "c"}])
@pytest.mark.parametrize("headers", [{}, {"ce-id": "köln", "due": 2**40, "several": ["a", "b"], "long": "x" * 70_000}])
def test_the_drivers_decoder_reads_the_properties_that_were_written(
    content_type: str | None, named: dict[str, str], headers: dict[str, object]
) -> None:
    """They are written without the driver's encoder, straight."""
    shown = ShownProperties(sent_at=1_700_000_000, **named)
    written = OwnProperties(app_id="onceonly", content_type=content_type, headers=headers, shown=shown)
    written.publish = "p1"

    flags, rest = written.marshal()[:2], written.marshal()[2:]
    read = spec.Basic.Properties()
    read.unmarshal(int.from_bytes(flags), rest)

    expected = {
        "app_id": "onceonly",
        "content_type": content_type,
        "delivery_mode": 2,
        "headers": {PUBLISH: "p1", **headers},
        "timestamp": datetime.fromtimestamp(1_700_000_000, UTC),
        **named,
    }
    assert {name: value for name, value in read if value or name in expected} == expected


@pytest.mark.parametrize("first", ["shop", "nobody"])
async def test_a_return_is_matched_to_its_own_copy(first: str) -> None:
    """Two copies of one id are published in one call, and one of them cannot be routed."""
    async with opened() as broker:
        sender = await broker.transport()
        other = "nobody" if first == "shop" else "shop"
        answers = await sender.send([*commands("m1", to=first), *commands("m1", to=other), *commands("m2", to=first)])

        expected = {"shop": Answer.TAKEN, "nobody": Answer.REFUSED}
        assert answers == (expected[first], expected[other], expected[first])
        taken = await take(sender, answers.count(Answer.TAKEN))
        assert sorted(ids(taken)) == (["m1", "m2"] if first == "shop" else ["m1"])


async def test_a_return_is_matched_although_an_earlier_version_kept_the_private_header() -> None:
    """It shows the header to handlers, and stores it with dead letters, which this version sends again."""
    async with opened() as broker:
        sender = await broker.transport()
        (lost,) = commands("m1", to="nobody")
        kept = replace(lost, message=replace(lost.message, headers=((PUBLISH, "earlier"), ("a", "b"))))
        assert await sender.send([kept, *commands("m2")]) == (Answer.REFUSED, Answer.TAKEN)


async def test_the_properties_tell_other_programs_what_the_message_is() -> None:
    """The message id is the CloudEvents id. Each of its copies has it; only the private header differs."""
    first = Message(id="m1", source="till", type=EVENT, body=b"{}", time="2026-02-28T23:59:59.999Z")
    second = replace(first, id="m2", extensions=(("conversationid", "m1"),))
    async with opened() as broker:
        sender = await broker.transport()
        await sender.send([Send(message=each, to="shop") for each in (first, first, second)])
        seen = []
        async with broker.plain() as channel:
            for _ in range(3):
                got = (await channel.basic_get(broker.names.queue("shop"), no_ack=True)).header.properties
                seen.append((got.message_id, got.message_type, got.timestamp, got.correlation_id, got.headers.pop(PUBLISH)))
    at = datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC)
    assert [each[:4] for each in seen] == [("m1", EVENT, at, "m1"), ("m1", EVENT, at, "m1"), ("m2", EVENT, at, "m1")]
    assert len({each[4] for each in seen}) == len(seen)


async def test_the_private_header_is_not_shown() -> None:
    """Also where a program copied it with the headers of a message."""
    async with opened() as broker:
        for headers in ({PUBLISH: "p1", "a": "b"}, {PUBLISH: ["p1", "p2"], "a": "b"}):
            await broker.publish(b"{}", headers=headers, app_id="onceonly")
        transport = await broker.transport()
        assert [delivery.headers for delivery in await take(transport, 2)] == [(("a", "b"),)] * 2


@pytest.mark.parametrize(
    "name", ["x-death", "x-first-death-queue", "X-Delivery-Count", DUE, PUBLISH, "CC", "BCC", "ce-id", "content-type"]
)
def test_a_header_that_the_transport_would_not_deliver_is_refused(name: str) -> None:
    """When it is sent, not when it is missed."""
    with pytest.raises(ValueError, match="reserved"):
        headers_of({name: "1"})


@pytest.mark.parametrize(
    ("name", "value", "lost"),
    [
        ("ce-id", "é" * 128, {"message_id", "correlation_id"}),
        ("ce-time", "yesterday", {"sent_at"}),
        ("ce-time", "2026-02-28T23:59:59", {"sent_at"}),
        ("ce-conversationid", "c" * 256, set()),
        ("long", "x" * 130_000, {"message_id", "correlation_id", "message_type", "sent_at"}),
    ],
)
def test_a_value_that_no_property_can_have_is_left_out(name: str, value: str, lost: set[str]) -> None:
    """The headers have it all the same."""
    headers = {"ce-id": "m1", "ce-type": EVENT, "ce-time": "2026-02-28T23:59:59.1Z", name: value}
    written = properties(tuple(headers.items()))
    assert written is not None
    assert written.headers == headers
    shown = {each for each, value in written.shown._asdict().items() if value}
    assert shown == set(ShownProperties._fields) - lost
    assert len(written.marshal()) <= 131_072 - 30


async def test_a_lone_message_leaves_in_the_turn_of_the_loop_that_publishes_it() -> None:
    """What the loop has to do besides, such as receiving the next message, comes after it."""
    async with opened() as broker:
        link = RabbitMQLink(read_address(broker.url), SystemRandomSource())
        channel = await link.channel(confirms=True)
        request = PublishRequest(
            routing_key=broker.names.queue("shop"),
            properties=OwnProperties(app_id="test", content_type=None, headers={}),
            body=b"x" * 300_000,
        )
        written: list[bytes] = []
        stream = channel.connection.streams.writer  # type: ignore[attr-defined] # a connection of `Link` has it
        send = stream.write
        stream.write = lambda data: (written.append(data), send(data))

        publishing = asyncio.create_task(publish(channel, [request], 10.0))
        await asyncio.sleep(0)

        kinds = [type(frame) for frame in _frames(b"".join(written))]
        assert kinds[:2] == [spec.Basic.Publish, ContentHeader]
        assert set(kinds[2:]) == {ContentBody}
        assert await publishing == [PublishOutcome.CONFIRMED]
        await link.close()
        assert not is_open(channel)
        assert await publish(channel, [request], 10.0) == [PublishOutcome.SILENT]


def _frames(data: bytes) -> list[object]:
    found = []
    while data:
        used, _, frame = unmarshal(data)
        found.append(frame)
        data = data[used:]
    return found
