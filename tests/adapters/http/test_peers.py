"""Other services that answer badly: what is not said for sure, with the header of the protocol, is asked again."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import pytest

from onceonly import CommitFailed, Peer, SetupError
from onceonly.adapters.http.remote import HttpRemote, open_remote
from onceonly.errors import CommitRefused
from onceonly.model.artifact import Artifact
from onceonly.model.errors import PeerAway
from onceonly.model.record import Answer
from onceonly.model.remote import HTTP, LARGEST, MOST_REQUESTS, RemoteRequest, Verb, name_of, url_of
from onceonly.runtime.environment import LIVE

OURS = "onceonly-http: 1\r\n"
SILENCE = b""


def answer(status: int, headers: str = OURS, body: bytes = b"") -> bytes:
    """Write an answer."""
    return f"HTTP/1.1 {status} Status\r\n{headers}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


class Scene:
    """A service that answers everything with the same bytes, and what it was asked; what was told of it."""

    def __init__(self) -> None:
        self.answer = SILENCE
        self.asked: list[str] = []
        self.told: list[str] = []
        self.url = ""
        self.remote: HttpRemote

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer one connection, or never."""
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        if self.answer:
            writer.write(self.answer)
            with suppress(OSError):
                await writer.drain()
        else:
            await reader.read()
        writer.close()

    def artifact(self, headers: Mapping[str, str] | None = None) -> Artifact:
        """Make a request, as an artifact."""
        sent = (("onceonly-operation", "Charge"), *(headers or {}).items())
        return Artifact(kind=HTTP, name=name_of("attempt", 0, self.url), data=b"{}", headers=sent)

    @property
    def request(self) -> str:
        """Return its URL."""
        return url_of(self.artifact().name)


@asynccontextmanager
async def playing(*, seconds: float = 10.0, headers: object = None) -> AsyncIterator[Scene]:
    """Start the service, and open it as a peer."""
    scene = Scene()
    server = await asyncio.start_server(scene.serve, "127.0.0.1", 0)
    scene.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
    peer = Peer(scene.url, headers=headers or {}, timeout=seconds)  # type: ignore[arg-type]
    async with server, open_remote([peer], clock=LIVE.clock, tell=lambda _, reason: scene.told.append(reason)) as scene.remote:
        yield scene


@pytest.mark.parametrize(
    ("answered", "error"),
    [
        (answer(204), None),
        (answer(404), CommitRefused),
        (answer(413, body=b"too large"), CommitRefused),
        (answer(410), CommitFailed),
        (answer(503), PeerAway),
        (answer(501), PeerAway),
        (answer(401), PeerAway),
        (answer(429), PeerAway),
        (answer(204, headers=""), PeerAway),
        (answer(404, headers=""), PeerAway),
        (answer(204, headers="onceonly-http: 2\r\n"), PeerAway),
        (answer(302, headers=OURS + "location: /elsewhere\r\n"), PeerAway),
        (b"SSH-2.0-OpenSSH\r\n", PeerAway),
        (b"HTTP/1.1 204 No", PeerAway),
    ],
)
async def test_a_put_counts_only_when_it_was_taken_for_sure(answered: bytes, error: type[Exception] | None) -> None:
    """One request for each PUT: the client tries nothing again by itself."""
    async with playing() as scene:
        scene.answer = answered
        if error is None:
            await scene.remote.create(scene.artifact({"x-tenant": "north"}))
        else:
            with pytest.raises(error) as raised:
                await scene.remote.create(scene.artifact())
            assert raised.type is error
        assert [asked.split()[0] for asked in scene.asked] == ["PUT"]


async def test_the_words_of_a_refusal_are_one_line() -> None:
    """A newline at the end of the other side's words would stand in the log and tear the list of dead letters."""
    async with playing() as scene:
        scene.answer = answer(404, body=b"no responder for operation 'Charge'\n")
        with pytest.raises(CommitRefused, match=r"answered PUT with status 404: no responder for operation 'Charge'\Z"):
            await scene.remote.create(scene.artifact())


@pytest.mark.parametrize(
    ("answered", "taken"),
    [
        (answer(200, body=b"{}"), Answer.TAKEN),
        (answer(422), Answer.TAKEN),
        (answer(410), Answer.TAKEN),
        (answer(200, headers=""), Answer.UNKNOWN),
        (answer(422, headers=""), Answer.UNKNOWN),
        (answer(503), Answer.UNKNOWN),
        (answer(429), Answer.UNKNOWN),
        (b"garbage\r\n\r\n", Answer.UNKNOWN),
    ],
)
async def test_a_post_is_over_only_when_it_was_answered_for_sure(answered: bytes, taken: Answer) -> None:
    """4xx is an answer: what it says is for the handler."""
    async with playing() as scene:
        scene.answer = answered
        assert await scene.remote.perform([RemoteRequest(Verb.POST, scene.request)]) == (taken,)
        assert bool(scene.told[-1]) is (taken is Answer.UNKNOWN)


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        (answer(200, OURS + "onceonly-status: 422\r\n", b'{"a":1}'), (422, {"a": 1})),
        (answer(404), None),
        (answer(404, headers=""), PeerAway),
        (answer(429), PeerAway),
        (answer(200), CommitRefused),
        (answer(200, OURS + "onceonly-status: 200\r\n", bytes(LARGEST + 1)), CommitRefused),
    ],
)
async def test_a_response_is_read_or_known_to_be_missing(answered: bytes, expected: object) -> None:
    """A 404 from anybody else says nothing."""
    async with playing() as scene:
        scene.answer = answered
        if isinstance(expected, type):
            with pytest.raises(expected):
                await scene.remote.response(scene.request)
            return
        response = await scene.remote.response(scene.request)
        assert (None if response is None else (response.status, response.json())) == expected


async def test_a_service_that_never_answers_is_given_up_on_in_time() -> None:
    """What it was asked may have happened."""
    async with playing(seconds=0.2) as scene:
        with pytest.raises(PeerAway, match=r"no answer to PUT within 0\.2 s"):
            await scene.remote.create(scene.artifact())
        assert await scene.remote.perform([RemoteRequest(Verb.DELETE, scene.request)]) == (Answer.UNKNOWN,)


async def test_a_service_that_is_away_is_unknown() -> None:
    """Nobody listens."""
    async with open_remote([Peer("http://127.0.0.1:1/x")], clock=LIVE.clock, tell=lambda *_: None) as remote:
        assert await remote.perform([RemoteRequest(Verb.POST, "http://127.0.0.1:1/x/r")]) == (Answer.UNKNOWN,)


async def test_only_peers_are_asked() -> None:
    """A message may name any URL; nothing is sent there."""
    async with playing() as scene:
        with pytest.raises(CommitRefused, match="does not belong to a peer of the endpoint"):
            await scene.remote.response("http://169.254.169.254/latest/r")
        with pytest.raises(CommitRefused, match="does not belong to a peer of the endpoint"):
            await scene.remote.response(f"{scene.url}/deeper/r")
        assert scene.asked == []


async def test_a_call_at_a_service_that_is_no_peer_any_more_waits_and_is_told() -> None:
    """It was committed under an earlier setting; calls at others are made all the same."""
    async with playing() as scene:
        scene.answer = answer(204)
        calls = [RemoteRequest(Verb.POST, "http://old.example/x/r"), RemoteRequest(Verb.DELETE, "http://old.example/x/r")]
        answers = await scene.remote.perform([*calls, RemoteRequest(Verb.POST, scene.request)])
        assert answers == (Answer.UNKNOWN, Answer.UNKNOWN, Answer.TAKEN)
        assert len(scene.asked) == 1
        assert [told for told in scene.told if "does not belong to a peer of the endpoint" in told] == scene.told[:2]


async def test_the_headers_of_a_peer_are_asked_for_each_time() -> None:
    """Such as a token that expires; one that cannot be told is an outage."""
    tokens = iter(["first", "second"])
    async with playing(headers=lambda: {"authorization": f"Bearer {next(tokens)}"}) as scene:
        scene.answer = answer(204)
        await scene.remote.create(scene.artifact())
        await scene.remote.delete(scene.artifact().name)
        assert ["Bearer first" in scene.asked[0], "Bearer second" in scene.asked[1]] == [True, True]
        with pytest.raises(PeerAway, match="headers cannot be computed"):
            await scene.remote.delete(scene.artifact().name)


async def test_every_name_that_an_attempt_could_have_used_is_deleted() -> None:
    """Peers are asked nothing to find out."""
    async with playing() as scene:
        names = await scene.remote.names("attempt/")
        assert len(names) == MOST_REQUESTS
        assert scene.artifact().name in names


@pytest.mark.parametrize(
    "url", ["payments", "ftp://payments/x", "http://user:secret@payments/x", "http://payments/x?a=1", "http://", ""]
)
def test_a_peer_that_cannot_be_is_refused(url: str) -> None:
    """And no password is shown."""
    with pytest.raises(SetupError, match="url must be an http or https URL") as raised:
        Peer(url)
    assert "secret" not in str(raised.value)
