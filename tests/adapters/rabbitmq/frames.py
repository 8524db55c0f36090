"""Frames of deliveries, and a reader that takes deliveries out of them."""

from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from onceonly.adapters.rabbitmq.frame_reader import HEARTBEAT, FrameReader
from onceonly.adapters.rabbitmq.frames import ConsumedMessage


def frames(*bodies: bytes, properties: spec.Basic.Properties | None = None, channel: int = 1, tag: int = 1) -> list[bytes]:
    """Return the frames of one delivery, with its body in these pieces."""
    deliver = spec.Basic.Deliver(consumer_tag="ctag", delivery_tag=tag, redelivered=True, exchange="e", routing_key="k")
    header = ContentHeader(body_size=sum(map(len, bodies)), properties=properties or spec.Basic.Properties())
    return [marshal(frame, channel) for frame in (deliver, header, *map(ContentBody, bodies))]


def taking() -> tuple[FrameReader, list[ConsumedMessage]]:
    """Make a reader whose channel 1 is taken from."""
    reader, taken = FrameReader(), list[ConsumedMessage]()
    reader.bring(1, taken.append)
    return reader, taken


async def passed(reader: FrameReader) -> bytes:
    """Return what the driver reads, to the end; without what tells it that the server lives."""
    reader.feed_eof()
    return (await reader.read()).replace(HEARTBEAT, b"")
