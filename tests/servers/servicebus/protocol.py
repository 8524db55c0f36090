"""The server's side of an AMQP 1.0 connection (part 2 of the specification): frames, sessions, links, credit.

Windows of sessions are so large that they never fill.
"""

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.servers.servicebus.codec import Array, Described, Malformed, Symbol, UByte, UInt, ULong, UShort, decode, encode

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x24, 0x25, 0x26, 0x27
SASL_MECHANISMS, SASL_OUTCOME = 0x40, 0x44
_ERROR, _SOURCE, _TARGET = 0x1D, 0x28, 0x29
_HEADERS = {b"AMQP\x03\x01\x00\x00": True, b"AMQP\x00\x01\x00\x00": False}
_MECHANISMS = Array(0xB3, (Symbol("ANONYMOUS"), Symbol("PLAIN")))
_MOST_FRAME = 64 * 1024
_WINDOW = 2**31 - 1
CREDIT = 1000


@dataclass(eq=False)
class Link:
    """A link of a client. `sends` is whether the stand-in sends on it, `properties` and `filters` are the client's."""

    session: "Session"
    handle: int
    name: str
    sends: bool
    source: list[Any]
    target: list[Any]
    properties: dict[Any, Any]
    is_open: bool = False
    credit: int = 0
    delivery_count: int = 0
    drains: bool = False
    parts: list[bytes] = field(default_factory=list)
    delivery: int = 0
    message_format: int = 0

    @property
    def address(self) -> str:
        """Return the address at this end."""
        terminus = self.source if self.sends else self.target
        return str(terminus[0] or "") if terminus else ""

    @property
    def filters(self) -> dict[Any, Any]:
        """Return the filters of the source."""
        return (self.source[7] if len(self.source) > 7 else None) or {}


@dataclass(eq=False)
class Session:
    """A session of a connection."""

    channel: int
    incoming: int
    outgoing: int = 0
    links: dict[int, Link] = field(default_factory=dict)


class Frames(asyncio.Protocol):
    """A connection. Those who derive from it say what links and messages do."""

    def __init__(self) -> None:
        self._io: asyncio.Transport | None = None
        self._data = b""
        self._sasl = False
        self._greeted = False
        self.sessions: dict[int, Session] = {}

    # What a connection does

    def attached(self, link: Link) -> None:
        """The client asks for a link. `accept` or `refuse` it now or later."""
        raise NotImplementedError

    def detached(self, link: Link) -> None:
        """A link has ended."""
        raise NotImplementedError

    def flowed(self, link: Link) -> None:
        """The client has given credit."""
        raise NotImplementedError

    def received(self, link: Link, raw: bytes) -> None:
        """The client has sent a message. `settle` it."""
        raise NotImplementedError

    def settled(self, session: Session, delivery: int, state: Described) -> Described:
        """The client has settled a delivery; return what came of it."""
        raise NotImplementedError

    # What they can do

    def accept(self, link: Link, *, filters: dict[Any, Any] | None = None, most: int, **properties: Any) -> None:
        """Open a link, as the client asked for it or with other filters. `most` is the largest message."""
        source = [*link.source, *[None] * (11 - len(link.source))]
        if filters is not None:
            source[7] = filters
        named = {Symbol(name): value for name, value in properties.items()}
        self._attach(link, source, link.target, most=most, properties=named)
        link.is_open = True
        if not link.sends:
            self._flow(link, CREDIT)

    def refuse(self, link: Link, condition: str, why: str) -> None:
        """Refuse a link, or end one that is open."""
        if not link.is_open:
            self._attach(link, None, None)
        link.is_open = False
        link.session.links.pop(link.handle, None)
        self.frame(link.session.channel, DETACH, [UInt(link.handle), True, _error(condition, why)])

    def deliver(self, link: Link, tag: bytes, raw: bytes, *, settled: bool = False) -> int:
        """Send a message; return the number of its delivery."""
        session = link.session
        number, session.outgoing = session.outgoing, session.outgoing + 1
        link.delivery_count += 1
        link.credit -= 1
        for start in range(0, max(len(raw), 1), _MOST_FRAME - 512):
            part = raw[start : start + _MOST_FRAME - 512]
            more = start + len(part) < len(raw)
            head = [UInt(link.handle), UInt(number), tag, UInt(0), settled, more, None, None, False, False, False]
            self.frame(session.channel, TRANSFER, head, part)
        return number

    def drained(self, link: Link) -> None:
        """Take back the rest of the credit."""
        link.delivery_count += link.credit
        link.credit = 0
        link.drains = False
        self._flow(link, 0, drain=True)

    def settle(self, link: Link, condition: str = "", why: str = "") -> None:
        """Answer to the message that has just come on this link: accepted, or rejected for a reason."""
        state = rejected(condition, why) if condition else Described(ULong(ACCEPTED), [])
        self.confirm(link.session, link.delivery, state, receives=True)

    def confirm(self, session: Session, delivery: int, state: Described | None, *, receives: bool = False) -> None:
        """Tell the client that a delivery is settled."""
        self.frame(session.channel, DISPOSITION, [receives, UInt(delivery), UInt(delivery), True, state, False])

    def cut(self) -> None:
        """Cut the connection."""
        if self._io is not None:
            self._io.abort()

    # Bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._io = transport

    def data_received(self, data: bytes) -> None:
        """Read what has come, act, and answer."""
        self._data += data
        try:
            while self._read():
                pass
        except (Malformed, ValueError, KeyError, IndexError, TypeError):
            self.cut()

    def frame(self, channel: int, code: int, fields: Sequence[Any], payload: bytes = b"", *, kind: int = 0) -> None:
        """Write a frame."""
        body = encode(Described(ULong(code), list(fields))) + payload
        if self._io is not None and not self._io.is_closing():
            self._io.write(struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body)

    def _read(self) -> bool:
        if len(self._data) < 8:
            return False
        if self._data[:8] in _HEADERS:
            header, self._data = self._data[:8], self._data[8:]
            self._greet(header)
            return True
        size, offset, kind, channel = struct.unpack_from(">IBBH", self._data)
        if len(self._data) < size:
            return False
        body, self._data = self._data[offset * 4 : size], self._data[size:]
        if body:
            described, end = decode(body)
            fields = [*described.value, *[None] * (14 - len(described.value))]
            if kind == 1:
                self.frame(0, SASL_OUTCOME, [UByte(0), None], kind=1)
            else:
                self._act(channel, int(described.descriptor), fields, body[end:])
        return True

    def _greet(self, header: bytes) -> None:
        assert self._io is not None
        self._io.write(header)
        if _HEADERS[header]:
            self.frame(0, SASL_MECHANISMS, [_MECHANISMS], kind=1)

    def _act(self, channel: int, code: int, fields: list[Any], payload: bytes) -> None:
        if code == OPEN:
            self.frame(0, OPEN, ["stand-in", None, UInt(_MOST_FRAME), None, None, None, None, None, None, None])
        elif code == CLOSE:
            self.frame(0, CLOSE, [None])
            if self._io is not None:
                self._io.close()
        elif code == BEGIN:
            self.sessions[channel] = Session(channel, fields[1])
            window = UInt(_WINDOW)
            self.frame(channel, BEGIN, [UShort(channel), UInt(0), window, window, UInt(1000), None, None, None])
        elif channel in self.sessions:
            self._in_session(self.sessions[channel], code, fields, payload)

    def _in_session(self, session: Session, code: int, fields: list[Any], payload: bytes) -> None:
        if code == END:
            del self.sessions[session.channel]
            for link in tuple(session.links.values()):
                self.detached(link)
            self.frame(session.channel, END, [None])
        elif code == ATTACH:
            name, handle, receives = fields[:3]
            link = Link(session, handle, name, receives, _terminus(fields[5]), _terminus(fields[6]), fields[13] or {})
            session.links[handle] = link
            self.attached(link)
        elif code == DISPOSITION:
            last = fields[1] if fields[2] is None else fields[2]
            for delivery in range(fields[1], last + 1):
                state = self.settled(session, delivery, fields[4])
                if not fields[3]:
                    self.confirm(session, delivery, state)
        elif code == FLOW and fields[4] is None:
            pass
        elif (found := session.links.get(fields[0] if code in (TRANSFER, DETACH) else fields[4])) is not None:
            self._on_link(found, code, fields, payload)

    def _on_link(self, link: Link, code: int, fields: list[Any], payload: bytes) -> None:
        if code == DETACH:
            del link.session.links[link.handle]
            self.detached(link)
            self.frame(link.session.channel, DETACH, [UInt(link.handle), bool(fields[1]), None])
        elif code == FLOW:
            if link.sends and fields[6] is not None:
                link.credit = (fields[5] or 0) + fields[6] - link.delivery_count
                link.drains = bool(fields[8])
                self.flowed(link)
        elif code == TRANSFER:
            if not link.parts:
                link.delivery, link.message_format = fields[1], fields[3] or 0
            link.parts.append(payload)
            if not fields[5]:
                raw, link.parts = b"".join(link.parts), []
                link.delivery_count += 1
                link.session.incoming += 1
                self.received(link, raw)
                self._flow(link, CREDIT)

    def _attach(self, link: Link, source: Any, target: Any, *, most: int | None = None, properties: Any = None) -> None:
        self.frame(
            link.session.channel,
            ATTACH,
            [
                link.name,
                UInt(link.handle),
                not link.sends,
                UByte(0),
                UByte(1),
                None if source is None else Described(ULong(_SOURCE), source),
                None if target is None else Described(ULong(_TARGET), [*target, *[None] * (7 - len(target))]),
                None,
                False,
                UInt(0) if link.sends else None,
                None if most is None else ULong(most),
                None,
                None,
                properties or {},
            ],
        )

    def _flow(self, link: Link, credit: int, *, drain: bool = False) -> None:
        session = link.session
        window = UInt(_WINDOW)
        head = [UInt(session.incoming), window, UInt(session.outgoing), window]
        mine = [UInt(link.handle), UInt(link.delivery_count), UInt(credit), UInt(0), drain, False, None]
        self.frame(session.channel, FLOW, [*head, *mine])


def _terminus(found: Any) -> list[Any]:
    return list(found.value) if isinstance(found, Described) else []


def rejected(condition: str, why: str) -> Described:
    """Write that a message was not taken, or not settled."""
    return Described(ULong(REJECTED), [_error(condition, why)])


def _error(condition: str, why: str) -> Described:
    return Described(ULong(_ERROR), [Symbol(condition), why, None])
