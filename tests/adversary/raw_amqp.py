r"""A foreign AMQP 0-9-1 producer that writes frames itself, so that it can send what no client library sends.

    async with connected("amqp://guest:guest@127.0.0.1:5672/") as producer:
        known = properties(message_id=b"M\xfcller", headers=table(field(b"ce-id", b"S", text(b"1"))))
        await producer.publish("shop", b"{}", known)

`publish` takes the properties as raw bytes (flags and values, as they stand in the content header frame), or as the
`Basic.Properties` of pamqp. It waits for the confirm. The server closes the connection for some tables that are broken, and
`publish` then raises `Refused` with the server's reason. The message may be in the queue all the same.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from pamqp import commands as spec
from pamqp.constants import FRAME_BODY, FRAME_END, FRAME_HEADER
from pamqp.frame import marshal, unmarshal

PATIENCE = 20.0
NONE = b"\0\0"
"""The properties of a message without any."""

_CHANNEL = 1
_BASIC = 60
_CLOSING = (spec.Connection.Close.index.to_bytes(4), spec.Channel.Close.index.to_bytes(4))
_HEAD = struct.Struct(">BHI")
_END = bytes((FRAME_END,))
# In the order of AMQP 0-9-1, section 4.2.6.1; the first has the highest bit.
_SHORT_TEXTS = {
    "content_type": 15,
    "content_encoding": 14,
    "correlation_id": 10,
    "reply_to": 9,
    "expiration": 8,
    "message_id": 7,
    "message_type": 5,
    "user_id": 4,
    "app_id": 3,
    "cluster_id": 2,
}
_HEADERS, _DELIVERY_MODE, _PRIORITY, _TIMESTAMP = 13, 12, 11, 6


class Refused(Exception):
    """The server closed the channel or the connection; the text is its reason."""


def properties(
    *,
    headers: bytes | None = None,
    delivery_mode: int | None = 2,
    priority: int | None = None,
    timestamp: int | None = None,
    more: bytes = b"",
    **texts: bytes,
) -> bytes:
    """Build raw properties. `headers` is a `table(...)`, `timestamp` any unsigned 64-bit number, the others are short texts.

    Short texts are `content_type`, `content_encoding`, `correlation_id`, `reply_to`, `expiration`, `message_id`,
    `message_type`, `user_id`, `app_id` and `cluster_id`. `more` is appended as it is.
    """
    values = {_SHORT_TEXTS[name]: bytes((len(value),)) + value for name, value in texts.items()}
    if headers is not None:
        values[_HEADERS] = headers
    if delivery_mode is not None:
        values[_DELIVERY_MODE] = bytes((delivery_mode,))
    if priority is not None:
        values[_PRIORITY] = bytes((priority,))
    if timestamp is not None:
        values[_TIMESTAMP] = timestamp.to_bytes(8)
    flags = sum(1 << bit for bit in values)
    return flags.to_bytes(2) + b"".join(values[bit] for bit in sorted(values, reverse=True)) + more


def table(*fields: bytes) -> bytes:
    """Build a header table, or a nested one, from fields."""
    inside = b"".join(fields)
    return len(inside).to_bytes(4) + inside


def field(name: bytes, kind: bytes, value: bytes) -> bytes:
    """Build one field: a name of at most 255 bytes, the letter of its type, and its value as it stands on the wire."""
    return bytes((len(name),)) + name + kind + value


def text(value: bytes) -> bytes:
    """Write a long text or a byte array: the value of a field of type `S` or `x`."""
    return len(value).to_bytes(4) + value


def cloud_event(id_: bytes, *, source: bytes = b"raw", type_: bytes = b"Order", more: tuple[bytes, ...] = ()) -> bytes:
    """Build the header table of a CloudEvent whose attributes are text; `more` are further fields."""
    named = ((b"ce-specversion", b"1.0"), (b"ce-id", id_), (b"ce-source", source), (b"ce-type", type_))
    return table(*(field(name, b"S", text(value)) for name, value in named), *more)


def nested(depth: int, *, arrays: bool = False) -> bytes:
    """Build the value of a field of type `F` (or `A`): tables in tables, so many deep."""
    inside = table()
    for _ in range(depth - 1):
        inside = table(b"A" + inside) if arrays else table(field(b"t", b"F", inside))
    return inside


class RawProducer:
    """One connection with one channel in confirm mode."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.frame_max = 0

    async def publish(
        self,
        queue: str,
        body: bytes = b"{}",
        raw: bytes | spec.Basic.Properties = NONE,
        *,
        exchange: str = "",
    ) -> None:
        """Publish to a queue, or with `exchange` to that exchange with the routing key `queue`. Raises Refused.

        Returns when the server has confirmed the message. A message that cannot be routed is confirmed too.
        """
        known = raw if isinstance(raw, bytes) else raw.marshal()
        header = struct.pack(">HHQ", _BASIC, 0, len(body)) + known
        frames = [marshal(spec.Basic.Publish(0, exchange, queue), _CHANNEL), _frame(FRAME_HEADER, header)]
        most = self.frame_max - _HEAD.size - len(_END)
        frames += [_frame(FRAME_BODY, body[start : start + most]) for start in range(0, len(body), most)]
        self._writer.write(b"".join(frames))
        async with asyncio.timeout(PATIENCE):
            answer = await self._expect(spec.Basic.Ack, spec.Basic.Nack)
        if not isinstance(answer, spec.Basic.Ack):
            raise Refused("the server answered with a nack")

    async def open(self, user: str, password: str, host: str) -> None:
        """Shake hands."""
        self._writer.write(b"AMQP\0\0\x09\x01")
        await self._expect(spec.Connection.Start)
        self._write(0, spec.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}", "en_US"))
        tune = await self._expect(spec.Connection.Tune)
        self.frame_max = tune.frame_max or 131_072
        self._write(0, spec.Connection.TuneOk(tune.channel_max, self.frame_max, 0))
        self._write(0, spec.Connection.Open(host))
        await self._expect(spec.Connection.OpenOk)
        self._write(_CHANNEL, spec.Channel.Open())
        await self._expect(spec.Channel.OpenOk)
        self._write(_CHANNEL, spec.Confirm.Select())
        await self._expect(spec.Confirm.SelectOk)

    def close(self) -> None:
        """End the connection."""
        self._writer.close()

    def _write(self, channel: int, method: Any) -> None:
        self._writer.write(marshal(method, channel))

    async def _expect(self, *kinds: type[Any]) -> Any:
        """Read until one of these methods comes. Raises Refused when the server closes instead."""
        while True:
            try:
                head = await self._reader.readexactly(_HEAD.size)
                rest = await self._reader.readexactly(_HEAD.unpack(head)[2] + 1)
            except (OSError, asyncio.IncompleteReadError) as error:
                raise Refused("the server ended the connection without a reason") from error
            if rest.startswith(_CLOSING):  # its text may repeat bytes that are not UTF-8
                raise Refused(rest[7 : 7 + rest[6]].decode(errors="backslashreplace"))
            _, _, method = unmarshal(head + rest)
            if isinstance(method, kinds):
                return method


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[RawProducer]:
    """Connect to the server of an amqp:// URL; its query is ignored."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 5672)
    producer = RawProducer(reader, writer)
    try:
        async with asyncio.timeout(PATIENCE):
            await producer.open(
                unquote(parts.username or "guest"), unquote(parts.password or "guest"), unquote(parts.path[1:]) or "/"
            )
        yield producer
    finally:
        producer.close()


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, _CHANNEL, len(payload)) + payload + _END
