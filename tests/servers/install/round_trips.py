"""One round trip with each server, in its own protocol and with the login of the tests, by Python alone.

A port that accepts connections is not enough: another program may have it, and a server may refuse the login.
"""

import json
import socket
import struct
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

LIMIT = 8.0
"""Seconds for one round trip, which takes milliseconds."""

_LARGEST = 1 << 20
"""Bytes; what claims to be longer is another protocol."""


class Condition(Enum):
    """What is behind a port."""

    ABSENT = auto()
    """Nothing accepts connections."""
    STARTING = auto()
    READY = auto()
    REFUSING = auto()
    """The server is the right one, and refuses the login or lacks a setting."""
    FOREIGN = auto()
    """Something accepts connections, and does not speak the protocol."""


class Finding(NamedTuple):
    """What is behind a port, and in words what it said."""

    condition: Condition
    words: str = ""


class Unready(Exception):
    """A round trip ended early; the arguments are the condition and the words of a `Finding`."""


class Conversation:
    """Reads exact numbers of bytes, and lines, from a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.send = connection.sendall
        self._reader = connection.makefile("rb")

    def read(self, size: int) -> bytes:
        """Read this many bytes. Raises Unready for fewer, and for sizes that no server sends here."""
        if not 0 <= size <= _LARGEST:
            raise Unready(Condition.FOREIGN, "it speaks another protocol")
        found = self._reader.read(size)
        if len(found) < size:
            raise Unready(
                Condition.FOREIGN, f"it closes the connection after {found!r}" if found else "it closes the connection"
            )
        return found

    def line(self) -> str:
        """Read a line, without its end. Raises Unready if the connection ends before."""
        found = self._reader.readline(_LARGEST)
        if not found.endswith(b"\n"):
            raise Unready(Condition.FOREIGN, "it closes the connection")
        return found.decode("utf-8", "replace").strip()


RoundTrip = Callable[[Conversation], None]


def examine(port: int, ask: RoundTrip, limit: float = LIMIT) -> Finding:
    """Find out what is behind a port of this machine."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=limit)
    except ConnectionRefusedError:
        return Finding(Condition.ABSENT)
    except OSError as error:
        return Finding(Condition.FOREIGN, f"it does not accept a connection: {error}")
    with connection:
        try:
            ask(Conversation(connection))
        except Unready as unready:
            return Finding(*unready.args)
        except TimeoutError:
            return Finding(Condition.FOREIGN, f"it accepts connections and does not answer within {limit:g} s")
        except (OSError, ValueError, struct.error) as error:
            return Finding(Condition.FOREIGN, f"it does not speak the protocol: {error}")
    return Finding(Condition.READY)


def ask_postgresql(server: Conversation) -> None:
    """Log in as root and run `SELECT 1`: PostgreSQL's protocol 3.0."""
    startup = struct.pack(">i", 3 << 16) + b"user\0root\0database\0postgres\0\0"
    server.send(struct.pack(">i", len(startup) + 4) + startup)
    _until_ready(server)
    server.send(b"Q" + struct.pack(">i", 13) + b"SELECT 1\0")
    if b"D" not in _until_ready(server):
        raise Unready(Condition.FOREIGN, "it returns no row for SELECT 1")
    server.send(b"X" + struct.pack(">i", 4))


def _until_ready(server: Conversation) -> list[bytes]:
    kinds: list[bytes] = []
    while not kinds or kinds[-1] != b"Z":
        kinds.append(kind := server.read(1))
        if kind not in b"RESKNTDCZ":
            raise Unready(Condition.FOREIGN, f"its answer begins with {kind!r}")
        content = server.read(struct.unpack(">i", server.read(4))[0] - 4)
        if kind == b"R" and content[:4] != bytes(4):
            raise Unready(Condition.REFUSING, "it asks root for a password")
        if kind == b"E":
            fields = {field[:1]: field[1:].decode("utf-8", "replace") for field in content.split(b"\0") if field}
            starting = fields.get(b"C") == "57P03"  # cannot_connect_now
            raise Unready(Condition.STARTING if starting else Condition.REFUSING, fields.get(b"M", ""))
    return kinds


# Of MariaDB's capabilities: long password, connect with database, protocol 4.1, secure connection, plugin.
_CAPABILITIES = 0x1 | 0x8 | 0x200 | 0x8000 | 0x80000
_UTF8MB4 = 45


def ask_mariadb(server: Conversation) -> None:
    """Log in as root without a password, select the database `test`, and run `SELECT 1`: MariaDB's client protocol."""
    _, greeting = _packet(server)
    if greeting[:1] != b"\x0a":
        raise Unready(Condition.FOREIGN, f"its greeting begins with {greeting[:1]!r}")
    login = (
        struct.pack("<IIB23x", _CAPABILITIES, 1 << 24, _UTF8MB4) + b"root\0" + b"\0" + b"test\0" + b"mysql_native_password\0"
    )
    server.send(_framed(1, login))
    number, answer = _packet(server)
    while answer[:1] != b"\0":  # it may ask for another method, to which an empty password is an empty answer
        server.send(_framed(number + 1, b""))
        number, answer = _packet(server)
    server.send(_framed(0, b"\x03SELECT 1"))
    _packet(server)
    server.send(_framed(0, b"\x01"))


def _framed(number: int, content: bytes) -> bytes:
    return struct.pack("<I", len(content))[:3] + bytes((number,)) + content


def _packet(server: Conversation) -> tuple[int, bytes]:
    head = server.read(4)
    content = server.read(int.from_bytes(head[:3], "little"))
    if content[:1] == b"\xff":
        raise Unready(Condition.REFUSING, content[3:].decode("utf-8", "replace"))
    return head[3], content


def ask_redis(server: Conversation) -> None:
    """Send PING."""
    server.send(b"*1\r\n$4\r\nPING\r\n")
    answer = server.line()
    if answer.startswith("-"):
        raise Unready(Condition.STARTING if answer.startswith("-LOADING") else Condition.REFUSING, answer[1:])
    if answer != "+PONG":
        raise Unready(Condition.FOREIGN, f"its answer to PING is {answer[:80]!r}")


# Methods of AMQP 0-9-1's class `connection`.
_START, _START_OK, _TUNE, _TUNE_OK, _OPEN, _OPEN_OK, _CLOSE, _CLOSE_OK = 10, 11, 30, 31, 40, 41, 50, 51


def ask_rabbitmq(server: Conversation) -> None:
    """Log in as guest and open the virtual host `/`: AMQP 0-9-1. A server whose login fails closes the connection."""
    server.send(b"AMQP\0\0\x09\x01")
    _expect(server, _START)
    server.send(
        _method(_START_OK, struct.pack(">I", 0) + b"\x05PLAIN" + struct.pack(">I", 12) + b"\0guest\0guest" + b"\x05en_US")
    )
    try:
        limits = _expect(server, _TUNE)
    except Unready as unready:
        raise Unready(Condition.REFUSING, f"it refuses guest: {unready.args[1]}") from unready
    server.send(_method(_TUNE_OK, limits[:6] + b"\0\0") + _method(_OPEN, b"\x01/\0\0"))
    _expect(server, _OPEN_OK)
    server.send(_method(_CLOSE, struct.pack(">HBHH", 200, 0, 0, 0)))
    _expect(server, _CLOSE_OK)


def _method(number: int, arguments: bytes) -> bytes:
    content = struct.pack(">HH", 10, number) + arguments
    return struct.pack(">BHI", 1, 0, len(content)) + content + b"\xce"


def _expect(server: Conversation, number: int) -> bytes:
    kind, _, size = struct.unpack(">BHI", server.read(7))
    if kind != 1:
        raise Unready(Condition.FOREIGN, f"its answer begins with {bytes((kind,))!r}")
    content = server.read(size + 1)
    found = struct.unpack(">HH", content[:4])
    if found == (10, _CLOSE):
        raise Unready(Condition.REFUSING, content[7 : 7 + content[6]].decode("utf-8", "replace"))
    if found != (10, number):
        raise Unready(Condition.FOREIGN, f"it sends method {found} instead of {(10, number)}")
    return content[4:-1]


def ask_nats(server: Conversation) -> None:
    """Ask JetStream about the account."""
    first = server.line()
    if not first.startswith("INFO {"):
        raise Unready(Condition.FOREIGN, f"its first line is {first[:80]!r}")
    told: dict[str, Any] = json.loads(first.removeprefix("INFO "))
    if not told.get("jetstream"):
        raise Unready(Condition.REFUSING, "it runs without JetStream")
    server.send(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB answers 1\r\nPUB $JS.API.INFO answers 0\r\n\r\n')
    while not (line := server.line()).startswith("MSG answers "):
        if line.startswith("-ERR"):
            raise Unready(Condition.REFUSING, line.removeprefix("-ERR "))
        if line == "PING":
            server.send(b"PONG\r\n")
    answer: dict[str, Any] = json.loads(server.line())
    if "error" in answer:
        raise Unready(Condition.REFUSING, f"JetStream answers {answer['error']}")
