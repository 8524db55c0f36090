"""Publishing many messages at once: one write to the connection, one wait for all the broker's confirms.

The driver's own `basic_publish` costs a task, a lock, a write and a timer for each message; for batches that was a quarter of a
worker's time. This does what it does, by the same attributes of the channel, for all messages together.

It writes to the stream itself, past the driver's queue: there a lone message would wait for a turn of the event loop, behind
the next message's receiving. Nothing else writes on a channel that publishes, once it is open, so its frames keep their order.

The server returns what it cannot route. A private header, new for each publish, says which one that was: the `message_id` is
the message's own id, which several copies in one call may have.
"""

import asyncio
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import uuid4

from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from aiormq.exceptions import ChannelInvalidStateError, PublishError
from msgspec import Struct
from pamqp import commands as spec
from pamqp.constants import FRAME_BODY, FRAME_END_CHAR, FRAME_HEADER
from pamqp.encode import field_table, short_string
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from onceonly.adapters.rabbitmq.frames import HEAD
from onceonly.queues.destinations import SILENT_SECONDS, SilentDestinations

PUBLISH = "x-onceonly-publish"
"""The header with the name of one publish of one message. Only the connection that published it uses it."""
_PUBLISH_NAMED = short_string(PUBLISH) + b"S"
_CONTENT = struct.Struct(">HxxQ")  # class, weight, size of the body
_PERSISTENT = 2
_FLAGS = spec.Basic.Properties.flags
_TYPED, _CORRELATED, _NAMED = _FLAGS["content_type"], _FLAGS["correlation_id"], _FLAGS["message_id"]
_DATED, _KIND = _FLAGS["timestamp"], _FLAGS["message_type"]
_ALWAYS = _FLAGS["headers"] | _FLAGS["delivery_mode"] | _FLAGS["app_id"]


class PublishOutcome(Enum):
    """The result of publishing one message.

    UNKNOWN: the broker refused it, perhaps for now. SILENT: there was no answer. MISSING: its exchange does not exist.
    """

    CONFIRMED = "confirmed"
    RETURNED = "returned"
    UNKNOWN = "unknown"
    SILENT = "silent"
    MISSING = "missing"


class ShownProperties(NamedTuple):
    """What a message shows to other programs; this library reads the headers.

    The texts have 255 bytes at most. `sent_at` is in seconds since 1970, 0 for none.
    """

    message_id: str = ""
    message_type: str = ""
    correlation_id: str = ""
    sent_at: int = 0


NOTHING_SHOWN = ShownProperties()


class OwnProperties(Struct, kw_only=True):
    """The properties of a persistent message of this library's: these few are written straight, others it cannot have.

    `publish` is named when the message is published.
    """

    app_id: str
    content_type: str | None
    headers: dict[str, Any]
    shown: ShownProperties = NOTHING_SHOWN
    publish: str = ""

    def marshal(self) -> bytes:
        """Return the flags and the values, in the order of AMQP 0-9-1, section 4.2.6.1; headers in their own order."""
        flags, first, rest = _ALWAYS, b"", b""
        if self.content_type:
            flags, first = flags | _TYPED, _short(self.content_type)
        message_id, message_type, correlation_id, sent_at = self.shown
        if correlation_id:
            text = correlation_id.encode()
            flags, rest = flags | _CORRELATED, len(text).to_bytes(1) + text
        if message_id:
            text = message_id.encode()
            flags, rest = flags | _NAMED, rest + len(text).to_bytes(1) + text
        if sent_at:
            flags, rest = flags | _DATED, rest + sent_at.to_bytes(8)
        if message_type:
            flags, rest = flags | _KIND, rest + _short(message_type)
        headers, mode = _table(self.headers, self.publish), _PERSISTENT.to_bytes(1)
        return b"".join((flags.to_bytes(2), first, headers, mode, rest, _short(self.app_id)))


class RawProperties(spec.Basic.Properties):
    """The properties of a message that came, exactly as they came: a copy of what cannot be written otherwise."""

    def __init__(self, raw: bytes) -> None:
        """Take the flags and the values as they stand in a frame."""
        super().__init__()
        self._raw = raw

    def marshal(self) -> bytes:
        return self._raw


class PublishRequest(Struct, frozen=True, kw_only=True):
    """One message to publish, as AMQP addresses it.

    Raw properties have no name of ours, by which a return is matched: so no return is asked for. `foreign`: the exchange is one
    of another program.
    """

    exchange: str = ""
    routing_key: str
    properties: "spec.Basic.Properties | OwnProperties"
    body: bytes
    foreign: bool = False

    @property
    def destination(self) -> str:
        """What confirms the message, or does not: an exchange, or a queue."""
        return self.exchange or self.routing_key


class Confirmation:
    """Where the channel puts the broker's answer for one message, as if it were a future."""

    def __init__(self, waiting: "ConfirmWait", destination: str) -> None:
        self.outcome = PublishOutcome.SILENT
        self.destination = destination
        self._waiting = waiting
        self._is_done = False

    def done(self) -> bool:
        """Return whether an answer has come. One that comes after the wait is taken: its destination is trusted again."""
        return self._is_done

    def cancelled(self) -> bool:
        return self._waiting.over.done()

    def set_result(self, frame: object) -> None:
        self._answer(PublishOutcome.CONFIRMED if isinstance(frame, spec.Basic.Ack) else PublishOutcome.UNKNOWN)

    def set_exception(self, error: BaseException) -> None:
        """Take the broker's answer when it is not an acknowledgement: a return is definite, a nack is not."""
        self._answer(PublishOutcome.RETURNED if isinstance(error, PublishError) else PublishOutcome.UNKNOWN)

    def _answer(self, outcome: PublishOutcome) -> None:
        self.outcome, self._is_done = outcome, True
        self._waiting.answered(self.destination)


class ConfirmWait:
    """The wait for the answers to several messages; `over` ends with an error when the channel does.

    It does not wait for destinations that were silent before, unless there are no others: `is_silent`.
    """

    def __init__(self, channel: Channel, destinations: Sequence[str], silent: SilentDestinations) -> None:
        self.over = channel.create_future()
        self._silent = silent
        self._trusted = {each for each in destinations if each not in silent}
        self.is_silent = not self._trusted
        if self.is_silent:
            self._trusted = {*destinations}
        self._left = sum(each in self._trusted for each in destinations)

    def answered(self, destination: str) -> None:
        self._silent.discard(destination)
        self._left -= destination in self._trusted
        if not self._left and not self.over.done():
            self.over.set_result(None)


async def publish_all(
    channel: Channel,
    stream: asyncio.StreamWriter,
    requests: Sequence[PublishRequest],
    answers: list[Confirmation],
    *,
    patience: float,
    silent: SilentDestinations,
) -> None:
    """Publish, and wait this many seconds for the broker's answers; they are put into `answers` as they come, one for each.

    Destinations that were silent before are waited for only as long as the others take.

    Raises TimeoutError, and what the driver raises when the channel ends; what is not answered by then is SILENT.
    """
    waiting = ConfirmWait(channel, [request.destination for request in requests], silent)
    answers += [Confirmation(waiting, request.destination) for request in requests]
    batch = uuid4().hex
    names = [f"{batch}{number:x}" for number in range(len(requests))]
    try:
        _write(channel, stream, requests, dict(zip(names, answers, strict=True)))
        patience = min(patience, SILENT_SECONDS) if waiting.is_silent else patience
        async with asyncio.timeout(patience):  # only now: the messages are on their way
            await waiting.over
    finally:
        waiting.over.cancel()
        for name in names:
            channel.message_id_delivery_tag.pop(name, None)


def match_returns(channel: Channel) -> None:
    """Make the driver match what the server returns by the private header, where it has one, and else by its `message_id`.

    The driver itself knows the `message_id` only.
    """
    read = channel._read_content  # noqa: SLF001 - where the driver takes a returned message apart

    async def read_content(frame: Any, header: ContentHeader) -> DeliveredMessage:
        if isinstance(frame, spec.Basic.Return):
            name = (header.properties.headers or {}).get(PUBLISH)
            if isinstance(name, str):
                header.properties.message_id = name
        return await read(frame, header)

    setattr(channel, "_read_content", read_content)  # noqa: B010 - a method


def _write(
    channel: Channel, stream: asyncio.StreamWriter, requests: Sequence[PublishRequest], answers: Mapping[str, Any]
) -> None:
    """Write all frames in one piece; what cannot be written takes no numbers of the channel's. Answers are by name."""
    if channel.is_closed:
        raise ChannelInvalidStateError(f"channel {channel.number} is closed")
    stream.write(b"".join(_frames(channel, requests, answers)))
    tags = range(channel.delivery_tag + 1, channel.delivery_tag + 1 + len(requests))
    channel.confirmations.update(zip(tags, answers.values(), strict=True))
    channel.message_id_delivery_tag.update(zip(answers, tags, strict=True))
    channel.delivery_tag = tags[-1]


def _frames(channel: Channel, requests: Sequence[PublishRequest], names: Iterable[str]) -> Iterator[bytes]:
    number, most = channel.number, channel.max_content_size
    for request, name in zip(requests, names, strict=True):
        properties = request.properties
        mandatory = not isinstance(properties, RawProperties)
        yield _addressed(request.exchange, request.routing_key, number, mandatory=mandatory)
        if isinstance(properties, OwnProperties):
            properties.publish = name
        else:
            properties.message_id = name
        content = _CONTENT.pack(spec.Basic.frame_id, len(request.body)) + properties.marshal()
        yield _frame(FRAME_HEADER, number, content)
        for start in range(0, len(request.body), most):
            yield _frame(FRAME_BODY, number, request.body[start : start + most])


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END_CHAR


class _Publish(spec.Basic.Publish):
    """A publish to an exchange of any name; see `PassiveDeclare`."""

    def validate(self) -> None:
        """Accept what a server may have."""


@lru_cache(1000)
def _addressed(exchange: str, routing_key: str, channel: int, *, mandatory: bool) -> bytes:
    return marshal(_Publish(0, exchange, routing_key, mandatory=mandatory), channel)


def _table(headers: Mapping[str, Any], publish: str) -> bytes:
    """Return a header table as AMQP writes it (0-9-1, section 4.2.5.5): the publish, then the mapping in its order."""
    parts: list[bytes] = [_PUBLISH_NAMED, len(publish).to_bytes(4), publish.encode()] if publish else []
    for name, value in headers.items():
        if isinstance(value, str):
            encoded = value.encode()
            parts += (_text_named(name), len(encoded).to_bytes(4), encoded)
        elif isinstance(value, list):
            encoded = b"".join([b"S" + len(text).to_bytes(4) + text for text in map(str.encode, value)])
            parts += (short_string(name), b"A", len(encoded).to_bytes(4), encoded)
        else:
            parts.append(field_table({name: value})[4:])
    table = b"".join(parts)
    return len(table).to_bytes(4) + table


@lru_cache(1000)
def _text_named(name: str) -> bytes:
    return short_string(name) + b"S"


@lru_cache(1000)
def _short(text: str) -> bytes:
    return short_string(text)
