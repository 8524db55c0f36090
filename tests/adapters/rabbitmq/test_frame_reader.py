"""Taking deliveries out of what the server sent: frames cut anywhere, all that AMQP can carry, and what is no delivery."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from aiormq.channel import Channel
from aiormq.connection import FrameReceiver
from pamqp import commands as spec
from pamqp.frame import marshal, unmarshal

from onceonly.adapters.rabbitmq.frame_reader import HEARTBEAT, FrameReader
from tests.adapters.rabbitmq.frames import frames, passed, taking
from tests.adapters.rabbitmq.harness import commands, ids, opened, take

EVERYTHING = spec.Basic.Properties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={
        "text": "köln",
        "empty": "",
        "true": True,
        "small": 1,
        "large": 2**40,
        "negative": -5,
        "half": 0.5,
        "exact": Decimal("1.5"),
        "when": datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC),
        "list": ["a", 1, {"b": "c"}],
        "table": {"inner": "x", "deep": {"er": 1}},
        "none": None,
        "bytes": bytearray(b"\xff\x00"),
    },
    delivery_mode=2,
    priority=9,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=datetime(2026, 2, 28, tzinfo=UTC),
    message_type="t",
    user_id="guest",
    app_id="a",
)
ACK = marshal(spec.Basic.Ack(delivery_tag=7), 1)
CLOSED = marshal(spec.Channel.CloseOk(), 1)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 50, 10_000])
async def test_frames_cut_anywhere_make_the_same_deliveries(size: int) -> None:
    """And everything else reaches the driver, byte by byte, in its order."""
    reader, taken = taking()
    other = b"".join(frames(b"elsewhere", channel=2))
    sent = b"".join([ACK, *frames(b"one"), other, *frames(b"t", b"wo", tag=2), *frames(tag=3), ACK, *frames(b"4", tag=4)])
    for start in range(0, len(sent), size):
        reader.feed_data(sent[start : start + size])
    assert [(each.delivery_tag, each.body) for each in taken] == [(1, b"one"), (2, b"two"), (3, b""), (4, b"4")]
    assert {(each.consumer_tag, each.redelivered) for each in taken} == {("ctag", True)}
    assert await passed(reader) == ACK + other + ACK


async def test_frames_of_other_channels_may_come_between() -> None:
    """Only those of one channel are in one piece."""
    reader, taken = taking()
    first, second = frames(b"mine"), frames(b"the driver's", channel=2)
    for pair in zip(first, second, strict=True):
        reader.feed_data(b"".join(pair))
    assert [each.body for each in taken] == [b"mine"]
    assert await passed(reader) == b"".join(second)


@pytest.mark.parametrize("properties", [EVERYTHING, spec.Basic.Properties(), spec.Basic.Properties(headers={})])
async def test_properties_are_what_the_driver_would_read(properties: spec.Basic.Properties) -> None:
    """Every property, and every type that a header may have."""
    reader, taken = taking()
    sent = frames(b"x", properties=properties)
    reader.feed_data(b"".join(sent))
    header: Any = unmarshal(sent[1])[2]
    for name in header.properties.attributes():
        expected = getattr(header.properties, name) or None
        if expected and name == "headers":
            expected |= {"bytes": "\udcff\x00"}  # the driver has bytes here
        assert (getattr(taken[0].properties, name) or None) == expected, name


async def test_a_header_that_is_not_utf8_keeps_its_bytes() -> None:
    """As lone surrogates, which nothing else decodes to."""
    reader, taken = taking()
    head = frames(b"", properties=spec.Basic.Properties(headers={"a": "bc"}))
    reader.feed_data(b"".join(head[:2]).replace(b"bc", b"\xff\xfe"))
    assert taken[0].properties.headers == {"a": "\udcff\udcfe"}


def broken() -> list[tuple[str, bytes]]:
    """Return deliveries that are none."""
    deliver, header, body = frames(b"body", properties=spec.Basic.Properties(headers={"a": "b"}, app_id="x"))
    return [
        ("a delivery without a tag", deliver[:3] + b"\0\0\0\4\0\x3c\0\x3c\xce"),
        ("a delivery in the midst of another", deliver + deliver),
        ("a header alone", header + body),
        ("another method in its midst", deliver + header + ACK + body),
    ]


@pytest.mark.parametrize(("why", "sent"), broken())
async def test_what_is_no_delivery_goes_to_the_driver_as_it_came(why: str, sent: bytes) -> None:
    """It knows what to do with a server that speaks nonsense; and what follows is understood again."""
    reader, taken = taking()
    reader.feed_data(sent)
    assert not taken, why
    reader.feed_data(b"".join(frames(b"next")))
    assert [each.body for each in taken] == [b"next"]
    assert await passed(reader) == sent


ENDLESS = b"".join(frames(b"x")).replace(b"\xce", b"\0")


@pytest.mark.parametrize("sent", [b"AMQP\0\0\x09\x01", b"HTTP/1.1 400 Bad Request\r\n\r\n", ENDLESS, b"\x01\0"])
async def test_what_are_no_frames_goes_to_the_driver_as_it_came(sent: bytes) -> None:
    """A server of another protocol, an end that is none, half a frame; from there on everything."""
    reader, taken = taking()
    reader.feed_data(ACK)
    reader.feed_data(sent)
    if len(sent) > len(HEARTBEAT):
        reader.feed_data(ACK)
    assert await passed(reader) == ACK + sent + (ACK if len(sent) > len(HEARTBEAT) else b"")
    assert not taken


async def test_a_closed_channel_is_taken_from_no_more() -> None:
    """Its number is the next channel's, whose deliveries are somebody else's."""
    reader, taken = taking()
    later = b"".join(frames(b"later"))
    reader.feed_data(b"".join(frames(b"before")) + CLOSED + later)
    assert [each.body for each in taken] == [b"before"]
    assert await passed(reader) == CLOSED + later


async def test_the_driver_is_told_that_the_server_lives() -> None:
    """Nothing but deliveries may come for long, and then the server sends no heartbeats."""
    reader, _ = taking()
    reader.feed_data(b"".join(frames(b"one")) + b"".join(frames(b"two", tag=2)))
    reader.feed_eof()
    assert await reader.read() == HEARTBEAT


async def test_the_driver_reads_all_else_through_this_reader() -> None:
    """It is given the reader that it expects."""
    reader, taken = taking()
    receiver = FrameReceiver(reader)
    reader.feed_data(b"".join([*frames(b"one"), ACK]))
    _, channel, frame = await receiver.get_frame()
    assert (channel, frame.name, len(taken)) == (1, "Basic.Ack", 1)


async def test_a_real_connection_keeps_deliveries_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that no longer asks the factory for its streams would be slow, and nothing else would tell."""
    seen: list[object] = []

    async def deliver(_channel: Channel, frame: object) -> None:
        await asyncio.sleep(0)
        seen.append(frame)

    monkeypatch.setattr(Channel, "_on_deliver_frame", deliver)
    async with opened() as broker:
        transport = await broker.transport()
        await transport.send(commands("a", "b"))
        deliveries = await take(transport, 2)
        await transport.ack(deliveries)
    assert sorted(ids(deliveries)) == ["a", "b"]
    assert seen == []


async def test_a_driver_that_reads_deliveries_itself_brings_them_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cannot be kept back from it."""
    monkeypatch.setattr(FrameReader, "bring", lambda *_: None)
    async with opened() as broker:
        transport = await broker.transport()
        await transport.send(commands("a", "b"))
        deliveries = await take(transport, 2)
        await transport.ack(deliveries)
    assert sorted(ids(deliveries)) == ["a", "b"]
