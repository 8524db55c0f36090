"""Publishing many messages at once: one write to the connection, one wait for all the broker's confirms.

The driver's own `basic_publish` costs a task, a lock, a write and a timer for each message; for batches that was a quarter of a
worker's time. This does what it does, by the same attributes of the channel, for all messages together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import uuid4

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.exceptions import PublishError
from msgspec import Struct
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.encode import by_type, field_table, short_string
from pamqp.frame import marshal
from pamqp.header import ContentHeader


class Outcome(Enum):
    """What became of one published message."""

    CONFIRMED = "confirmed"
    RETURNED = "returned"
    UNKNOWN = "unknown"


class OwnProperties(spec.Basic.Properties):
    """Properties whose headers are written in their own order, and fast when all of them are text."""

    def encode_property(self, name: str, value: Any) -> bytes:
        """Give the bytes of one property."""
        if name == "headers":
            return _table(value)
        return short_string(value) if name == "message_id" else _encoded(name, value)


class Parcel(Struct, frozen=True, kw_only=True):
    """One message to publish, in the broker's words."""

    exchange: str = ""
    routing_key: str
    properties: spec.Basic.Properties
    body: bytes


class Confirmation:
    """Where the channel puts the broker's answer for one message, as if it were a future."""

    def __init__(self, waiting: "Waiting") -> None:
        self.outcome = Outcome.UNKNOWN
        self._waiting = waiting
        self._is_done = False

    def done(self) -> bool:
        """Tell whether an answer has come, or nobody waits for it any more."""
        return self._is_done or self.cancelled()

    def cancelled(self) -> bool:
        """Tell whether nobody waits any more."""
        return self._waiting.over.done()

    def set_result(self, frame: object) -> None:
        """Take the broker's answer."""
        self._answer(Outcome.CONFIRMED if isinstance(frame, spec.Basic.Ack) else Outcome.UNKNOWN)

    def set_exception(self, error: BaseException) -> None:
        """Take the broker's answer when it is no acknowledgement: a return is definite, a nack is not."""
        self._answer(Outcome.RETURNED if isinstance(error, PublishError) else Outcome.UNKNOWN)

    def _answer(self, outcome: Outcome) -> None:
        self.outcome, self._is_done = outcome, True
        self._waiting.one_less()


class Waiting:
    """The wait for the answers to several messages; `over` ends with an error when the channel does."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.over = channel.create_future()
        self._left = number

    def one_less(self) -> None:
        """Note that one more has been answered."""
        self._left -= 1
        if not self._left and not self.over.done():
            self.over.set_result(None)


async def publish_all(channel: Channel, parcels: Sequence[Parcel], answers: list[Confirmation]) -> None:
    """Publish, and wait for the broker's answers; they are put into `answers`, one for each parcel, as they come.

    Raises what the driver raises when the channel ends; what is not answered by then is UNKNOWN.
    """
    waiting = Waiting(channel, len(parcels))
    answers += [Confirmation(waiting) for _ in parcels]
    batch = uuid4().hex
    names = [f"{batch}{number:x}" for number in range(len(parcels))]
    try:
        async with channel.lock:
            await _write(channel, parcels, names, answers)
        await waiting.over
    finally:
        waiting.over.cancel()
        for name in names:
            channel.message_id_delivery_tag.pop(name, None)


async def _write(channel: Channel, parcels: Sequence[Parcel], names: Sequence[str], answers: Iterable[Any]) -> None:
    """Have all frames written in one piece; what was not handed over takes no numbers of the channel's."""
    payload = b"".join(_frames(channel, parcels, names))
    before = channel.delivery_tag
    tags = range(before + 1, before + 1 + len(parcels))
    channel.confirmations.update(zip(tags, answers, strict=True))
    channel.message_id_delivery_tag.update(zip(names, tags, strict=True))
    channel.delivery_tag = tags[-1]
    try:
        await channel.write_queue.put(ChannelFrame(payload=payload, should_close=False))
    except BaseException:
        channel.delivery_tag = before
        for tag in tags:
            del channel.confirmations[tag]
        raise


def _frames(channel: Channel, parcels: Sequence[Parcel], names: Sequence[str]) -> Iterator[bytes]:
    addressed: dict[tuple[str, str], bytes] = {}
    for parcel, name in zip(parcels, names, strict=True):
        address = (parcel.exchange, parcel.routing_key)
        if address not in addressed:
            addressed[address] = marshal(spec.Basic.Publish(0, *address, mandatory=True), channel.number)
        yield addressed[address]
        parcel.properties.message_id = name
        yield marshal(ContentHeader(properties=parcel.properties, body_size=len(parcel.body)), channel.number)
        most = channel.max_content_size
        for start in range(0, len(parcel.body), most):
            yield marshal(ContentBody(parcel.body[start : start + most]), channel.number)


def _table(headers: Mapping[str, Any]) -> bytes:
    """Give a header table as AMQP writes it (0-9-1, section 4.2.5.5), in the order of the mapping."""
    parts: list[bytes] = []
    for name, value in headers.items():
        if not isinstance(value, str):
            parts.append(field_table({name: value})[4:])
            continue
        key, words = name.encode(), value.encode()
        parts += (len(key).to_bytes(1), key, b"S", len(words).to_bytes(4), words)
    table = b"".join(parts)
    return len(table).to_bytes(4) + table


@lru_cache(1000)
def _encoded(name: str, value: Any) -> bytes:
    return by_type(value, spec.Basic.Properties.amqp_type(name))
