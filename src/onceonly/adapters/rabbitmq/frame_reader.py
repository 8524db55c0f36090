"""Reading many deliveries at once: they are taken out of what the server sent before the driver reads it frame by frame.

The driver spends several awaits, a queue and a task on each delivery, a third of a worker's time. Its connection takes a
factory of streams, so the reader it gets here is asyncio's own that keeps back the frames of deliveries, for channels whose
deliveries a receiver takes. All other frames, and what is not a delivery as AMQP has it, go to the driver as they came.
Properties that cannot be decoded are part of a delivery: the driver would end the connection over them.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from aiormq.connection import SSLContextProvider, TransportFactory
from aiormq.exceptions import AMQPConnectionError
from pamqp.constants import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD
from yarl import URL

from onceonly.adapters.rabbitmq.frames import DELIVER, HEAD, ConsumedMessage, read_deliver, read_properties, read_size

HEARTBEAT = bytes((FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END))
ALIVE_SECONDS = 1.0  # after which the driver is told that the server lives: it does not see what is kept back
_END = 1
_KINDS = frozenset((FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT))
_CHANNELS = (20).to_bytes(2)  # the class of methods that open and close channels

Taker = Callable[[ConsumedMessage], None]


class FrameReader(asyncio.StreamReader):
    """The driver's reader, without the deliveries of our consumers."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop=loop)
        self._clock = loop.time
        self.received = 0
        self._reported_at = 0.0
        self._contents: dict[int, _Content] = {}
        self._rest = b""
        self._understands = True

    def bring(self, channel: int, taker: Taker) -> None:
        """Pass all deliveries of a channel to `taker`, as soon as they are here, until the channel is closed."""
        self._contents[channel] = _Content(taker)

    def feed_data(self, data: bytes) -> None:  # type: ignore[override] # what a protocol is given is bytes
        """Take what the server sent: hand deliveries over, and all else to the driver."""
        self.received += 1
        passed: list[bytes] = []
        kept = self._sort(self._rest + data if self._rest else data, passed) if self._understands else 0
        if kept and self._clock() - self._reported_at > ALIVE_SECONDS:
            self._reported_at = self._clock()
            passed.append(HEARTBEAT)
        if not self._understands:
            passed.append(self._rest or data)
            self._rest = b""
        if passed:
            super().feed_data(b"".join(passed))

    def feed_eof(self) -> None:
        if self._rest:
            super().feed_data(self._rest)
        super().feed_eof()

    def _sort(self, data: bytes, passed: list[bytes]) -> int:
        """Take whole frames: keep those of deliveries, and count them; `passed` gets the others."""
        at, size, kept = 0, len(data), 0
        while size - at >= HEAD.size + _END:
            kind, number, length = HEAD.unpack_from(data, at)
            end = at + HEAD.size + length + _END
            if kind not in _KINDS or (end <= size and data[end - _END] != FRAME_END):
                self._understands = False  # no frames at all: the driver shall say so
                break
            if end > size:
                break
            frame, at = data[at:end], end
            content = self._contents.get(number)
            if content is None:
                passed.append(frame)
            elif content.keeps(kind, frame):
                kept += 1
            else:
                passed += [*content.given_up(), frame]
                if kind == FRAME_METHOD and frame.startswith(_CHANNELS, HEAD.size):
                    del self._contents[number]  # closed: the number is free for another
        self._rest = data[at:]
        return kept


class _Content:
    """One channel's present delivery: its frames that have come, as long as others have not."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._frames: list[bytes] = []
        self._begun: tuple[str, int, bool] | None = None
        self._left: int | None = None  # bytes of the body that have not come; None before the properties

    def keeps(self, kind: int, frame: bytes) -> bool:
        """Take a frame if it is part of a delivery, and hand the delivery over if it is its last."""
        try:
            if not self._reads(kind, frame):
                return False
        except (ValueError, IndexError, struct.error):  # the driver shall say what is wrong with it
            return False
        self._frames.append(frame)
        if self._begun is not None and self._left == 0:
            body = b"".join([each[HEAD.size : -_END] for each in self._frames[2:]])
            properties, problem = read_properties(self._frames[1])
            message = ConsumedMessage(*self._begun, properties, body, self._frames[1], problem)
            self.given_up()
            self._taker(message)
        return True

    def given_up(self) -> list[bytes]:
        """Return the frames that were kept for nothing, and begin anew."""
        frames, self._frames = self._frames, []
        self._begun = self._left = None
        return frames

    def _reads(self, kind: int, frame: bytes) -> bool:
        if kind == FRAME_METHOD and self._begun is None and frame.startswith(DELIVER, HEAD.size):
            self._begun = read_deliver(frame)
        elif kind == FRAME_HEADER and self._begun is not None and self._left is None:
            self._left = read_size(frame)
        elif kind == FRAME_BODY and self._left is not None:
            self._left -= len(frame) - HEAD.size - _END
        else:
            return False
        return True


class ReadingStreams(TransportFactory):
    """Opens the driver's streams; `reader` and `writer` are those opened last."""

    def __init__(self) -> None:
        self.reader: FrameReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as the driver does. Raises its AMQPConnectionError."""
        provider: SSLContextProvider = options.pop("ssl_context_provider")
        context = await provider.get_context() if url.scheme == "amqps" else None
        loop, reader = asyncio.get_running_loop(), FrameReader()
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.create_connection(lambda: protocol, url.host or "", url.port or 0, ssl=context, **options)
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        self.reader, self.writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        return self.reader, self.writer
