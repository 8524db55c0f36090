"""Publishing many messages at once: one write to the connection, one wait for all the broker's confirms.

The driver's own `basic_publish` costs a task, a lock, a write and a timer for each message; for batches that was a quarter of a
worker's time. This does what it does, by the same attributes of the channel, for all messages together.

It writes to the stream itself, past the driver's queue: there a lone message would wait for a turn of the event loop, behind
the next message's receiving. Nothing else writes on a channel that publishes, once it is open, so its frames keep their order.
"""

import asyncio
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import uuid4

from aiormq.channel import Channel
from aiormq.exceptions import ChannelInvalidStateError, PublishError
from msgspec import Struct
from pamqp import commands as spec
from pamqp.constants import FRAME_BODY, FRAME_END_CHAR, FRAME_HEADER
from pamqp.encode import field_table, short_string
from pamqp.frame import marshal

from onceonly.adapters.rabbitmq.decoding import HEAD

_CONTENT = struct.Struct(">HxxQ")  # class, weight, size of the body
_PERSISTENT = 2
_FLAGS = spec.Basic.Properties.flags
_TYPED = _FLAGS["content_type"]
_ALWAYS = _FLAGS["headers"] | _FLAGS["delivery_mode"] | _FLAGS["message_id"] | _FLAGS["app_id"]


class PublishOutcome(Enum):
    """The result of publishing one message. UNKNOWN: the broker refused it, perhaps for now. SILENT: there was no answer."""

    CONFIRMED = "confirmed"
    RETURNED = "returned"
    UNKNOWN = "unknown"
    SILENT = "silent"


class OwnProperties(spec.Basic.Properties):
    """The properties of a persistent message of this library's: these few are written straight, others it cannot have."""

    def __init__(self, *, app_id: str, content_type: str | None, headers: dict[str, Any]) -> None:
        """Take what the message has; it gets its `message_id` when it is published."""
        super().__init__(app_id=app_id, content_type=content_type, delivery_mode=_PERSISTENT, headers=headers)

    def marshal(self) -> bytes:
        """Give the flags and the values, in the order of AMQP 0-9-1, section 4.2.6.1; headers in their own order."""
        return b"".join(
            (
                (_ALWAYS | _TYPED if self.content_type else _ALWAYS).to_bytes(2),
                _short(self.content_type) if self.content_type else b"",
                _table(self.headers or {}),
                _PERSISTENT.to_bytes(1),
                short_string(self.message_id or ""),
                _short(self.app_id or ""),
            )
        )


class RawProperties(spec.Basic.Properties):
    """The properties of a message that came, exactly as they came: a copy of what cannot be written otherwise."""

    def __init__(self, raw: bytes) -> None:
        """Take the flags and the values as they stand in a frame; `message_id` is not written."""
        super().__init__()
        self._raw = raw

    def marshal(self) -> bytes:
        """Give them."""
        return self._raw


class PublishRequest(Struct, frozen=True, kw_only=True):
    """One message to publish, in the broker's words.

    Raw properties have no `message_id` of ours, by which the driver knows what the server returns: so no return is asked for.
    """

    exchange: str = ""
    routing_key: str
    properties: spec.Basic.Properties
    body: bytes


class Confirmation:
    """Where the channel puts the broker's answer for one message, as if it were a future."""

    def __init__(self, waiting: "ConfirmWait") -> None:
        self.outcome = PublishOutcome.SILENT
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
        self._answer(PublishOutcome.CONFIRMED if isinstance(frame, spec.Basic.Ack) else PublishOutcome.UNKNOWN)

    def set_exception(self, error: BaseException) -> None:
        """Take the broker's answer when it is no acknowledgement: a return is definite, a nack is not."""
        self._answer(PublishOutcome.RETURNED if isinstance(error, PublishError) else PublishOutcome.UNKNOWN)

    def _answer(self, outcome: PublishOutcome) -> None:
        self.outcome, self._is_done = outcome, True
        self._waiting.one_less()


class ConfirmWait:
    """The wait for the answers to several messages; `over` ends with an error when the channel does."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.over = channel.create_future()
        self._left = number

    def one_less(self) -> None:
        """Note that one more has been answered."""
        self._left -= 1
        if not self._left and not self.over.done():
            self.over.set_result(None)


async def publish_all(
    channel: Channel,
    stream: asyncio.StreamWriter,
    parcels: Sequence[PublishRequest],
    answers: list[Confirmation],
    *,
    patience: float,
) -> None:
    """Publish, and wait so many seconds for the broker's answers; they are put into `answers` as they come, one for each.

    Raises TimeoutError, and what the driver raises when the channel ends; what is not answered by then is SILENT.
    """
    waiting = ConfirmWait(channel, len(parcels))
    answers += [Confirmation(waiting) for _ in parcels]
    batch = uuid4().hex
    names = [f"{batch}{number:x}" for number in range(len(parcels))]
    try:
        _write(channel, stream, parcels, dict(zip(names, answers, strict=True)))
        async with asyncio.timeout(patience):  # only now: the messages are on their way
            await waiting.over
    finally:
        waiting.over.cancel()
        for name in names:
            channel.message_id_delivery_tag.pop(name, None)


def _write(
    channel: Channel, stream: asyncio.StreamWriter, parcels: Sequence[PublishRequest], answers: Mapping[str, Any]
) -> None:
    """Write all frames in one piece; what cannot be written takes no numbers of the channel's. Answers are by message id."""
    if channel.is_closed:
        raise ChannelInvalidStateError(f"channel {channel.number} is closed")
    stream.write(b"".join(_frames(channel, parcels, answers)))
    tags = range(channel.delivery_tag + 1, channel.delivery_tag + 1 + len(parcels))
    channel.confirmations.update(zip(tags, answers.values(), strict=True))
    channel.message_id_delivery_tag.update(zip(answers, tags, strict=True))
    channel.delivery_tag = tags[-1]


def _frames(channel: Channel, parcels: Sequence[PublishRequest], names: Iterable[str]) -> Iterator[bytes]:
    number, most = channel.number, channel.max_content_size
    for parcel, name in zip(parcels, names, strict=True):
        mandatory = not isinstance(parcel.properties, RawProperties)
        yield _addressed(parcel.exchange, parcel.routing_key, number, mandatory=mandatory)
        parcel.properties.message_id = name
        content = _CONTENT.pack(spec.Basic.frame_id, len(parcel.body)) + parcel.properties.marshal()
        yield _frame(FRAME_HEADER, number, content)
        for start in range(0, len(parcel.body), most):
            yield _frame(FRAME_BODY, number, parcel.body[start : start + most])


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END_CHAR


@lru_cache(1000)
def _addressed(exchange: str, routing_key: str, channel: int, *, mandatory: bool) -> bytes:
    return marshal(spec.Basic.Publish(0, exchange, routing_key, mandatory=mandatory), channel)


def _table(headers: Mapping[str, Any]) -> bytes:
    """Give a header table as AMQP writes it (0-9-1, section 4.2.5.5), in the order of the mapping."""
    parts: list[bytes] = []
    for name, value in headers.items():
        if isinstance(value, str):
            words = value.encode()
            parts += (_text_named(name), len(words).to_bytes(4), words)
        elif isinstance(value, list):
            words = b"".join([b"S" + len(text).to_bytes(4) + text for text in map(str.encode, value)])
            parts += (short_string(name), b"A", len(words).to_bytes(4), words)
        else:
            parts.append(field_table({name: value})[4:])
    table = b"".join(parts)
    return len(table).to_bytes(4) + table


@lru_cache(1000)
def _text_named(name: str) -> bytes:
    return short_string(name) + b"S"


@lru_cache(1000)
def _short(words: str) -> bytes:
    return short_string(words)
