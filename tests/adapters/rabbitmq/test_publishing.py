"""What is published: the bytes of a message, and when they leave."""

import asyncio

import pytest
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.frame import unmarshal
from pamqp.header import ContentHeader

from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import Link, is_open, publish
from onceonly.adapters.rabbitmq.publishing import OwnProperties, PublishOutcome, PublishRequest
from onceonly.runtime.environment import SystemRandomSource
from tests.adapters.rabbitmq.harness import opened


@pytest.mark.parametrize("content_type", [None, "application/json"])
@pytest.mark.parametrize("headers", [{}, {"ce-id": "köln", "due": 2**40, "several": ["a", "b"], "long": "x" * 70_000}])
def test_the_drivers_decoder_reads_the_properties_that_were_written(
    content_type: str | None, headers: dict[str, object]
) -> None:
    """They are written without the driver's encoder, straight."""
    written = OwnProperties(app_id="onceonly", content_type=content_type, headers=headers)
    written.message_id = "m"

    flags, rest = written.marshal()[:2], written.marshal()[2:]
    read = spec.Basic.Properties()
    read.unmarshal(int.from_bytes(flags), rest)

    expected = {"app_id": "onceonly", "content_type": content_type, "delivery_mode": 2, "headers": headers, "message_id": "m"}
    assert {name: value for name, value in read if value or name in expected} == expected


async def test_a_lone_message_leaves_in_the_turn_of_the_loop_that_publishes_it() -> None:
    """What the loop has to do besides, such as receiving the next message, comes after it."""
    async with opened() as broker:
        link = Link(read_address(broker.url), SystemRandomSource())
        channel = await link.channel(confirms=True)
        parcel = PublishRequest(
            routing_key=broker.names.queue("shop"),
            properties=OwnProperties(app_id="test", content_type=None, headers={}),
            body=b"x" * 300_000,
        )
        written: list[bytes] = []
        stream = channel.connection.streams.writer  # type: ignore[attr-defined] # a connection of `Link` has it
        send = stream.write
        stream.write = lambda data: (written.append(data), send(data))

        publishing = asyncio.create_task(publish(channel, [parcel], 10.0))
        await asyncio.sleep(0)

        kinds = [type(frame) for frame in _frames(b"".join(written))]
        assert kinds[:2] == [spec.Basic.Publish, ContentHeader]
        assert set(kinds[2:]) == {ContentBody}
        assert await publishing == [PublishOutcome.CONFIRMED]
        await link.close()
        assert not is_open(channel)
        assert await publish(channel, [parcel], 10.0) == [PublishOutcome.SILENT]


def _frames(data: bytes) -> list[object]:
    found = []
    while data:
        used, _, frame = unmarshal(data)
        found.append(frame)
        data = data[used:]
    return found
