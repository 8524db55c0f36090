"""`make servers` tells apart a server that is ready, one that is not, and another program."""

import socket
import struct

import pytest

from tests.servers.available import SERVERS, Server, free_port, need
from tests.servers.install.daemons import LOCAL_SERVERS, MARIADB, NATS, POSTGRESQL, RABBITMQ, REDIS, LocalServer
from tests.servers.install.round_trips import Condition, examine
from tests.servers.speaker import speaker

NAMES = [server.name for server in LOCAL_SERVERS]

# What each server says to a login that it does not accept, and before it is ready.
_ERROR = struct.Struct(">cI")
_MISSING_ROLE = b'SFATAL\0C28000\0Mrole "root" does not exist\0\0'
_BEGINNING = b"SFATAL\0C57P03\0Mthe database system is starting up\0\0"
_GREETING = b"\x01\0\0\0\x0a"
_DENIED = b"\x21\0\0\x02\xff\x15\x04#28000Access denied for 'root'"
_AMQP_START = struct.pack(">BHIHHB", 1, 0, 5, 10, 10, 0) + b"\xce"
REPLIES = {
    "no role": (
        POSTGRESQL,
        b"",
        _ERROR.pack(b"E", len(_MISSING_ROLE) + 4) + _MISSING_ROLE,
        "REFUSING",
        'role "root" does not exist',
    ),
    "a password": (POSTGRESQL, b"", struct.pack(">cII", b"R", 8, 3), "REFUSING", "password"),
    "recovery": (POSTGRESQL, b"", _ERROR.pack(b"E", len(_BEGINNING) + 4) + _BEGINNING, "STARTING", "starting up"),
    "denied": (MARIADB, _GREETING, _DENIED, "REFUSING", "Access denied for 'root'"),
    "blocked": (MARIADB, b"\x0a\0\0\0\xff\x69\x04blocked", None, "REFUSING", "blocked"),
    "authentication": (REDIS, b"", b"-NOAUTH Authentication required.\r\n", "REFUSING", "Authentication required"),
    "loading": (REDIS, b"", b"-LOADING Redis is loading the dataset in memory\r\n", "STARTING", "loading"),
    "no guest": (RABBITMQ, _AMQP_START, b"", "REFUSING", "refuses guest"),
    "no JetStream": (NATS, b'INFO {"server_id":"A","max_payload":1}\r\n', b"", "REFUSING", "without JetStream"),
    "not authorized": (
        NATS,
        b'INFO {"jetstream":true}\r\n',
        b"-ERR 'Authorization Violation'\r\n",
        "REFUSING",
        "Authorization",
    ),
}


@pytest.mark.parametrize("case", REPLIES)
def test_a_server_that_is_not_ready_is_told_apart(case: str) -> None:
    """It refuses the login of the tests, or is still starting; in its own words."""
    server, first, answer, condition, words = REPLIES[case]
    with speaker(first, answer) as port:
        found = examine(port, server.ask)
    assert found.condition is Condition[condition]
    assert words in found.words


@pytest.mark.parametrize("server", LOCAL_SERVERS, ids=NAMES)
@pytest.mark.parametrize(
    "first", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"", b"SSH-2.0-x\r\n"]
)
def test_another_program_is_not_the_server(server: LocalServer, first: bytes) -> None:
    """Whatever it says first, and whether it closes the connection."""
    with speaker(first) as port:
        assert examine(port, server.ask).condition is Condition.FOREIGN


@pytest.mark.parametrize("server", LOCAL_SERVERS, ids=NAMES)
def test_a_silent_program_is_not_the_server(server: LocalServer) -> None:
    """It accepts connections, as a server that hangs does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = examine(listener.getsockname()[1], server.ask, limit=0.05)
    assert found.condition is Condition.FOREIGN
    assert "does not answer within 0.05 s" in found.words


@pytest.mark.parametrize("server", LOCAL_SERVERS, ids=NAMES)
def test_a_free_port_is_a_server_that_is_absent(server: LocalServer) -> None:
    """Nothing accepts connections there."""
    assert examine(free_port(), server.ask).condition is Condition.ABSENT


@pytest.mark.parametrize(("server", "known"), [*zip(LOCAL_SERVERS, SERVERS, strict=True)], ids=NAMES)
def test_a_round_trip_with_each_server(server: LocalServer, known: Server) -> None:
    """On the server that the tests use."""
    url = need(known)
    if url != known.default:
        pytest.skip(f"{known.variable} names another server")
    assert examine(server.port, server.ask) == (Condition.READY, "")
